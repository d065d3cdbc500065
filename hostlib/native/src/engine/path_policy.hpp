// SPDX-License-Identifier: Apache-2.0
// Which UDP source port, and so which path, a lane takes. A policy is asked when a lane first meets a peer and after
// every finished flowlet; it answers with ports and touches nothing else. `controller` (controller_policy.hpp) also has
// ports pushed to it: the device looks for those between flowlets.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/peer_name.hpp"
#include "path_client/options.hpp"

namespace paralet {

enum class PolicyKind : std::uint8_t { kEcmp, kPinned, kAdaptive, kController };
const char* to_string(PolicyKind kind);

struct PolicyOptions {
  PolicyKind kind = PolicyKind::kEcmp;
  unsigned lanes = 8;
  std::optional<std::uint64_t> seed;  ///< entropy of random ports; nothing: unpredictable
  /// For kPinned: the ports of lane 0, 1, .. by peer address (host byte order), repeated when there are more lanes.
  std::map<std::uint32_t, std::vector<std::uint16_t>> ports;
  controller::Options controller;  ///< for kController
};

/// What a policy sees of a lane when a flowlet has finished.
struct LaneView {
  PeerName peer;
  unsigned lane = 0;
  std::uint16_t port = 0;
  Nanos smoothed_rtt = 0;
  Nanos peer_rtt = 0;             ///< smallest smoothed round trip of the peer's lanes
  std::uint64_t timeouts = 0;     ///< since the policy was asked last
  std::uint64_t retransmits = 0;  ///< so far
  std::uint64_t packets = 0;      ///< sent so far, those sent again included
};

class PathPolicy {
 public:
  virtual ~PathPolicy() = default;
  /// The port a lane starts with.
  virtual std::uint16_t port(PeerName peer, unsigned lane) = 0;
  /// Another port after `port` could not be had, nothing when there is no other choice.
  virtual std::optional<std::uint16_t> alternative(PeerName peer, unsigned lane) = 0;
  /// The port to move to, nothing to stay.
  virtual std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) = 0;
};

/// For kController what is behind it, ECMP. Throws DeviceError for options that cannot work.
std::unique_ptr<PathPolicy> make_policy(const PolicyOptions& options);

}  // namespace paralet
