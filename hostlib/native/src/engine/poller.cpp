// SPDX-License-Identifier: Apache-2.0
#include "engine/poller.hpp"

#include <mutex>
#include <thread>

#include "engine/core_sharing.hpp"
#include "engine/front.hpp"

namespace paralet {
namespace {

constexpr Nanos kPollInterval = 2 * kMicrosecond;  // longer than a pass of NCCL's proxy thread over its requests

}  // namespace

Poller::Round Poller::poll(Nanos t) {
  if (lock_.inherited()) return Round::kHeld;
  polling_.polled(t);
  if (lock_.awaited()) {
    std::this_thread::yield();
    return Round::kHeld;
  }
  if (!lock_.try_lock()) return Round::kHeld;
  const ProgressGuard guard(lock_, std::adopt_lock);
  return !shard_.open() || front_.step(t) ? Round::kWorked : Round::kNothing;
}

void Poller::spin(Nanos t) {
  thread_local CoreSharing sharing;
  if (poll(t) == Round::kWorked || !sharing.yields()) return;
  const Nanos before = now();
  std::this_thread::yield();
  sharing.yielded(now() - before);
}

void Poller::poll_for(const void* request) {
  const Nanos t = now();
  const void* idle_for = idle_for_.load(std::memory_order_relaxed);
  if (idle_for != nullptr && idle_for != request && t - polling_.polled_at() < kPollInterval) return;
  idle_for_.store(poll(t) == Round::kNothing ? request : nullptr, std::memory_order_relaxed);
}

}  // namespace paralet
