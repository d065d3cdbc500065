// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/signal.hpp"
#include "engine/context.hpp"
#include "engine/polling.hpp"
#include "engine/progress_lock.hpp"
#include "engine/shard.hpp"

namespace paralet {

class Front;

/// Moves packets on the threads of callers, while they wait. Any thread.
class Poller {
 public:
  Poller(Context& context, ProgressLock& lock, Shard& shard, Front& front)
      : busy_poll_(context.options.busy_poll), polling_(*context.polling), lock_(lock), shard_(shard), front_(front) {}

  enum class Round : std::uint8_t {
    kWorked,
    kNothing,  ///< it found nothing to do
    kHeld,     ///< another thread moves packets
  };

  /// One round, if no other thread moves packets.
  Round poll(Nanos now);
  /// The same for a thread that tests many requests (Device::poll_for).
  void poll_for(const void* request);
  /// Polls for `busy_poll`, then sleeps, until `ready` holds or `timeout` has passed (nullopt: no limit). Returns the
  /// last value of `ready`.
  template <typename Predicate>
  bool wait(Predicate ready, std::optional<Nanos> timeout) {
    bool begun = false;
    for (const Nanos start = now(); !ready();) {
      const Nanos t = now();
      const Nanos waited = t - start;
      if (!std::exchange(begun, true)) polling_.begin();
      if (timeout && waited >= *timeout) return ready();
      if (waited >= busy_poll_) {
        stop();
        return completion_signal().wait(ready, timeout ? std::optional(*timeout - waited) : std::nullopt);
      }
      spin(t);
    }
    return true;
  }
  /// The calling thread polls no more: the progress thread takes over at once, not after Polling::kStandBack.
  void stop() { polling_.stop(); }

 private:
  /// Polls, and gives the core to other threads that want it unless that found work.
  void spin(Nanos now);

  const Nanos busy_poll_;
  Polling& polling_;
  ProgressLock& lock_;
  Shard& shard_;
  Front& front_;
  std::atomic<const void*> idle_for_{nullptr};  ///< request of the last poll_for, if that found nothing
};

}  // namespace paralet
