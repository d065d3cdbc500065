// SPDX-License-Identifier: Apache-2.0
// Calls that wait for the NIC's firmware or the kernel's memory management. They run on a thread of their own, without
// the progress lock.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>

#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"
#include "base/worker.hpp"

namespace paralet::verbs {

class SlowCalls {
 public:
  /// Applies the result of a call, with the progress lock. Never empty.
  using Then = std::function<void()>;

  /// Throws DeviceError.
  SlowCalls();

  /// Makes a call on the thread. Calls run one after another, in the order in which they were started: a queue pair's
  /// port changes before the queue pair is destroyed. A call must not throw.
  void start(std::function<Then()> call);
  /// Applies the results of the calls that are over, in the order of the calls. A result may call this again.
  void finish();
  /// Readable while there are results.
  [[nodiscard]] int fd() const { return event_.get(); }

 private:
  [[nodiscard]] Then next();

  FileDescriptor event_;
  std::atomic<bool> any_{false};  ///< there are results
  Mutex mutex_;
  std::deque<Then> results_ PARALET_GUARDED_BY(mutex_);
  std::unique_ptr<Worker> thread_;  ///< nullptr until the first call; last, so that it ends before what it uses
};

}  // namespace paralet::verbs
