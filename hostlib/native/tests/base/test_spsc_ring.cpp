// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/spsc_ring.hpp"

namespace paralet {
namespace {

TEST_CASE("a ring gives values back in order and says when it is full or empty") {
  SpscRing<int> ring(4);
  int value = 0;
  CHECK(ring.empty());
  CHECK(!ring.pop(value));
  for (int round = 0; round < 3; ++round) {  // past the end of the memory
    for (int i = 0; i < 4; ++i) CHECK(ring.push(10 * round + i));
    CHECK(!ring.push(99));
    CHECK(!ring.empty());
    for (int i = 0; i < 4; ++i) {
      REQUIRE(ring.pop(value));
      CHECK(value == 10 * round + i);
    }
    CHECK(!ring.pop(value));
    CHECK(ring.empty());
  }
}

TEST_CASE("a ring keeps nothing of a value that was taken") {
  SpscRing<std::shared_ptr<int>> ring(2);
  const auto given = std::make_shared<int>(7);
  REQUIRE(ring.push(given));
  CHECK(given.use_count() == 2);
  {
    std::shared_ptr<int> taken;
    REQUIRE(ring.pop(taken));
    CHECK(*taken == 7);
  }
  CHECK(given.use_count() == 1);
}

TEST_CASE("what one thread pushes another pops, whole and in order") {
  struct Item {
    std::uint64_t number = 0;
    std::uint64_t square = 0;
  };
  constexpr std::uint64_t kItems = 50'000;
  SpscRing<Item> ring(64);
  std::thread pusher([&ring] {
    for (std::uint64_t i = 0; i < kItems; ++i) {
      while (!ring.push({.number = i, .square = i * i})) std::this_thread::yield();
    }
  });
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kItems; ++i) {
    Item item;
    while (!ring.pop(item)) std::this_thread::yield();
    wrong += item.number != i || item.square != i * i ? 1 : 0;
  }
  pusher.join();
  CHECK(wrong == 0);
  CHECK(ring.empty());
}

}  // namespace
}  // namespace paralet
