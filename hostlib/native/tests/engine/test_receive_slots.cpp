// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "base/random.hpp"
#include "engine/receive_slots.hpp"

namespace paralet {
namespace {

TEST_CASE("receive slots: a slot names its receive until it is released") {
  ReceiveSlots slots;
  Request a;
  Request b;
  const std::uint16_t of_a = slots.take(a);
  const std::uint16_t of_b = slots.take(b);
  CHECK(of_a != of_b);
  CHECK(slots.at(of_a) == &a);
  CHECK(slots.at(of_b) == &b);
  slots.release(of_a);
  CHECK(slots.at(of_a) == nullptr);
  CHECK(slots.at(of_b) == &b);
}

TEST_CASE("receive slots: numbers that were never given name nothing") {
  ReceiveSlots slots;
  Request receive;
  const std::uint16_t slot = slots.take(receive);
  CHECK(slots.at(slot + 1U) == nullptr);
  CHECK(slots.at(65536) == nullptr);
  CHECK(slots.at(UINT32_MAX) == nullptr);
}

TEST_CASE("receive slots: a registration is awaited while a receive with it is open") {
  ReceiveSlots slots;
  Request registered;
  registered.rkey = 5;
  Request temporary;
  temporary.temporary_rkey = 6;
  const std::uint16_t first = slots.take(registered);
  const std::uint16_t second = slots.take(temporary);
  CHECK(slots.awaits(5));
  CHECK(slots.awaits(6));
  CHECK_FALSE(slots.awaits(7));
  slots.release(first);
  CHECK_FALSE(slots.awaits(5));
  slots.release(second);
  CHECK_FALSE(slots.awaits(6));
}

TEST_CASE("receive slots: 65536 are open at most, each with a number of its own") {
  ReceiveSlots slots;
  Request receive;
  std::vector<bool> given(ReceiveSlots::kMost);
  for (std::size_t i = 0; i < ReceiveSlots::kMost; ++i) {
    REQUIRE_FALSE(slots.full());
    const std::uint16_t slot = slots.take(receive);
    REQUIRE_FALSE(given[slot]);
    given[slot] = true;
  }
  CHECK(slots.full());
  slots.release(1234);
  CHECK_FALSE(slots.full());
  CHECK(slots.take(receive) == 1234);
}

TEST_CASE("receive slots: random order: every slot names what a map says") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    ReceiveSlots slots;
    std::vector<Request> receives(40);
    std::map<std::uint16_t, Request*> open;
    for (unsigned i = 0; i < 200; ++i) {
      if (open.empty() || random.below(2) == 0) {
        Request& receive = receives[random.below(receives.size())];
        const std::uint16_t slot = slots.take(receive);
        REQUIRE(open.emplace(slot, &receive).second);
      } else {
        const auto chosen = std::next(open.begin(), static_cast<std::ptrdiff_t>(random.below(open.size())));
        slots.release(chosen->first);
        open.erase(chosen);
      }
      for (std::uint32_t slot = 0; slot < 110; ++slot) {
        const auto found = open.find(static_cast<std::uint16_t>(slot));
        REQUIRE(slots.at(slot) == (found != open.end() ? found->second : nullptr));
      }
    }
  }
}

}  // namespace
}  // namespace paralet
