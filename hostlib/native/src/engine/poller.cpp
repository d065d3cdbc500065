// SPDX-License-Identifier: Apache-2.0
#include "engine/poller.hpp"

#include <mutex>
#include <thread>

#include "engine/front.hpp"

namespace paralet {
namespace {

constexpr Nanos kPollInterval = 2 * kMicrosecond;  // longer than a pass of NCCL's proxy thread over its requests

}  // namespace

bool Poller::poll(Nanos t) {
  if (lock_.inherited()) return true;
  polling_.polled(t);
  if (lock_.awaited()) {
    std::this_thread::yield();
    return true;
  }
  if (!lock_.try_lock()) return true;
  const ProgressGuard guard(lock_, std::adopt_lock);
  return shard_.open() ? front_.step(t) : true;
}

void Poller::poll_for(const void* request) {
  const Nanos t = now();
  const void* idle_for = idle_for_.load(std::memory_order_relaxed);
  if (idle_for != nullptr && idle_for != request && t - polling_.polled_at() < kPollInterval) return;
  idle_for_.store(poll(t) ? nullptr : request, std::memory_order_relaxed);
}

}  // namespace paralet
