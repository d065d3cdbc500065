// SPDX-License-Identifier: Apache-2.0
#include "block_pool.hpp"

#include <chrono>
#include <latch>
#include <thread>
#include <utility>

namespace paralet::cpu_device {

namespace {

// A thread that has had nothing to do for this long ends.
constexpr auto keep_idle = std::chrono::seconds(5);

}  // namespace

void BlockPool::run(unsigned blocks, const std::function<void(unsigned)>& body) {
  if (blocks == 0) return;
  std::latch others(static_cast<std::ptrdiff_t>(blocks) - 1);
  for (unsigned block = 1; block < blocks; ++block) {
    start([&, block] {
      body(block);
      others.count_down();
    });
  }
  body(0);
  others.wait();
}

void BlockPool::start(std::function<void()> block) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(block));
  if (idle_ < waiting_.size()) {
    std::thread([this] { work(); }).detach();
  } else {
    changed_.notify_one();
  }
}

void BlockPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool found = changed_.wait_for(lock, keep_idle, [this] { return !waiting_.empty(); });
    --idle_;
    if (!found) return;
    const std::function<void()> block = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    block();
    lock.lock();
  }
}

}  // namespace paralet::cpu_device
