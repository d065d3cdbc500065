// SPDX-License-Identifier: Apache-2.0
// Mutexes whose use Clang checks at compile time (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html): a declaration
// says which mutex a variable or a function needs, and an access without it is an error. Other compilers ignore the
// annotations. The fuzzers are built with Clang, so each of their builds checks the whole engine.
#pragma once

#include <mutex>

#if defined(__clang__)
#define PARALET_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define PARALET_THREAD_SAFETY(attribute)
#endif

/// A class whose objects can be held.
#define PARALET_CAPABILITY(name) PARALET_THREAD_SAFETY(capability(name))
/// A class whose objects hold a mutex from construction to destruction.
#define PARALET_SCOPED_CAPABILITY PARALET_THREAD_SAFETY(scoped_lockable)
/// A variable that is read and written only while the mutex is held.
#define PARALET_GUARDED_BY(mutex) PARALET_THREAD_SAFETY(guarded_by(mutex))
/// A pointer whose target is accessed only while the mutex is held.
#define PARALET_PT_GUARDED_BY(mutex) PARALET_THREAD_SAFETY(pt_guarded_by(mutex))
/// A function that is called only while the mutex is held.
#define PARALET_REQUIRES(mutex) PARALET_THREAD_SAFETY(requires_capability(mutex))
/// Functions that return with the mutex locked, or unlocked; without an argument it is the object itself.
#define PARALET_ACQUIRE(...) PARALET_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define PARALET_RELEASE(...) PARALET_THREAD_SAFETY(release_capability(__VA_ARGS__))
/// A function that returns the first argument if it has locked the mutex; without a second one it is the object itself.
#define PARALET_TRY_ACQUIRE(...) PARALET_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
/// After this function the analysis takes the mutex as held.
#define PARALET_ASSERT_CAPABILITY() PARALET_THREAD_SAFETY(assert_capability(this))

namespace paralet {

/// std::mutex with annotations.
class PARALET_CAPABILITY("mutex") Mutex {
 public:
  void lock() PARALET_ACQUIRE() { mutex_.lock(); }
  bool try_lock() PARALET_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() PARALET_RELEASE() { mutex_.unlock(); }
  /// For code that no second thread can run beside, although it does not hold the mutex.
  void assume_held() const PARALET_ASSERT_CAPABILITY() {}

 private:
  std::mutex mutex_;
};

/// std::lock_guard with annotations.
class PARALET_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PARALET_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() PARALET_RELEASE() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

}  // namespace paralet
