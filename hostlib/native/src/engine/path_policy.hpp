// SPDX-License-Identifier: Apache-2.0
// The path policies that need no path service: ECMP, pinned and adaptive.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ip_address.hpp"
#include "path_client/options.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

enum class PolicyKind : std::uint8_t { kEcmp, kPinned, kAdaptive, kController };
const char* to_string(PolicyKind kind);

struct PolicyOptions {
  PolicyKind kind = PolicyKind::kEcmp;
  unsigned lanes = 8;
  std::optional<std::uint64_t> seed;  ///< entropy of random ports; nothing: unpredictable
  /// For kPinned: the ports of lane 0, 1, .. by peer address, repeated when there are more lanes.
  std::map<IpAddress, std::vector<std::uint16_t>> ports;
  path_client::Options path_client;  ///< for kController
};

/// For kController this is the fallback, ECMP. Throws DeviceError for invalid options.
std::unique_ptr<PathPolicy> make_policy(const PolicyOptions& options);

}  // namespace paralet
