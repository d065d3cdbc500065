// SPDX-License-Identifier: Apache-2.0
// Which UDP source port, and so which path, a lane takes. The engine asks a policy when a lane first meets a peer and
// after every finished flowlet. A policy answers with ports and has no other effect.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.hpp"
#include "wire/peer_name.hpp"

namespace paralet {

/// The state of a lane that a policy gets when a flowlet has finished.
struct LaneView {
  PeerName peer;
  unsigned lane = 0;
  std::uint16_t port = 0;
  Nanos smoothed_rtt = 0;
  Nanos peer_rtt = 0;             ///< smallest smoothed round trip of the peer's lanes
  std::uint64_t timeouts = 0;     ///< since the last call of after_flowlet
  std::uint64_t retransmits = 0;  ///< so far
  std::uint64_t packets = 0;      ///< sent so far, those sent again included
};

class PathPolicy {
 public:
  virtual ~PathPolicy() = default;
  /// The port a lane starts with.
  virtual std::uint16_t port(PeerName peer, unsigned lane) = 0;
  /// Another port after the last one was not available, nothing when there is no other choice. Calls for one lane give
  /// every port of RoCEv2's range once before any of them again.
  virtual std::optional<std::uint16_t> alternative(PeerName peer, unsigned lane) = 0;
  /// The port to move to, nothing to stay.
  virtual std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) = 0;
  /// Whether a lane that is to move to `port`, which is not available, may take an `alternative`.
  [[nodiscard]] virtual bool takes_other(PeerName peer, unsigned lane, std::uint16_t port) const = 0;
};

}  // namespace paralet
