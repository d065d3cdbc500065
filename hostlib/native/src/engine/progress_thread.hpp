// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

#include "base/clock.hpp"
#include "base/limits.hpp"
#include "engine/context.hpp"
#include "engine/front.hpp"
#include "engine/progress_lock.hpp"

namespace paralet {

/// The thread that moves packets while no caller polls, so that progress never depends on callers. It sleeps until a
/// packet arrives or a timer expires, after some spinning (AdaptiveSpin).
class ProgressThread {
 public:
  /// The thread runs from `start` on.
  ProgressThread(Context& context, ProgressLock& lock, Front& front) : context_(context), lock_(lock), front_(front) {}

  /// Throws DeviceError when the process may start no more threads.
  void start() {
    thread_ = start_thread([this] { run(); });
  }
  /// Wakes it if it would sleep for longer than until something is due.
  void wake_in_time() PARALET_REQUIRES(progress_lock) {
    if (sleeping_until_ == 0 || front_.next_deadline(now()) >= sleeping_until_) return;
    sleeping_until_ = 0;
    context_.polling->wake();
  }
  /// Ends the thread, and waits for its end. Without the lock.
  void join();
  /// In a forked child, where the thread does not exist.
  void leave_to_parent();

 private:
  void run();

  Context& context_;
  ProgressLock& lock_;
  Front& front_;
  /// when the thread wakes by itself, 0: it is awake
  Nanos sleeping_until_ PARALET_GUARDED_BY(progress_lock) = 0;
  std::thread thread_;
};

}  // namespace paralet
