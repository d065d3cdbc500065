// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "engine/adaptive_spin.hpp"

namespace paralet {
namespace {

/// A wait in which no work comes: whether the thread stayed awake for a while before it slept.
bool in_vain(AdaptiveSpin& spin) {
  if (!spin.keeps_spinning(0)) return false;
  CHECK(spin.keeps_spinning(AdaptiveSpin::kMaxSpin - 1));
  CHECK_FALSE(spin.keeps_spinning(AdaptiveSpin::kMaxSpin));
  return true;
}

/// A wait in which work comes at once: whether the thread was still awake.
bool rewarded(AdaptiveSpin& spin) {
  const bool awake = spin.keeps_spinning(0);
  spin.worked();
  return awake;
}

/// Waits until the thread stays awake for one, all of them in vain.
unsigned waits_until_tried(AdaptiveSpin& spin) {
  for (unsigned waits = 1; waits < 1000; ++waits) {
    if (in_vain(spin)) return waits;
  }
  return 0;
}

TEST_CASE("where staying awake is in vain it is tried now and then") {
  AdaptiveSpin spin;
  for (int i = 0; i < 5; ++i) CHECK(waits_until_tried(spin) == AdaptiveSpin::kTryEvery);
}

TEST_CASE("work that comes meanwhile makes up for two waits in vain") {
  AdaptiveSpin spin;
  for (unsigned i = 1; i < AdaptiveSpin::kTryEvery; ++i) CHECK_FALSE(in_vain(spin));
  CHECK(rewarded(spin));
  CHECK(in_vain(spin));
  CHECK(in_vain(spin));
  CHECK_FALSE(in_vain(spin));
}

TEST_CASE("a thread stays awake as long as every other wait is worth it") {
  AdaptiveSpin spin;
  for (unsigned i = 1; i < AdaptiveSpin::kTryEvery; ++i) CHECK_FALSE(in_vain(spin));
  for (int i = 0; i < 1000; ++i) {
    CHECK(rewarded(spin));
    CHECK(in_vain(spin));
  }
}

TEST_CASE("however often it was worth it, it soon stops once it is in vain") {
  AdaptiveSpin spin;
  for (int i = 0; i < 1000; ++i) rewarded(spin);
  for (int i = 0; i < AdaptiveSpin::kMostCredit; ++i) CHECK(in_vain(spin));
  CHECK_FALSE(in_vain(spin));
}

TEST_CASE("work that wakes a thread which slept earns nothing") {
  AdaptiveSpin spin;
  for (unsigned i = 1; i < AdaptiveSpin::kTryEvery; ++i) CHECK_FALSE(rewarded(spin));
  CHECK(in_vain(spin));
  spin.worked();
  CHECK_FALSE(in_vain(spin));
}

TEST_CASE("a thread that has waited for long already sleeps at once") {
  AdaptiveSpin spin;
  for (int i = 0; i < 1000; ++i) rewarded(spin);
  CHECK_FALSE(spin.keeps_spinning(AdaptiveSpin::kMaxSpin));
}

}  // namespace
}  // namespace paralet
