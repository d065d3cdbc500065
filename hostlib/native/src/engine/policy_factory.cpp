// SPDX-License-Identifier: Apache-2.0
#include "engine/policy_factory.hpp"

#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "engine/backend_factory.hpp"
#include "path_client/policy.hpp"
#include "paths/adaptive.hpp"
#include "paths/ecmp.hpp"
#include "paths/pinned.hpp"
#include "wire/wire.hpp"

namespace paralet {

std::unique_ptr<PathPolicy> make_policy(const PolicyOptions& options) {
  if (options.lanes == 0 || options.lanes > 1024) throw DeviceError("lanes must be 1 to 1024");
  for (const auto& [peer, ports] : options.ports) {
    if (ports.empty()) throw DeviceError("the list of source ports for peer " + format_address(peer) + " is empty");
    for (const std::uint16_t port : ports) {
      if (port < wire::kFirstEntropyPort) {
        throw DeviceError("source port " + std::to_string(port) + " for peer " + format_address(peer) +
                          " is outside 49152..65535, the range RoCEv2 sources use");
      }
    }
  }
  switch (options.kind) {
    case PolicyKind::kPinned:
      return std::make_unique<Pinned>(options.lanes, options.seed, options.ports);
    case PolicyKind::kAdaptive:
      return std::make_unique<Adaptive>(options.lanes, options.seed);
    case PolicyKind::kEcmp:
    case PolicyKind::kController:
      break;
  }
  return std::make_unique<Ecmp>(options.lanes, options.seed);
}

std::unique_ptr<PathPolicy> open_policy(const DeviceOptions& options, PeerName device, Transport transport,
                                        std::function<void()> wake) {
  auto policy = make_policy(options.policy);
  if (options.policy.kind != PolicyKind::kController) return policy;
  path_client::Options client = options.policy.path_client;
  if (!client.thresholds.rtt_floor) client.thresholds.rtt_floor = 4 * target_queue(options);
  return std::make_unique<ControllerPolicy>(client, device, transport == Transport::kTcp, options.policy.lanes,
                                            std::move(policy), std::move(wake));
}

}  // namespace paralet
