// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "poll_deadline.hpp"

namespace paralet::driver {
namespace {

/// Rounds without progress until the deadline is noticed.
int rounds_until_late(PollDeadline deadline) {
  int rounds = 0;
  const auto poll = [&] {
    while (true) {
      ++rounds;
      deadline.poll(false, [] { return std::string("message 7"); });
    }
  };
  CHECK_THROWS_WITH_AS(poll(), "timed out after 0.005 s waiting for message 7", NetError);
  return rounds;
}

TEST_CASE("a loop that naps notices its deadline after the nap that passes it") {
  CHECK(rounds_until_late(PollDeadline(0.005, Idle::kNap)) <= 6);  // a nap takes at least a millisecond
}

TEST_CASE("a loop that spins notices its deadline, and reads the clock seldom") {
  CHECK(rounds_until_late(PollDeadline(0.005, Idle::kSpin)) % 256 == 0);
}

}  // namespace
}  // namespace paralet::driver
