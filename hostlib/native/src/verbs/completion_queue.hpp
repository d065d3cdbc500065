// SPDX-License-Identifier: Apache-2.0
// The completion queue of a device, and the channel by which it wakes a sleeping thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"
#include "verbs/verbs_library.hpp"

namespace paralet::verbs {

class CompletionQueue {
 public:
  /// A queue of up to `entries`. Throws DeviceError.
  CompletionQueue(ibv_context* context, int entries);

  [[nodiscard]] ibv_cq* get() const { return queue_.get(); }
  /// Entries that fit: at least as many as were asked for.
  [[nodiscard]] std::uint32_t capacity() const { return static_cast<std::uint32_t>(queue_->cqe); }
  /// Readable when the armed queue has a completion. Does not block.
  [[nodiscard]] int fd() const { return channel_->fd; }

  /// Requests an event for the next completion. Completions that came before the call cause no event: poll afterwards.
  void arm() {
    if (!armed_) armed_ = ibv_req_notify_cq(queue_.get(), 0) == 0;
  }
  [[nodiscard]] bool armed() const { return armed_; }
  /// Takes the event of an armed queue, if it has come. The queue is not armed any more then.
  void take_event();

  /// Calls `visit(const ibv_wc&, Nanos seen)` for every completion; `seen` is when it was fetched. True when there were
  /// any.
  template <typename Visit>
  bool poll(Visit visit) {
    std::array<ibv_wc, kBatch> entries;
    bool any = false;
    for (;;) {
      const int count = ibv_poll_cq(queue_.get(), static_cast<int>(entries.size()), entries.data());
      const Nanos seen = count > 0 ? now() : 0;
      for (int i = 0; i < count; ++i) visit(entries[static_cast<std::size_t>(i)], seen);
      any = any || count > 0;
      if (count < static_cast<int>(entries.size())) return any;
    }
  }

 private:
  static constexpr std::size_t kBatch = 32;
  ChannelHandle channel_;
  CqHandle queue_;
  bool armed_ = false;
};

}  // namespace paralet::verbs
