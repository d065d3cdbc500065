// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "engine/core_sharing.hpp"

namespace paralet {
namespace {

/// Idle rounds until the thread yields.
unsigned rounds_until_yield(CoreSharing& sharing) {
  unsigned rounds = 1;
  while (!sharing.yields()) ++rounds;
  return rounds;
}

TEST_CASE("a thread with a core of its own yields in every kTryEvery-th idle round") {
  CoreSharing sharing;
  for (int i = 0; i < 3; ++i) {
    CHECK(rounds_until_yield(sharing) == CoreSharing::kTryEvery);
    sharing.yielded(CoreSharing::kSwitched - 1);
  }
}

TEST_CASE("while other threads run on its core, a thread yields in every idle round") {
  CoreSharing sharing;
  CHECK(rounds_until_yield(sharing) == CoreSharing::kTryEvery);
  for (int i = 0; i < 1000; ++i) {
    sharing.yielded(i % 2 == 0 ? CoreSharing::kSwitched : 0);
    CHECK(rounds_until_yield(sharing) == 1);
  }
}

TEST_CASE("a thread that has its core back yields kStays times more") {
  CoreSharing sharing;
  sharing.yielded(CoreSharing::kSwitched);
  for (unsigned i = 0; i < CoreSharing::kStays; ++i) {
    CHECK(rounds_until_yield(sharing) == 1);
    sharing.yielded(0);
  }
  CHECK(rounds_until_yield(sharing) > 1);
}

}  // namespace
}  // namespace paralet
