// SPDX-License-Identifier: Apache-2.0
#include "base/owner_process.hpp"

#include <pthread.h>

#include <atomic>

namespace paralet {
namespace {

/// Of this process and its ancestors, since the first object.
std::atomic<unsigned> forks{0};

unsigned count_forks() {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

OwnerProcess::OwnerProcess() : forks_(count_forks()) {}

bool OwnerProcess::inherited() const { return forks.load(std::memory_order_relaxed) != forks_; }

}  // namespace paralet
