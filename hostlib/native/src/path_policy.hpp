// SPDX-License-Identifier: Apache-2.0
// Which UDP source port, and so which path, a lane takes. A policy is asked when a lane first meets a peer and after
// every finished flowlet; it answers with ports and touches nothing else. `controller` fits behind the same interface:
// what it pushes goes through Device::set_port.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clock.hpp"

namespace paralet {

enum class PolicyKind : std::uint8_t { kEcmp, kPinned, kAdaptive };

struct PolicyOptions {
  PolicyKind kind = PolicyKind::kEcmp;
  unsigned lanes = 8;
  std::optional<std::uint64_t> seed;  ///< entropy of random ports; nothing: unpredictable
  /// For kPinned: the ports of lane 0, 1, .. by peer address (host byte order), repeated when there are more lanes.
  std::map<std::uint32_t, std::vector<std::uint16_t>> ports;
};

/// What a policy sees of a lane when a flowlet has finished.
struct LaneView {
  std::uint32_t peer = 0;  ///< IPv4 address, host byte order
  unsigned lane = 0;
  std::uint16_t port = 0;
  Nanos smoothed_rtt = 0;
  Nanos peer_rtt = 0;             ///< smallest smoothed round trip of the peer's lanes
  std::uint64_t timeouts = 0;     ///< since the policy was asked last
  std::uint64_t retransmits = 0;  ///< so far
};

class PathPolicy {
 public:
  virtual ~PathPolicy() = default;
  /// The port a lane starts with.
  virtual std::uint16_t port(std::uint32_t peer, unsigned lane) = 0;
  /// Another port after `port` could not be had, nothing when there is no other choice.
  virtual std::optional<std::uint16_t> alternative(std::uint32_t peer, unsigned lane) = 0;
  /// The port to move to, nothing to stay.
  virtual std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) = 0;
};

/// Throws DeviceError for options that cannot work.
std::unique_ptr<PathPolicy> make_policy(const PolicyOptions& options);

}  // namespace paralet
