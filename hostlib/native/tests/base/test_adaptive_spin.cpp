// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "base/adaptive_spin.hpp"

namespace paralet {
namespace {

/// An idle period without work. Returns whether the thread spun before it slept.
bool spins_without_work(AdaptiveSpin& spin) {
  if (!spin.keeps_spinning(0)) return false;
  CHECK(spin.keeps_spinning(AdaptiveSpin::kMaxSpin - 1));
  CHECK_FALSE(spin.keeps_spinning(AdaptiveSpin::kMaxSpin));
  return true;
}

/// An idle period that work ends at once. Returns whether the thread was spinning.
bool spins_until_work(AdaptiveSpin& spin) {
  const bool awake = spin.keeps_spinning(0);
  spin.worked();
  return awake;
}

/// Number of idle periods without work until the thread spins in one.
unsigned periods_until_spin(AdaptiveSpin& spin) {
  for (unsigned waits = 1; waits < 1000; ++waits) {
    if (spins_without_work(spin)) return waits;
  }
  return 0;
}

TEST_CASE("without success the thread spins in every kTryEvery-th idle period") {
  AdaptiveSpin spin;
  for (int i = 0; i < 5; ++i) CHECK(periods_until_spin(spin) == AdaptiveSpin::kTryEvery);
}

TEST_CASE("one successful spin pays for two unsuccessful ones") {
  AdaptiveSpin spin;
  for (unsigned i = 1; i < AdaptiveSpin::kTryEvery; ++i) CHECK_FALSE(spins_without_work(spin));
  CHECK(spins_until_work(spin));
  CHECK(spins_without_work(spin));
  CHECK(spins_without_work(spin));
  CHECK_FALSE(spins_without_work(spin));
}

TEST_CASE("a thread keeps spinning while every second spin succeeds") {
  AdaptiveSpin spin;
  for (unsigned i = 1; i < AdaptiveSpin::kTryEvery; ++i) CHECK_FALSE(spins_without_work(spin));
  for (int i = 0; i < 1000; ++i) {
    CHECK(spins_until_work(spin));
    CHECK(spins_without_work(spin));
  }
}

TEST_CASE("after any number of successes, kMostCredit failures stop the spinning") {
  AdaptiveSpin spin;
  for (int i = 0; i < 1000; ++i) spins_until_work(spin);
  for (int i = 0; i < AdaptiveSpin::kMostCredit; ++i) CHECK(spins_without_work(spin));
  CHECK_FALSE(spins_without_work(spin));
}

TEST_CASE("work that wakes a sleeping thread earns no credit") {
  AdaptiveSpin spin;
  for (unsigned i = 1; i < AdaptiveSpin::kTryEvery; ++i) CHECK_FALSE(spins_until_work(spin));
  CHECK(spins_without_work(spin));
  spin.worked();
  CHECK_FALSE(spins_without_work(spin));
}

TEST_CASE("a thread that has been idle for kMaxSpin sleeps at once") {
  AdaptiveSpin spin;
  for (int i = 0; i < 1000; ++i) spins_until_work(spin);
  CHECK_FALSE(spin.keeps_spinning(AdaptiveSpin::kMaxSpin));
}

}  // namespace
}  // namespace paralet
