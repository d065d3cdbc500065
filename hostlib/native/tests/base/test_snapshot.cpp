// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "base/snapshot.hpp"

namespace paralet {
namespace {

struct Odd {  // no multiple of a word
  std::uint64_t first = 1;
  std::array<std::uint8_t, 5> rest{};
};

TEST_CASE("a snapshot starts with a value and shows the one published last") {
  Snapshot<Odd> snapshot;
  CHECK(snapshot.read().first == 1);
  snapshot.publish({.first = 2, .rest = {1, 2, 3, 4, 5}});
  snapshot.publish({.first = 3, .rest = {5, 4, 3, 2, 1}});
  CHECK(snapshot.read().first == 3);
  CHECK(snapshot.read().rest == std::array<std::uint8_t, 5>{5, 4, 3, 2, 1});
  const Snapshot<int> given(7);
  CHECK(given.read() == 7);
}

TEST_CASE("a reader never sees parts of two values, nor an older one after a newer one") {
  using Values = std::array<std::uint64_t, 16>;
  constexpr std::uint64_t kLast = 20'000;
  Snapshot<Values> snapshot;
  std::thread publisher([&snapshot] {
    Values values{};
    for (std::uint64_t i = 1; i <= kLast; ++i) {
      values.fill(i);
      snapshot.publish(values);
    }
  });
  std::uint64_t wrong = 0;
  for (std::uint64_t seen = 0; seen < kLast;) {
    const Values values = snapshot.read();
    for (const std::uint64_t value : values) wrong += value != values[0] ? 1 : 0;
    wrong += values[0] < seen ? 1 : 0;
    seen = values[0];
  }
  publisher.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace paralet
