// SPDX-License-Identifier: Apache-2.0
#include "engine/progress_thread.hpp"

#include <poll.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/adaptive_spin.hpp"

namespace paralet {
namespace {

/// Sleeps until `fd` is readable, at most until `until` and at most a second.
void sleep_on(int fd, Nanos until) {
  const Nanos rest = std::clamp<Nanos>(until - now(), 0, kSecond);
  const timespec timeout{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
  pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
  ::ppoll(&waited, 1, &timeout, nullptr);
}

}  // namespace

void ProgressThread::join() {
  context_.stop = true;
  context_.polling->wake();
  thread_.join();
}

void ProgressThread::leave_to_parent() {
  new std::thread(std::move(thread_));  // NOLINT(cppcoreguidelines-owning-memory): no thread exists to be joined
}

void ProgressThread::run() {
  Nanos last_work = now();
  bool slept = true;
  AdaptiveSpin spin;
  while (!context_.stop) {
    if (context_.polling->stands_back()) continue;  // it would only contend for the lock and caches
    Nanos until = 0;
    bool spins = false;
    {
      const ProgressGuard guard(lock_);
      const Nanos t = now();
      if (slept) front_.look_soon();  // a channel may have woken the thread
      if (front_.step(t)) {
        spin.worked();
        last_work = now();
      } else if (t - last_work >= context_.options.busy_poll) {
        spins = spin.keeps_spinning(t - last_work - context_.options.busy_poll);
        if (!spins) {
          front_.rest(t);
          until = front_.next_deadline(t);
        }
      }
      sleeping_until_ = until;
    }
    slept = until > 0;
    if (slept) {
      sleep_on(front_.parts().sockets.fd(), until);
    } else if (spins || lock_.awaited()) {
      std::this_thread::yield();
    }
  }
}

}  // namespace paralet
