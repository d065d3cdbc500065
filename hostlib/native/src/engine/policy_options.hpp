// SPDX-License-Identifier: Apache-2.0
// Which path policy a device has.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ip_address.hpp"
#include "path_client/options.hpp"

namespace paralet {

enum class PolicyKind : std::uint8_t { kEcmp, kPinned, kAdaptive, kController };
const char* to_string(PolicyKind kind);

/// What m lanes are for: each peer, or all peers of the host together (ParaLet, section 5.3).
enum class LanesPer : std::uint8_t { kPeer, kHost };
const char* to_string(LanesPer per);

struct PolicyOptions {
  PolicyKind kind = PolicyKind::kEcmp;
  unsigned lanes = 8;
  LanesPer lanes_per = LanesPer::kPeer;
  std::optional<std::uint64_t> seed;  ///< entropy of random ports; nothing: unpredictable
  /// For kPinned: the ports of lane 0, 1, .. by peer address, repeated when there are more lanes.
  std::map<IpAddress, std::vector<std::uint16_t>> ports;
  path_client::Options path_client;  ///< for kController
};

}  // namespace paralet
