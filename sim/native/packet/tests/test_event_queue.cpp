// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>

#include "context.hpp"

namespace paralet::packet {
namespace {

TEST_CASE("events come in order of time, and events of one time in the order of addition") {
  EventQueue events;
  Random random(1);
  constexpr std::uint32_t kEvents = 1000;
  for (std::uint32_t number = 0; number < kEvents; ++number) events.add(random.below(20), EventKind::kTimer, number);
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

TEST_CASE("an event keeps its kind however many events have been added") {
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
