// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>
#include <optional>

#include "base/clock.hpp"

namespace paralet {

/// Wakes threads that wait for requests or connections. notify costs a fence and a load when no thread waits. It is a
/// futex, because a thread that wakes from a condition variable must take its mutex, and would sleep again if it shares
/// its core with the notifying thread.
class Signal {
 public:
  void notify() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_relaxed) == 0) return;
    generation_.fetch_add(1, std::memory_order_release);
    ::syscall(SYS_futex, &generation_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  /// Waits until `ready` holds or `timeout` has passed (nullopt: no limit). Returns the last value of `ready`.
  template <typename Predicate>
  bool wait(Predicate ready, std::optional<Nanos> timeout) {
    if (ready()) return true;
    const Nanos start = now();
    const Nanos until = timeout && *timeout < kNever - start ? start + *timeout : kNever;
    waiters_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bool result = false;
    for (;;) {
      const std::uint32_t generation = generation_.load(std::memory_order_acquire);
      result = ready();
      const Nanos rest = until - now();
      if (result || rest <= 0) break;
      const timespec limit{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
      const timespec* const at_most = until == kNever ? nullptr : &limit;
      ::syscall(SYS_futex, &generation_, FUTEX_WAIT_PRIVATE, generation, at_most, nullptr, 0);
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return result;
  }

 private:
  std::atomic<unsigned> waiters_{0};
  std::atomic<std::uint32_t> generation_{0};  ///< the futex: counts notifications
  static_assert(sizeof generation_ == sizeof(std::uint32_t));
};

/// One per process, so that a thread can wait for requests of several devices at once.
Signal& completion_signal();

}  // namespace paralet
