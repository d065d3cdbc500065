// SPDX-License-Identifier: Apache-2.0
#include "engine/progress_lock.hpp"

#include <utility>

#include "base/errors.hpp"
#include "base/signal.hpp"

namespace paralet {

void ProgressLock::check_owner() const {
  if (inherited()) throw DeviceError(kInherited);
}

void ProgressLock::lock() {
  check_owner();
  waiting_.fetch_add(1, std::memory_order_relaxed);
  mutex_.lock();
  progress_lock.acquired();
  waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void ProgressLock::unlock() {
  for (;;) {
    const bool finished = holder_.let_go();
    progress_lock.released();
    mutex_.unlock();
    if (finished) completion_signal().notify();  // after unlocking, so that a woken thread can take the lock
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (submitted_.load(std::memory_order_relaxed) == nullptr || !try_lock()) return;
    start_submitted();
    holder_.flush();
  }
}

void ProgressLock::submit(const std::shared_ptr<Request>& request) {
  if (try_lock()) {
    const ProgressGuard guard(*this, std::adopt_lock);
    start_submitted();  // requests that were submitted earlier come first
    holder_.start(request);
    holder_.flush();
    return;
  }
  request->self = request;
  Request* raw = request.get();
  raw->next = submitted_.load(std::memory_order_relaxed);
  while (!submitted_.compare_exchange_weak(raw->next, raw, std::memory_order_release, std::memory_order_relaxed)) {
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // The holder checks the stack after unlocking. If the lock is free, it may have checked before our push.
  if (try_lock()) {
    const ProgressGuard guard(*this, std::adopt_lock);
    start_submitted();
    holder_.flush();
  }
}

void ProgressLock::start_stack() {
  Request* newest = submitted_.exchange(nullptr, std::memory_order_acquire);
  Request* oldest = nullptr;
  while (newest != nullptr) {
    Request* next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest != nullptr) {
    Request* next = oldest->next;
    holder_.start(std::move(oldest->self));
    oldest = next;
  }
}

}  // namespace paralet
