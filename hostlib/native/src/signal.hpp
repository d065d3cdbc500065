// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "clock.hpp"

namespace paralet {

/// Wakes threads that wait for requests or connections. Costs one load when nobody waits.
class Signal {
 public:
  void notify() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  /// Waits until `ready` holds or `timeout` has passed (nothing: forever). Returns the last value of `ready`.
  template <typename Predicate>
  bool wait(Predicate ready, std::optional<Nanos> timeout) {
    if (ready()) return true;
    std::unique_lock lock(mutex_);
    waiters_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bool result = true;
    if (timeout) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(*timeout);
      result = changed_.wait_until(lock, until, ready);
    } else {
      changed_.wait(lock, ready);
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return result;
  }

 private:
  std::atomic<unsigned> waiters_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// One for the process, so that a thread can wait for requests of several devices at once.
Signal& completion_signal();

}  // namespace paralet
