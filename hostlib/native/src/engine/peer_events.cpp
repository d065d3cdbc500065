// SPDX-License-Identifier: Apache-2.0
#include "engine/peer_events.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include "base/ip_address.hpp"

namespace paralet {

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
  fail_peer(peer, own ? Failure::kDevice : Failure::kTransport, error);
}

}  // namespace paralet
