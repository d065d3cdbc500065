// SPDX-License-Identifier: Apache-2.0
#include "verbs/slow_calls.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "verbs/port.hpp"

namespace paralet::verbs {

SlowCalls::SlowCalls() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_.valid()) fail("cannot watch slow calls", errno);
}

void SlowCalls::start(std::function<Then()> call) {
  if (!thread_) thread_ = std::make_unique<Worker>();
  thread_->add([this, call = std::move(call)] {
    Then then = call();
    const MutexLock lock(mutex_);
    results_.push_back(std::move(then));
    any_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
  });
}

void SlowCalls::finish() {
  if (!any_) return;
  while (const Then then = next()) then();
}

/// The oldest result; an empty function where there is none. The event is reset with the lock: an event without a
/// result would keep the sleeping thread awake.
SlowCalls::Then SlowCalls::next() {
  const MutexLock lock(mutex_);
  if (results_.empty()) return {};
  Then then = std::move(results_.front());
  results_.pop_front();
  if (results_.empty()) {
    any_ = false;
    std::uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &ignored, sizeof ignored);
  }
  return then;
}

}  // namespace paralet::verbs
