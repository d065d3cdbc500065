// SPDX-License-Identifier: Apache-2.0
// The progress lock and its stack of submitted requests, without a device.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "engine/progress_lock.hpp"

namespace paralet {
namespace {

/// Notes what a holder is told to do.
class HolderNotes final : public ProgressLock::Holder {
 public:
  void start(std::shared_ptr<Request> request) override PARALET_REQUIRES(progress_lock) {
    started.push_back(request->tag);
    unflushed = true;
  }
  void flush() override PARALET_REQUIRES(progress_lock) { unflushed = false; }
  bool let_go() override PARALET_REQUIRES(progress_lock) {
    ++releases;
    return false;
  }

  std::vector<std::uint32_t> started PARALET_GUARDED_BY(progress_lock);  ///< tags, in the order of starting
  bool unflushed PARALET_GUARDED_BY(progress_lock) = false;
  unsigned releases PARALET_GUARDED_BY(progress_lock) = 0;
};

std::shared_ptr<Request> tagged_request(std::uint32_t tag) {
  auto out = std::make_shared<Request>();
  out->tag = tag;
  return out;
}

struct LockScene {
  std::vector<std::uint32_t> started() {
    const ProgressGuard guard(lock);
    return notes.started;
  }

  HolderNotes notes;
  ProgressLock lock{notes};
};

TEST_CASE("progress lock: a request that finds it free is started at once, and flushed") {
  LockScene scene;
  scene.lock.submit(tagged_request(1));
  const ProgressGuard guard(scene.lock);
  CHECK(scene.notes.started == std::vector<std::uint32_t>{1});
  CHECK_FALSE(scene.notes.unflushed);
  CHECK(scene.notes.releases == 1);
}

TEST_CASE("progress lock: requests that find it held are started in their order when the holder lets go") {
  LockScene scene;
  {
    const ProgressGuard guard(scene.lock);
    std::thread([&scene] {
      for (const std::uint32_t tag : {1U, 2U, 3U}) scene.lock.submit(tagged_request(tag));
    }).join();  // it does not wait for the lock
    CHECK(scene.notes.started.empty());
  }
  const ProgressGuard guard(scene.lock);
  CHECK(scene.notes.started == std::vector<std::uint32_t>{1, 2, 3});
  CHECK_FALSE(scene.notes.unflushed);
  CHECK(scene.notes.releases == 2);  // once more for what the requests have changed
}

TEST_CASE("progress lock: a holder starts what others have submitted before what it submits itself") {
  LockScene scene;
  {
    const ProgressGuard guard(scene.lock);
    std::thread([&scene] { scene.lock.submit(tagged_request(1)); }).join();
    scene.lock.start_submitted();
    CHECK(scene.notes.started == std::vector<std::uint32_t>{1});
    scene.lock.start_submitted();
    CHECK(scene.notes.started.size() == 1);
  }
  scene.lock.submit(tagged_request(2));
  CHECK(scene.started() == std::vector<std::uint32_t>{1, 2});
}

TEST_CASE("progress lock: try_lock fails while it is held; a waiting thread is seen") {
  LockScene scene;
  std::thread waiting;
  {
    const ProgressGuard guard(scene.lock);
    std::thread([&scene] {
      const bool locked = scene.lock.try_lock();
      CHECK_FALSE(locked);
      if (locked) scene.lock.unlock();
    }).join();
    CHECK_FALSE(scene.lock.awaited());
    waiting = std::thread([&scene] { const ProgressGuard other(scene.lock); });
    while (!scene.lock.awaited()) std::this_thread::yield();
  }
  waiting.join();
  CHECK_FALSE(scene.lock.awaited());
}

TEST_CASE("progress lock: of many threads every request is started once, each thread's in its order") {
  constexpr std::uint32_t kThreads = 4;
  constexpr std::uint32_t kEach = 500;
  LockScene scene;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&scene, t] {
      for (std::uint32_t i = 0; i < kEach; ++i) scene.lock.submit(tagged_request(t * kEach + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto started = scene.started();
  REQUIRE(started.size() == kThreads * kEach);
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    std::vector<std::uint32_t> own;
    std::ranges::copy_if(started, std::back_inserter(own), [t](std::uint32_t tag) { return tag / kEach == t; });
    CHECK(own.size() == kEach);
    CHECK(std::ranges::is_sorted(own));
  }
}

}  // namespace
}  // namespace paralet
