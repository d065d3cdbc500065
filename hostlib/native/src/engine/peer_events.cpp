// SPDX-License-Identifier: Apache-2.0
#include "engine/peer_events.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include "base/ip_address.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr std::uint32_t kFitsEverywhere = 1024;  // path MTU of packets that links of MTU 1,280 take, IPv6's smallest

}  // namespace

void PeerEvents::fail_lane(Peer& peer, unsigned index, const Completion& why) {
  const Status status = why.status;
  const bool own = status == Status::kPortDown || status == Status::kDeviceLost || status == Status::kSendRefused;
  std::string error =
      "lane " + std::to_string(index) + " to " + format_address(peer.address) + ": " + to_string(status);
  if (status == Status::kSendRefused) {
    const int number = static_cast<int>(why.imm);
    error += std::string(": ") + std::strerror(number) + " (errno " + std::to_string(number) + ")";
    if (number == EMSGSIZE || number == EINVAL) {
      error += "; the path MTU is " + std::to_string(peer.path_mtu) + " bytes: choose one that fits the route's MTU";
    }
  }
  if (status == Status::kRetryExceeded && peer.path_mtu > kFitsEverywhere) {
    const std::size_t longest =
        peer.path_mtu + wire::kMaxOverheadBytes + (peer.address.is_ipv4() ? 0 : wire::kIpv6ExtraBytes);
    error += "; its packets have up to " + std::to_string(longest) + " bytes (path MTU " +
             std::to_string(peer.path_mtu) +
             "): where a link drops such packets without telling, choose a smaller path MTU";
  }
  fail_peer(peer, own ? Failure::kDevice : Failure::kTransport, error);
}

}  // namespace paralet
