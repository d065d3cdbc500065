// SPDX-License-Identifier: Apache-2.0
// Which messages wait for which: shared by the fluid model and the packet simulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace paralet::sim {

/// A directed graph over messages. A message may be sent when it is active and all messages it waits for are delivered.
/// Messages are numbered from 0 in the order in which they are added.
class MessageWaits {
 public:
  using Message = std::uint32_t;

  Message add_message() {
    messages_.emplace_back();
    ++undelivered_;
    return static_cast<Message>(messages_.size() - 1);
  }

  /// `later` waits for `earlier`. Only while `later` is not active. No effect when `earlier` is already delivered.
  void add_wait(Message earlier, Message later) {
    State& awaited = messages_[earlier];
    if (awaited.delivered) return;
    const auto wait = static_cast<std::uint32_t>(waits_.size());
    waits_.push_back({later, kNone});
    (awaited.first_wait == kNone ? awaited.first_wait : waits_[awaited.last_wait].next) = wait;
    awaited.last_wait = wait;
    ++messages_[later].awaited;
  }

  /// Makes all messages active that were added since the last call. Calls `may_send` for each that waits for nothing.
  template <typename MaySend>
  void activate(MaySend may_send) {
    while (active_ < messages_.size()) {
      const Message message = active_++;
      if (messages_[message].awaited == 0) may_send(message);
    }
  }
  [[nodiscard]] bool is_active(Message message) const { return message < active_; }

  /// Calls `may_send` for each active message for which `message` was the last one that it waited for, in the order in
  /// which these waits were added.
  template <typename MaySend>
  void deliver(Message message, MaySend may_send) {
    messages_[message].delivered = true;
    --undelivered_;
    for (auto wait = messages_[message].first_wait; wait != kNone; wait = waits_[wait].next) {
      const Message later = waits_[wait].later;
      if (--messages_[later].awaited == 0 && is_active(later)) may_send(later);
    }
  }

  [[nodiscard]] std::size_t size() const { return messages_.size(); }
  [[nodiscard]] std::size_t undelivered() const { return undelivered_; }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct State {
    std::uint32_t awaited = 0;         // number of messages that it waits for
    std::uint32_t first_wait = kNone;  // head of the list of messages that wait for it, as an index into `waits_`
    std::uint32_t last_wait = kNone;   // its tail
    bool delivered = false;
  };
  struct Wait {
    Message later;
    std::uint32_t next;
  };

  std::vector<State> messages_;
  std::vector<Wait> waits_;
  Message active_ = 0;  // all messages below this number are active
  std::size_t undelivered_ = 0;
};

}  // namespace paralet::sim
