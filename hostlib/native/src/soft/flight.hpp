// SPDX-License-Identifier: Apache-2.0
// The packets of a requester: which have been sent, acknowledged and lost. Requester and loss recovery both work on it:
// the one sends, the other decides what is sent again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"
#include "soft/scoreboard.hpp"

namespace paralet {

/// Positions count packets from 0; the PSN on the wire is the first PSN plus the position, modulo 2^24.
struct Flight {
  std::uint64_t unacked = 0;       ///< oldest position not acknowledged
  std::uint64_t next = 0;          ///< next position to send
  std::uint64_t highest_sent = 0;  ///< one past the highest position ever sent
  std::uint64_t posted = 0;        ///< one past the last queued position
  Scoreboard board;
  Nanos last_progress = 0;
  unsigned timeouts = 0;                ///< in a row, without progress
  std::uint32_t since_ack_request = 0;  ///< packets sent since one that asks for an acknowledgement
  std::uint32_t reach = UINT32_MAX;     ///< positions, from `unacked` on, that the responder takes
  bool probing = false;                 ///< the oldest packet was sent again, and nothing else leaves before an answer
  bool probe_due = false;               ///< a packet is sent again at once, whatever the window
  bool probed_early = false;            ///< go-back-N: a probe was sent before the timeout, since the last progress
  bool lossy = false;                   ///< packets have been lost on the way to the peer, here or on another QP

  /// Packets in the network, as far as known.
  [[nodiscard]] std::uint64_t in_network() const { return next - unacked - board.sacked() - board.lost(); }
  [[nodiscard]] Scoreboard::Range range() const { return {unacked, highest_sent}; }
  [[nodiscard]] bool all_acknowledged() const { return unacked == highest_sent; }
  /// Packets that wait for the window: lost ones, and new ones that the responder has room for.
  [[nodiscard]] std::uint64_t waiting() const {
    return board.lost() + std::min(posted - next, reach - std::min<std::uint64_t>(reach, next - unacked));
  }
  /// Nothing is in flight any more.
  void clear() {
    next = unacked = highest_sent = posted;
    board.clear();
  }
};

/// Packets that a window must have room for before any is sent: those of a burst leave together after an
/// acknowledgement, not one by one.
inline double least_room(double window, std::uint32_t burst) {
  return std::max(1.0, std::min(static_cast<double>(burst), window / 2));
}
/// Whether the window holds the sender back: it has no room for a burst.
inline bool held_back(const Flight& flight, double window, std::uint32_t burst) {
  return static_cast<double>(flight.in_network()) + least_room(window, burst) > window;
}

}  // namespace paralet
