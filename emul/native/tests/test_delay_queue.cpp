// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>

#include "delay_queue.hpp"

using namespace paralet::link_delay;

namespace {

constexpr std::array<std::byte, 4> kFrame{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};

}  // namespace

TEST_CASE("packets leave when they are due, and in order of arrival when they are due at once") {
  DelayQueue queue(1000);
  CHECK(!queue.next_due_ns());
  const std::span frame(kFrame);
  CHECK(queue.push(20, 0, frame.first(1)));
  CHECK(queue.push(10, 1, frame.first(2)));
  CHECK(queue.push(20, 2, frame.first(3)));
  CHECK(queue.next_due_ns() == 10);
  CHECK(!queue.pop(9));
  const auto first = queue.pop(10);
  REQUIRE(first);
  CHECK(first->port == 1);
  CHECK(first->frame == Bytes(kFrame.begin(), kFrame.begin() + 2));
  CHECK(!queue.pop(19));
  CHECK(queue.pop(25)->port == 0);
  CHECK(queue.pop(25)->port == 2);
  CHECK(!queue.pop(25));
  CHECK(queue.bytes() == 0);
}

TEST_CASE("a full queue refuses packets until others have left") {
  DelayQueue queue(7);
  CHECK(queue.push(0, 0, kFrame));
  CHECK(!queue.push(0, 0, kFrame));
  CHECK(queue.push(0, 0, std::span(kFrame).first(3)));
  CHECK(queue.bytes() == 7);
  CHECK(queue.pop(0));
  CHECK(queue.push(0, 0, kFrame));
}

TEST_CASE("all packets have the base delay, and the given share of them up to the given time more") {
  std::mt19937_64 random(1);
  const Delay delay{.base_ns = 1000, .late_share = 0.25, .late_by_ns = 500};
  int count = 0;
  int64_t longest = 0;
  for (int n = 0; n < 4000; ++n) {
    bool late = false;
    const int64_t waited = due_ns(delay, 7, random, late) - 7;
    CHECK(late == (waited > 1000));
    CHECK(waited >= 1000);
    count += late ? 1 : 0;
    longest = std::max(longest, waited);
  }
  CHECK(std::abs(count - 1000) < 150);  // more than five standard deviations
  CHECK(longest <= 1500);
  CHECK(longest > 1450);
  bool late = true;
  CHECK(due_ns({.base_ns = 3, .late_share = 1.0}, 4, random, late) == 7);
  CHECK(!late);
}
