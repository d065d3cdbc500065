// SPDX-License-Identifier: Apache-2.0
// Messages that wait for one another and share links, from event to event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "agenda.hpp"
#include "sharing.hpp"

namespace paralet::fluid {

/// Messages go over channels. A *channel* sends its messages in the order in which they became ready, one at a time,
/// over all of its flows at once: each flow takes of the message what its rate lets it (lanes that pull).
///
/// A message becomes ready when its release time has come and all messages that it waits for are delivered. It is
/// delivered `delay` after its last bit has been sent. One without a channel sends nothing: it is a pause, or joins
/// others. Times are in seconds, rates in bit/s, and there is nothing random.
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

  /// Rates may be `stale` seconds old when flows have ended: what those leave is given to others that much later at
  /// most. 0 is exact.
  Simulation(std::span<const double> capacity, double precision, double stale);

  /// A channel over the flows `first` to `first + count` - 1 of `sharing`, which the caller has just added.
  Channel add_channel(Sharing::Flow first, std::uint32_t count);
  Message add_message(const MessageSpec& spec);
  /// `later` does not become ready before `earlier` is delivered. Only before the first `advance` that sees `later`.
  void add_wait(Message earlier, Message later);
  [[nodiscard]] bool may_wait(Message later) const { return !messages_[later].considered; }

  [[nodiscard]] Sharing& sharing() { return sharing_; }
  void set_capacity(std::uint32_t link, double capacity);
  void set_uses(Sharing::Flow flow, std::span<const Use> uses);

  /// Let time pass up to `until`, or until a milestone, or, when `until` is infinite, until nothing happens any more.
  /// The milestones just delivered.
  std::span<const Message> advance(double until);

  [[nodiscard]] double now() const { return now_; }
  [[nodiscard]] std::size_t messages() const { return messages_.size(); }
  [[nodiscard]] std::size_t channels() const { return channels_.size(); }
  [[nodiscard]] std::size_t undelivered() const { return undelivered_; }
  /// Whether nothing happens any more until something is added or set.
  [[nodiscard]] bool stuck() const { return planned_.empty() && ends_.empty() && due_ == kNever; }
  [[nodiscard]] std::uint64_t events() const { return events_; }
  /// NaN as long as it has not begun, not been delivered.
  [[nodiscard]] double begun(Message message) const { return messages_[message].begun; }
  [[nodiscard]] double delivered(Message message) const { return messages_[message].delivered; }
  /// Bits that a flow has sent on the path that it has now.
  [[nodiscard]] double flow_bits(Sharing::Flow flow) const {
    return flow_bits_[flow] + flow_rate_[flow] * (now_ - flow_since_[flow]);
  }
  /// Bits that have crossed each link so far, in the flows' own bits.
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
    std::uint32_t awaited = 0;         // messages that it waits for
    std::uint32_t first_wait = kNone;  // of those that wait for it
    std::uint32_t next = kNone;        // behind it in its channel's queue
    bool milestone;
    bool considered = false;
  };
  struct Wait {
    Message later;
    std::uint32_t next;
  };
  struct ChannelState {
    Sharing::Flow first;
    std::uint32_t count;
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
    double left = 0;  // bits of the head
    double rate = 0;
    double since = 0;  // when `left` was right
    bool active = false;
    bool unsettled = false;
  };
  enum class Kind : std::uint8_t { kReady, kDelivered };
  struct Event {
    double at;
    std::uint64_t number;  // events of one moment happen in the order in which they were made
    Kind kind;
    Message message;
    friend bool operator>(const Event& a, const Event& b) { return a.at != b.at ? a.at > b.at : a.number > b.number; }
  };

  void plan(double at, Kind kind, Message message);
  void ready(Message message);
  void begin_head(Channel channel);
  void sent(Channel channel);
  void deliver(Message message);
  void unsettle(Channel channel, double due);
  void settle();
  void rest(Channel channel);
  void resume(Channel channel);
  void account(Sharing::Flow flow, double rate);
  void drain(ChannelState& channel) const;
  void predict(Channel channel);

  Sharing sharing_;
  double stale_;
  double now_ = 0;
  double due_ = kNever;  // when rates must be brought up to date
  std::vector<MessageState> messages_;
  std::vector<Wait> waits_;
  std::vector<ChannelState> channels_;
  std::vector<Channel> channel_of_;  // by flow
  std::vector<double> link_bits_;    // of paths that flows have left
  std::vector<double> flow_bits_;    // by flow, up to `flow_since_`, on its path
  std::vector<double> flow_since_;
  std::vector<double> flow_rate_;
  std::vector<Channel> unsettled_;
  std::vector<Message> milestones_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> planned_;
  Agenda ends_;  // by channel: when its head will have been sent
  Message unconsidered_ = 0;
  std::size_t undelivered_ = 0;
  std::uint64_t planned_so_far_ = 0;
  std::uint64_t events_ = 0;
};

}  // namespace paralet::fluid
