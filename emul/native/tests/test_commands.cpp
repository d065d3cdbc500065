// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <stdexcept>

#include "commands.hpp"

using namespace paralet::link_delay;

TEST_CASE("commands are read") {
  CHECK(std::holds_alternative<Counts>(parse("counts")));
  const auto set = std::get<Set>(parse("set leaf1-eth5 delay-0 50000 0.25 1000000"));
  CHECK(set.interface == "leaf1-eth5");
  CHECK(set.tap == "delay-0");
  CHECK(set.delay.base_ns == 50'000);
  CHECK(set.delay.late_share == 0.25);
  CHECK(set.delay.late_by_ns == 1'000'000);
}

TEST_CASE("other lines are refused") {
  for (const char* line : {"", "count", "counts all", "set leaf1-eth5 delay-0 50000 0.25", "set a b 1 0.5 2 3",
                           "set a b -1 0.5 2", "set a b 1 1.5 2", "set a b 1 nan 2", "set a b 1 0.5 -2"}) {
    CAPTURE(line);
    CHECK_THROWS_AS(parse(line), std::invalid_argument);
  }
}
