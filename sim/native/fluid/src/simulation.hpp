// SPDX-License-Identifier: Apache-2.0
// A discrete-event fluid simulation: messages with dependencies over links shared by max-min fairness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "indexed_heap.hpp"
#include "max_min_allocator.hpp"
#include "message_waits.hpp"

namespace paralet::fluid {

/// A *channel* sends its messages in the order in which they became ready, one at a time, over all of its flows at
/// once. Each flow takes as much of the message as its rate allows (lanes that pull).
///
/// A message becomes ready when its release time has come and all messages that it waits for are delivered. It is
/// delivered `delay` after its last bit has been sent. A message without a channel sends nothing: it is a pause, or it
/// joins several waits. Times are in seconds, rates in bit/s. The simulation is deterministic.
class Simulation {
 public:
  using Message = std::uint32_t;
  using Channel = std::uint32_t;
  static constexpr std::int32_t kNoChannel = -1;

  struct MessageSpec {
    std::int32_t channel;
    double bits;
    double delay;
    double release;
    bool milestone;  // `advance` returns when it is delivered
  };

  /// When flows end, other flows get the freed capacity at most `stale` seconds later. 0 is exact.
  Simulation(std::span<const double> capacity, double precision, double stale);

  /// A channel over the flows `first` to `first + count` - 1 of `allocator`, which the caller has just added.
  Channel add_channel(MaxMinAllocator::Flow first, std::uint32_t count);
  Message add_message(const MessageSpec& spec);
  /// Waits may be added to a message until the first `advance` that follows its addition.
  [[nodiscard]] sim::MessageWaits& waits() { return waits_; }

  [[nodiscard]] MaxMinAllocator& allocator() { return allocator_; }
  void set_capacity(std::uint32_t link, double capacity);
  void set_uses(MaxMinAllocator::Flow flow, std::span<const Use> uses);

  /// Advances time to `until`, or to the next milestone, or, when `until` is infinite, to the last event.
  /// Returns the milestones just delivered.
  std::span<const Message> advance(double until);

  [[nodiscard]] double now() const { return now_; }
  [[nodiscard]] std::size_t messages() const { return messages_.size(); }
  [[nodiscard]] std::size_t channels() const { return channels_.size(); }
  [[nodiscard]] std::size_t undelivered() const { return waits_.undelivered(); }
  /// Whether no event is left until something is added or set.
  [[nodiscard]] bool stuck() const { return events_.empty() && ends_.empty() && rates_due_ == kNever; }
  [[nodiscard]] std::uint64_t events() const { return event_count_; }
  /// NaN while it has not begun, or has not been delivered.
  [[nodiscard]] double begun(Message message) const { return messages_[message].begun; }
  [[nodiscard]] double delivered(Message message) const { return messages_[message].delivered; }
  /// Bits that the flow has sent on its current path.
  [[nodiscard]] double flow_bits(MaxMinAllocator::Flow flow) const {
    return flow_bits_[flow] + flow_rate_[flow] * (now_ - flow_since_[flow]);
  }
  /// Bits that have crossed each link.
  [[nodiscard]] std::vector<double> link_bits() const;

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr double kNot = std::numeric_limits<double>::quiet_NaN();

  struct MessageState {
    double bits;
    double delay;
    double release;
    double begun = kNot;
    double delivered = kNot;
    std::int32_t channel;
    std::uint32_t next = kNone;  // the message behind it in its channel's queue
    bool milestone;
  };
  struct ChannelState {
    MaxMinAllocator::Flow first;
    std::uint32_t count;
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
    double left = 0;  // bits of the head message that are not sent yet
    double rate = 0;
    double since = 0;  // the time at which `left` was exact
    bool active = false;
    bool listed = false;  // in `changed_channels_`
  };
  enum class Kind : std::uint8_t { kReady, kDelivered };
  struct Event {
    double time;
    std::uint64_t sequence;  // events of one time are handled in the order in which they were scheduled
    Kind kind;
    Message message;
    friend bool operator>(const Event& a, const Event& b) {
      return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
    }
  };

  void schedule(double time, Kind kind, Message message);
  void schedule_ready(Message message);
  void ready(Message message);
  void begin_head(Channel channel);
  void head_sent(Channel channel);
  void deliver(Message message);
  void list_changed(Channel channel, double due);
  void update_rates();
  void stop_sending(Channel channel);
  void resume_sending(Channel channel);
  void set_flow_rate(MaxMinAllocator::Flow flow, double rate);
  void drain(ChannelState& channel) const;
  void predict_end(Channel channel);

  MaxMinAllocator allocator_;
  double stale_;
  double now_ = 0;
  double rates_due_ = kNever;  // when rates must be brought up to date
  std::vector<MessageState> messages_;
  sim::MessageWaits waits_;
  std::vector<ChannelState> channels_;
  std::vector<Channel> channel_of_;  // by flow
  std::vector<double> link_bits_;    // by link: bits sent on paths that flows have left
  std::vector<double> flow_bits_;    // by flow: bits sent on its current path until `flow_since_`
  std::vector<double> flow_since_;
  std::vector<double> flow_rate_;
  std::vector<Channel> changed_channels_;  // that have become busy or idle since the last update of rates
  std::vector<Message> milestones_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  IndexedHeap ends_;  // by channel: when its head message will have been sent
  std::uint64_t scheduled_ = 0;
  std::uint64_t event_count_ = 0;
};

}  // namespace paralet::fluid
