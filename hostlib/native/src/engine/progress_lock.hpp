// SPDX-License-Identifier: Apache-2.0
// The progress lock of a device. Its holder moves packets; the state of peers, lanes and connections, and the back end,
// are accessed only by the holder.
//
//   - A caller that submits a request or polls takes the lock if it is free, and never waits for it. It then sends and
//     receives on its own core, and no other thread has to wake up. If the lock is held, a poll does nothing, and a
//     submitted request goes on a lock-free stack. Every holder starts the requests on the stack after unlocking.
//   - A caller of any other function waits for the lock.
//   - So does the device's progress thread (device.hpp).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "base/mutex.hpp"
#include "base/owner_process.hpp"
#include "engine/request.hpp"

namespace paralet {

/// The lock as the declarations of a device's parts name it, which Clang checks. One object stands for the locks of all
/// devices: no part reaches another device than its own.
class PARALET_CAPABILITY("role") ProgressRole {
 public:
  void acquired() const PARALET_ACQUIRE() {}
  void released() const PARALET_RELEASE() {}
  /// Where no second thread can be: while a device is made, and in a forked child.
  void assume_held() const PARALET_ASSERT_CAPABILITY() {}
};
inline constexpr ProgressRole progress_lock;

class ProgressLock {
 public:
  /// What a holder does for others before it lets go.
  class Holder {
   public:
    virtual ~Holder() = default;
    virtual void start(std::shared_ptr<Request> request) PARALET_REQUIRES(progress_lock) = 0;
    /// Sends what `start` has posted.
    virtual void flush() PARALET_REQUIRES(progress_lock) = 0;
    /// Called right before the lock is released. True when requests have finished, for which threads may wait.
    virtual bool let_go() PARALET_REQUIRES(progress_lock) = 0;
  };

  static constexpr const char* kInherited = "the device is the parent process's: a forked child opens its own";

  explicit ProgressLock(Holder& holder) : holder_(holder) {}

  /// Whether this process was forked after the lock was made: a thread that does not exist may hold it.
  [[nodiscard]] bool inherited() const { return owner_.inherited(); }
  /// Throws DeviceError where the lock is `inherited`.
  void check_owner() const;
  bool try_lock() PARALET_TRY_ACQUIRE(true, progress_lock) {
    if (!mutex_.try_lock()) return false;
    progress_lock.acquired();
    return true;
  }
  /// Waits for the lock. Throws DeviceError where it is `inherited`.
  void lock() PARALET_ACQUIRE(progress_lock);
  /// Starts the requests that other threads left on the stack meanwhile.
  void unlock() PARALET_RELEASE(progress_lock);
  /// Whether a thread waits in `lock`: pollers let it.
  [[nodiscard]] bool awaited() const { return waiting_.load(std::memory_order_relaxed) > 0; }

  /// Starts the request, now or when the holder of the lock lets go.
  void submit(const std::shared_ptr<Request>& request);
  /// Starts the requests on the stack, oldest first.
  void start_submitted() PARALET_REQUIRES(progress_lock) {
    if (submitted_.load(std::memory_order_relaxed) != nullptr) start_stack();
  }

 private:
  void start_stack() PARALET_REQUIRES(progress_lock);

  Holder& holder_;
  OwnerProcess owner_;
  std::mutex mutex_;
  std::atomic<unsigned> waiting_{0};
  std::atomic<Request*> submitted_{nullptr};  ///< stack of requests that found the lock held
};

/// Holds the progress lock.
class PARALET_SCOPED_CAPABILITY ProgressGuard {
 public:
  /// Waits for the lock. Throws DeviceError in a forked child.
  explicit ProgressGuard(ProgressLock& lock) PARALET_ACQUIRE(progress_lock) : lock_(lock) { lock_.lock(); }
  /// Takes over the lock that try_lock has taken.
  ProgressGuard(ProgressLock& lock, std::adopt_lock_t /*locked*/) PARALET_REQUIRES(progress_lock) : lock_(lock) {}
  ProgressGuard(const ProgressGuard&) = delete;
  ProgressGuard& operator=(const ProgressGuard&) = delete;
  ~ProgressGuard() PARALET_RELEASE() { lock_.unlock(); }

 private:
  ProgressLock& lock_;
};

}  // namespace paralet
