// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <deque>
#include <memory>

#include "base/random.hpp"
#include "base/ring.hpp"

namespace paralet {
namespace {

TEST_CASE("a ring is a queue under any mixture of pushes and pops") {
  SplitMix64 random(2);
  Ring<int> ring;
  std::deque<int> expected;
  for (int i = 0; i < 20'000; ++i) {
    // Growing and shrinking phases, so that it wraps around at many sizes.
    const bool growing = (i / 500) % 2 == 0;
    if (expected.empty() || random.uniform() < (growing ? 0.6 : 0.4)) {
      ring.push_back(i);
      expected.push_back(i);
    } else {
      ring.pop_front();
      expected.pop_front();
    }
    REQUIRE(ring.size() == expected.size());
    REQUIRE(ring.empty() == expected.empty());
    if (expected.empty()) continue;
    REQUIRE(ring.front() == expected.front());
    REQUIRE(ring.back() == expected.back());
    const std::size_t index = random.below(expected.size());
    REQUIRE(ring[index] == expected[index]);
  }
  ring.clear();
  CHECK(ring.empty());
}

TEST_CASE("a popped element is destroyed at once") {
  Ring<std::shared_ptr<int>> ring;
  const auto value = std::make_shared<int>(1);
  ring.push_back(value);
  CHECK(value.use_count() == 2);
  ring.pop_front();
  CHECK(value.use_count() == 1);
}

TEST_CASE("release frees the memory of an empty ring only") {
  Ring<int> ring;
  for (int i = 0; i < 10; ++i) ring.push_back(i);
  ring.release();
  REQUIRE(ring.size() == 10);
  CHECK(ring.back() == 9);
  ring.clear();
  ring.release();
  CHECK(ring.empty());
  for (int i = 0; i < 10; ++i) ring.push_back(i);
  CHECK(ring.front() == 0);
  CHECK(ring.back() == 9);
}

}  // namespace
}  // namespace paralet
