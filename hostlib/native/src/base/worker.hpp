// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "base/limits.hpp"
#include "base/mutex.hpp"

namespace paralet {

/// A thread that runs jobs one after another, in the order in which they were added.
class Worker {
 public:
  /// Throws DeviceError when the process may start no more threads.
  Worker() : thread_(start_thread([this] { run(); })) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Waits until all jobs have run.
  ~Worker() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  /// Any thread. A job must not throw.
  void add(std::function<void()> job) {
    {
      const MutexLock lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

 private:
  /// The next job; an empty function at the end.
  std::function<void()> next() {
    const MutexLock lock(mutex_);
    while (jobs_.empty() && !stop_) changed_.wait(mutex_);
    if (jobs_.empty()) return {};
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }
  void run() {
    while (const auto job = next()) job();
  }

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> jobs_ PARALET_GUARDED_BY(mutex_);
  bool stop_ PARALET_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< last, so that it sees all members
};

}  // namespace paralet
