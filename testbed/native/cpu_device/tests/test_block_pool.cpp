// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "block_pool.hpp"

namespace paralet::cpu_device {
namespace {

// Never destroyed, as the device's: idle threads outlive the tests.
BlockPool& pool() {
  static BlockPool& only = *new BlockPool();
  return only;
}

TEST_CASE("all blocks run at the same time, and run() returns after all") {
  constexpr unsigned blocks = 8;
  for (int round = 0; round < 50; ++round) {
    std::barrier together(blocks);
    std::atomic<unsigned> seen = 0;
    pool().run(blocks, [&](unsigned block) {
      together.arrive_and_wait();  // never ends with fewer threads than blocks
      seen += 1U << block;
    });
    CHECK(seen == (1U << blocks) - 1);
  }
}

TEST_CASE("launches of several threads run at the same time") {
  constexpr unsigned launches = 4;
  constexpr unsigned blocks = 3;
  std::barrier together(launches * blocks);
  std::vector<std::thread> callers;
  std::atomic<unsigned> ran = 0;
  for (unsigned i = 0; i < launches; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        pool().run(blocks, [&](unsigned) {
          together.arrive_and_wait();
          ++ran;
        });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(ran == launches * blocks * 20);
}

TEST_CASE("a launch without blocks ends at once") {
  pool().run(0, [](unsigned) { FAIL("there is no block"); });
}

}  // namespace
}  // namespace paralet::cpu_device
