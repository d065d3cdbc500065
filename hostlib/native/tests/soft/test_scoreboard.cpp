// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include "soft/scoreboard.hpp"

using namespace paralet;

TEST_CASE("an acknowledgement of many packets that were only late leaves a reordering window of round trips") {
  constexpr std::uint64_t kLate = 200;  // each doubles the window
  constexpr std::uint64_t kLast = kLate + 1;
  constexpr Nanos kRoundTrip = 1'000'000;
  Scoreboard board;
  board.grow({.unacked = 0, .end = 0}, kLast + 1);
  board.sent(0, kRoundTrip, true, false);
  CHECK(board.acknowledge({.unacked = 0, .end = 1}, 1, {}, 2 * kRoundTrip, kRoundTrip).rtt == kRoundTrip);

  // Sent again just before they are acknowledged, so that the first ones were only late.
  for (std::uint64_t position = 1; position <= kLate; ++position) board.sent(position, 3 * kRoundTrip, true, true);
  const Nanos now = 3 * kRoundTrip + kRoundTrip / 10;
  CHECK(board.acknowledge({.unacked = 1, .end = kLate + 1}, kLate + 1, {}, now, kRoundTrip).packets == kLate);

  // The packet at kLast is overtaken by the one behind it, and is lost four round trips later than without reordering.
  board.sent(kLast, now, true, false);
  board.sent(kLast + 1, now + 1, true, false);
  const Scoreboard::Range flight{.unacked = kLast, .end = kLast + 2};
  const std::byte second{0x80};
  board.acknowledge(flight, kLast, {&second, 1}, now + 1 + kRoundTrip, kRoundTrip);
  CHECK(board.detect_losses(flight, now + 1 + kRoundTrip, kRoundTrip) == 0);
  CHECK(board.deadline() == now + kRoundTrip + 4 * kRoundTrip);
  CHECK(board.detect_losses(flight, board.deadline(), kRoundTrip) == 1);
}
