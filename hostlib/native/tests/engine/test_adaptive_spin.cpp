// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "engine/adaptive_spin.hpp"

namespace paralet {
namespace {

/// A wait in which no work comes: whether the thread stayed awake for a while before it slept.
bool in_vain(Lingering& lingering) {
  if (!lingering.goes_on(0)) return false;
  CHECK(lingering.goes_on(Lingering::kLongest - 1));
  CHECK_FALSE(lingering.goes_on(Lingering::kLongest));
  return true;
}

/// A wait in which work comes at once: whether the thread was still awake.
bool rewarded(Lingering& lingering) {
  const bool awake = lingering.goes_on(0);
  lingering.worked();
  return awake;
}

/// Waits until the thread stays awake for one, all of them in vain.
unsigned waits_until_tried(Lingering& lingering) {
  for (unsigned waits = 1; waits < 1000; ++waits) {
    if (in_vain(lingering)) return waits;
  }
  return 0;
}

TEST_CASE("where staying awake is in vain it is tried now and then") {
  Lingering lingering;
  for (int i = 0; i < 5; ++i) CHECK(waits_until_tried(lingering) == Lingering::kTryEvery);
}

TEST_CASE("work that comes meanwhile makes up for two waits in vain") {
  Lingering lingering;
  for (unsigned i = 1; i < Lingering::kTryEvery; ++i) CHECK_FALSE(in_vain(lingering));
  CHECK(rewarded(lingering));
  CHECK(in_vain(lingering));
  CHECK(in_vain(lingering));
  CHECK_FALSE(in_vain(lingering));
}

TEST_CASE("a thread stays awake as long as every other wait is worth it") {
  Lingering lingering;
  for (unsigned i = 1; i < Lingering::kTryEvery; ++i) CHECK_FALSE(in_vain(lingering));
  for (int i = 0; i < 1000; ++i) {
    CHECK(rewarded(lingering));
    CHECK(in_vain(lingering));
  }
}

TEST_CASE("however often it was worth it, it soon stops once it is in vain") {
  Lingering lingering;
  for (int i = 0; i < 1000; ++i) rewarded(lingering);
  for (int i = 0; i < Lingering::kMostCredit; ++i) CHECK(in_vain(lingering));
  CHECK_FALSE(in_vain(lingering));
}

TEST_CASE("work that wakes a thread which slept earns nothing") {
  Lingering lingering;
  for (unsigned i = 1; i < Lingering::kTryEvery; ++i) CHECK_FALSE(rewarded(lingering));
  CHECK(in_vain(lingering));
  lingering.worked();
  CHECK_FALSE(in_vain(lingering));
}

TEST_CASE("a thread that has waited for long already sleeps at once") {
  Lingering lingering;
  for (int i = 0; i < 1000; ++i) rewarded(lingering);
  CHECK_FALSE(lingering.goes_on(Lingering::kLongest));
}

}  // namespace
}  // namespace paralet
