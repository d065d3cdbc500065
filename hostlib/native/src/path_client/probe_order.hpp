// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "path_client/messages.hpp"

namespace paralet::path_client {

/// A destination QPN for probes to a peer whose QPs are not known.
inline constexpr std::uint32_t kSomeQpn = 0x00FFFE;

/// The QPNs that packets to a peer carry. Some switches hash them, so a probe carries that of the lane which has its
/// source port; of a port that no lane has, that of the first lane.
struct PeerLanes {
  PeerName peer;
  std::vector<std::uint32_t> qpns;   ///< the peer's, of lane 0, 1, ..
  std::vector<std::uint16_t> ports;  ///< assigned to lane 0, 1, ..; repeated where there are more lanes

  [[nodiscard]] bool has(std::uint16_t port) const { return std::ranges::find(ports, port) != ports.end(); }
  [[nodiscard]] std::uint32_t qpn_of(std::uint16_t port) const {
    const auto lane = static_cast<std::size_t>(std::ranges::find(ports, port) - ports.begin());
    if (lane < ports.size() && lane < qpns.size()) return qpns[lane];
    return qpns.empty() ? kSomeQpn : qpns.front();
  }
};

/// What the service wants probed, and what the probes need for it.
using ProbeOrder = std::variant<ProbeAsk, Watch, PeerLanes>;

}  // namespace paralet::path_client
