// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <span>

#include "prober/router_limits.hpp"

namespace paralet::prober {
namespace {

constexpr std::uint32_t kFirstRouter = 0x0A000001;

unsigned leaving(RouterLimits& limits, std::span<const std::size_t> routers, Nanos now) {
  unsigned count = 0;
  for (; count < 1000 && limits.ready_at(routers) <= now; ++count) limits.charge(routers, now);
  return count;
}

TEST_CASE("unknown routers at one hop are together asked no faster than one router answers") {
  RouterLimits limits(1, 6);
  const auto unknown = RouterLimits::unknown(2);
  CHECK(leaving(limits, unknown, kSecond) == 6);
  CHECK(limits.ready_at(unknown) > kSecond + kSecond / 2);
  CHECK(leaving(limits, RouterLimits::unknown(3), kSecond) == 6);  // these are others
  CHECK(leaving(limits, RouterLimits::unknown(255), kSecond) == 6);
  CHECK(leaving(limits, unknown, 2 * kSecond) == 1);
  CHECK(leaving(limits, unknown, 100 * kSecond) == 6);
}

TEST_CASE("each router that a place is known to have adds its own rate") {
  RouterLimits limits(1, 6);
  RouterLimits::Routers place;
  for (std::uint32_t i = 0; i < 4; ++i) limits.answered(place, kFirstRouter + i, 0);
  REQUIRE(place.size() == 4);
  limits.answered(place, kFirstRouter, 0);
  CHECK(place.size() == 4);
  CHECK(leaving(limits, place, 0) == 20);  // six each, of which each has given one
  CHECK(leaving(limits, place, kSecond) == 4);
}

TEST_CASE("a router that is known by two places is charged for both") {
  RouterLimits limits(1, 6);
  RouterLimits::Routers one;
  RouterLimits::Routers other;
  limits.answered(one, kFirstRouter, 0);
  limits.answered(other, kFirstRouter, 0);
  CHECK(leaving(limits, one, 0) == 5);
  CHECK(leaving(limits, other, 0) == 0);
}

TEST_CASE("a probe costs the router that has answered it, not those that might have") {
  RouterLimits limits(1, 6);
  RouterLimits::Routers first;
  limits.answered(first, kFirstRouter, 0);
  RouterLimits::Routers both = first;
  limits.answered(both, kFirstRouter + 1, 0);
  for (int probe = 0; probe < 5; ++probe) {
    REQUIRE(limits.ready_at(first) <= 0);
    limits.charge(first, 0);
    limits.answered(both, kFirstRouter + 1, 0, first);  // another one than was known
  }
  CHECK(leaving(limits, std::span(both).last(1), 0) == 0);
  CHECK(leaving(limits, first, 0) == 5);
}

TEST_CASE("without a limit every probe may leave") {
  RouterLimits limits(0, 6);
  CHECK(leaving(limits, RouterLimits::unknown(1), 0) == 1000);
}

TEST_CASE("answers of any number of addresses take bounded memory, and do not raise the rate beyond it") {
  RouterLimits limits(1, 6);
  RouterLimits::Routers place;
  for (std::uint32_t i = 0; i < 3 * RouterLimits::kMostRouters; ++i) limits.answered(place, kFirstRouter + i, 0);
  CHECK(place.size() == RouterLimits::kMostRouters);
}

}  // namespace
}  // namespace paralet::prober
