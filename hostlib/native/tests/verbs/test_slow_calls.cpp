// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <poll.h>

#include <thread>
#include <vector>

#include "verbs/slow_calls.hpp"

namespace paralet::verbs {
namespace {

bool readable(const SlowCalls& calls, int timeout_ms) {
  pollfd watched{.fd = calls.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, timeout_ms) > 0;
}

TEST_CASE("results are applied by the thread that asks, in the order of the calls") {
  SlowCalls calls;
  const std::thread::id own = std::this_thread::get_id();
  std::vector<int> applied;
  for (int i = 0; i < 100; ++i) {
    calls.start([&, i]() -> SlowCalls::Then {
      CHECK(std::this_thread::get_id() != own);
      return [&, i] {
        CHECK(std::this_thread::get_id() == own);
        applied.push_back(i);
        calls.finish();  // as the adoption of a queue pair does
      };
    });
  }
  while (applied.size() < 100) {
    REQUIRE(readable(calls, 10'000));
    calls.finish();
  }
  for (int i = 0; i < 100; ++i) CHECK(applied[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("the event is there as long as results are") {
  SlowCalls calls;
  CHECK_FALSE(readable(calls, 0));
  for (int i = 0; i < 3; ++i) {
    int applied = 0;
    for (int j = 0; j < 2; ++j) {
      calls.start([&]() -> SlowCalls::Then { return [&] { ++applied; }; });
    }
    while (applied < 2) {
      REQUIRE(readable(calls, 10'000));
      calls.finish();
    }
    CHECK_FALSE(readable(calls, 0));
  }
}

TEST_CASE("calls that have started are made before the end") {
  bool made = false;
  {
    SlowCalls calls;
    calls.start([&]() -> SlowCalls::Then {
      made = true;
      return [] {};
    });
  }
  CHECK(made);
}

}  // namespace
}  // namespace paralet::verbs
