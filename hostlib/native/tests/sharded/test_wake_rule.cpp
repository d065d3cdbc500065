// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "sharded/wake_rule.hpp"

namespace paralet {
namespace {

TEST_CASE("a caller runs short work itself and leaves long work to the thread") {
  CHECK(WakeRule::runs_posted(0));
  CHECK(WakeRule::runs_posted(WakeRule::kShortBytes));
  CHECK_FALSE(WakeRule::runs_posted(WakeRule::kShortBytes + 1));
}

TEST_CASE("a thread takes over after a run of rounds that found something") {
  WakeRule rule;
  for (int again = 0; again < 2; ++again) {
    for (unsigned i = 1; i < WakeRule::kLongRun; ++i) CHECK_FALSE(rule.looked(true));
    CHECK(rule.looked(true));
  }
}

TEST_CASE("a round that found nothing ends the run") {
  WakeRule rule;
  for (unsigned i = 1; i < WakeRule::kLongRun; ++i) CHECK_FALSE(rule.looked(true));
  CHECK_FALSE(rule.looked(false));
  for (unsigned i = 1; i < WakeRule::kLongRun; ++i) CHECK_FALSE(rule.looked(true));
  CHECK(rule.looked(true));
}

}  // namespace
}  // namespace paralet
