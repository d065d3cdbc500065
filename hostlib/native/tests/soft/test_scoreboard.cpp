// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include "soft/scoreboard.hpp"

namespace paralet {
namespace {

constexpr Nanos kBoardRoundTrip = 1'000'000;

/// A scoreboard that has measured one round trip, with packet 0.
struct Measured {
  Measured() {
    board.grow({.unacked = 0, .end = 0}, 512);
    board.sent(0, now, true, false);
    now += kBoardRoundTrip;
    CHECK(board.acknowledge({.unacked = 0, .end = 1}, 1, {}, now, kBoardRoundTrip).rtt == kBoardRoundTrip);
  }

  /// Sends `packets` at once, marks them lost, sends them again, and acknowledges them so soon that the first copies
  /// must have arrived.
  void send_again_for_nothing(std::uint64_t packets, bool guessed) {
    const Scoreboard::Range flight{.unacked = next, .end = next + packets};
    for (std::uint64_t i = 0; i < packets; ++i) board.sent(next + i, now, true, false);
    now += kBoardRoundTrip;
    for (std::uint64_t i = 0; i < packets; ++i) {
      board.mark_lost(next + i, guessed);
      board.sent(next + i, now, true, true);
    }
    now += kBoardRoundTrip / 10;
    CHECK(board.acknowledge(flight, next + packets, {}, now, kBoardRoundTrip).packets == packets);
    next += packets;
    now += 2 * kBoardRoundTrip;
  }

  /// How much longer than a round trip a packet is missing before it counts as lost.
  Nanos reordering_window() {
    const Nanos start = now;
    board.sent(next, start, true, false);
    board.sent(next + 1, start, true, false);
    const Scoreboard::Range flight{.unacked = next, .end = next + 2};
    const std::byte second{0x80};
    now += kBoardRoundTrip;
    board.acknowledge(flight, next, {&second, 1}, now, kBoardRoundTrip);
    CHECK(board.detect_losses(flight, now, kBoardRoundTrip) == 0);
    const Nanos lost_at = board.deadline();
    CHECK(board.detect_losses(flight, lost_at, kBoardRoundTrip) == 1);
    board.sent(next, lost_at, true, true);
    now = lost_at + kBoardRoundTrip;
    board.acknowledge(flight, next + 2, {}, now, kBoardRoundTrip);
    next += 2;
    now += 2 * kBoardRoundTrip;
    return lost_at - start - kBoardRoundTrip;
  }

  Scoreboard board;
  Nanos now = kBoardRoundTrip;
  std::uint64_t next = 1;
};

TEST_CASE("packets that were sent again for nothing widen the reordering window by one step per round trip") {
  Measured path;
  CHECK(path.reordering_window() == kBoardRoundTrip / 4);
  for (int steps = 2; steps <= 4; ++steps) {
    path.send_again_for_nothing(100, false);
    const Nanos window = path.reordering_window();
    CHECK(window > (steps - 1) * kBoardRoundTrip / 4);  // old lateness fades
    CHECK(window <= steps * kBoardRoundTrip / 4);
  }
  for (int i = 0; i < 100; ++i) path.send_again_for_nothing(1, false);
  CHECK(path.reordering_window() == 2 * kBoardRoundTrip);  // the widest
}

TEST_CASE("a probe, or a new path, that was only a guess does not widen the reordering window") {
  Measured path;
  for (int i = 0; i < 10; ++i) path.send_again_for_nothing(100, true);
  CHECK(path.reordering_window() == kBoardRoundTrip / 4);
}

}  // namespace
}  // namespace paralet
