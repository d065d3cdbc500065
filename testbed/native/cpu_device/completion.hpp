// SPDX-License-Identifier: Apache-2.0
// Something that happens once: the end of a piece of work in a stream.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

namespace paralet::cpu_device {

class Completion {
 public:
  using Clock = std::chrono::steady_clock;

  bool done() const { return done_.load(std::memory_order_acquire) != 0; }

  void wait() const { done_.wait(0, std::memory_order_acquire); }

  void complete() {
    at_ = Clock::now();
    done_.store(1, std::memory_order_release);
    done_.notify_all();
  }

  // When it was completed. Only after done().
  Clock::time_point at() const { return at_; }

 private:
  std::atomic<int> done_ = 0;  // int: the type that waits on a futex directly
  Clock::time_point at_;
};

using CompletionPtr = std::shared_ptr<Completion>;

}  // namespace paralet::cpu_device
