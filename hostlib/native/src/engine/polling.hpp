// SPDX-License-Identifier: Apache-2.0
// Who moves a device's packets: callers that poll, or its progress thread, which stands back while they do.
#pragma once

#include <atomic>
#include <memory>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/owner_process.hpp"

namespace paralet {

/// Shared by a device and by the threads that wait for its requests, because a thread that goes on to another device
/// hands this one back to its progress thread. All functions may be called by any thread.
class Polling : public std::enable_shared_from_this<Polling> {
 public:
  /// A progress thread that stands back notices after at most twice this that polling has stopped.
  static constexpr Nanos kStandBack = 1 * kMillisecond;

  Polling();

  /// Readable when the progress thread shall wake up; not valid without a free descriptor.
  [[nodiscard]] int wake_fd() const { return wake_.get(); }
  /// Wakes the progress thread. The caller excludes `close`.
  void wake();
  /// Makes `wake_fd` unreadable until the next wake-up.
  void woken();

  void polled(Nanos when) { polled_at_.store(when, std::memory_order_relaxed); }
  [[nodiscard]] Nanos polled_at() const { return polled_at_.load(std::memory_order_relaxed); }
  /// Callers poll no more: the progress thread takes over at once, not after kStandBack.
  void stop();
  /// The calling thread begins to wait for a request of this device. If it polled another device before, this stops
  /// that polling. Otherwise nobody would move the other device's packets until its progress thread notices.
  void begin();

  /// For the progress thread: true, after a sleep, while callers poll.
  bool stands_back();

  /// Releases the descriptor when no thread uses it any more. Nothing wakes the progress thread from then on.
  void close();

 private:
  std::atomic<Nanos> polled_at_{0};         ///< when a caller last polled, 0: it stopped
  std::atomic<bool> standing_back_{false};  ///< the progress thread sleeps because callers poll
  std::atomic<bool> closed_{false};
  std::atomic<unsigned> stopping_{0};  ///< threads in `stop` that may write to wake_
  FileDescriptor wake_;                ///< an eventfd
  OwnerProcess owner_;
};

}  // namespace paralet
