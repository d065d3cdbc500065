// SPDX-License-Identifier: Apache-2.0
#include "backoff.hpp"

#include <sched.h>

#include <chrono>
#include <thread>

namespace paralet::cpu_device {
namespace {

constexpr unsigned spins = 64;
constexpr unsigned yields = 256;
constexpr std::chrono::microseconds sleep{50};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Backoff::wait() {
  if (rounds_ < spins) {
    pause();
  } else if (rounds_ < spins + yields) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(sleep);
    return;
  }
  ++rounds_;
}

}  // namespace paralet::cpu_device
