// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>

#include "core.hpp"

namespace paralet::packet {
namespace {

TEST_CASE("events come by their time, and those of one moment as they were added") {
  EventQueue events;
  Dice dice(1);
  constexpr std::uint32_t kEvents = 1000;
  for (std::uint32_t number = 0; number < kEvents; ++number) events.add(dice.below(20), EventKind::kTimer, number);
  Event last = events.take();
  for (std::uint32_t count = 1; count < kEvents; ++count) {
    REQUIRE(!events.empty());
    const Event event = events.take();
    const bool later = event.at > last.at || (event.at == last.at && event.subject > last.subject);
    CHECK(later);
    last = event;
  }
  CHECK(events.empty());
}

TEST_CASE("an event knows its kind however many there have been") {
  EventQueue events;
  for (int i = 0; i < 1000; ++i) {
    events.add(i, EventKind::kFlush, 7);
    events.add(i, EventKind::kSent, 8);
    CHECK(events.take().kind() == EventKind::kFlush);
    CHECK(events.take().kind() == EventKind::kSent);
  }
}

}  // namespace
}  // namespace paralet::packet
