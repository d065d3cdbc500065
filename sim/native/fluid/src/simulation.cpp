// SPDX-License-Identifier: Apache-2.0
#include "simulation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace paralet::fluid {

namespace {

/// Moments that differ by less than this, relatively, count as one.
constexpr double kSameMoment = 1e-9;

}  // namespace

Simulation::Simulation(std::span<const double> capacity, double precision, double stale)
    : sharing_(capacity, precision), stale_(stale), link_bits_(capacity.size()) {}

Simulation::Channel Simulation::add_channel(Sharing::Flow first, std::uint32_t count) {
  const auto channel = static_cast<Channel>(channels_.size());
  channels_.push_back({.first = first, .count = count});
  const auto flows = sharing_.flows();
  channel_of_.resize(flows, channel);
  flow_bits_.resize(flows);
  flow_since_.resize(flows);
  flow_rate_.resize(flows);
  return channel;
}

Simulation::Message Simulation::add_message(const MessageSpec& spec) {
  messages_.push_back({.bits = spec.bits,
                       .delay = spec.delay,
                       .release = spec.release,
                       .channel = spec.channel,
                       .milestone = spec.milestone});
  ++undelivered_;
  return static_cast<Message>(messages_.size() - 1);
}

void Simulation::add_wait(Message earlier, Message later) {
  if (!std::isnan(messages_[earlier].delivered)) return;
  waits_.push_back({later, messages_[earlier].first_wait});
  messages_[earlier].first_wait = static_cast<std::uint32_t>(waits_.size() - 1);
  ++messages_[later].awaited;
}

void Simulation::set_capacity(std::uint32_t link, double capacity) {
  sharing_.set_capacity(link, capacity);
  due_ = now_;
}

void Simulation::set_uses(Sharing::Flow flow, std::span<const Use> uses) {
  account(flow, flow_rate_[flow]);
  for (const auto& use : sharing_.uses(flow)) link_bits_[use.link] += use.share * flow_bits_[flow];
  flow_bits_[flow] = 0;
  sharing_.set_uses(flow, uses);
  due_ = now_;
}

std::span<const Simulation::Message> Simulation::advance(double until) {
  milestones_.clear();
  for (; unconsidered_ < messages_.size(); ++unconsidered_) {
    auto& message = messages_[unconsidered_];
    message.considered = true;
    if (message.awaited == 0) plan(std::max(now_, message.release), Kind::kReady, unconsidered_);
  }
  while (milestones_.empty()) {
    const double end = ends_.empty() ? kNever : ends_.at();
    const double next = planned_.empty() ? end : std::min(end, planned_.top().at);
    // What happens at one moment happens before rates are brought up to date, once.
    if (due_ < next && std::max(due_, now_ + kSameMoment * now_) < next) {
      if (due_ > until) break;
      now_ = std::max(now_, due_);
      settle();
      continue;
    }
    if (next > until || next == kNever) break;
    now_ = std::max(now_, next);
    ++events_;
    if (end == next) {
      sent(ends_.subject());
      continue;
    }
    const Event event = planned_.top();
    planned_.pop();
    if (event.kind == Kind::kReady) {
      ready(event.message);
    } else {
      deliver(event.message);
    }
  }
  if (milestones_.empty() && std::isfinite(until)) now_ = std::max(now_, until);
  return milestones_;
}

void Simulation::plan(double at, Kind kind, Message message) { planned_.push({at, planned_so_far_++, kind, message}); }

void Simulation::ready(Message message) {
  auto& it = messages_[message];
  if (it.channel == kNoChannel) {
    it.begun = now_;
    plan(now_ + it.delay, Kind::kDelivered, message);
    return;
  }
  const auto c = static_cast<Channel>(it.channel);
  auto& channel = channels_[c];
  if (channel.head != kNone) {
    messages_[channel.tail].next = message;
    channel.tail = message;
    return;
  }
  channel.head = channel.tail = message;
  begin_head(c);
  if (channel.active) {
    resume(c);
  } else {
    unsettle(c, now_);
  }
}

void Simulation::begin_head(Channel c) {
  auto& channel = channels_[c];
  auto& message = messages_[channel.head];
  message.begun = now_;
  channel.left = message.bits;
  channel.since = now_;
}

void Simulation::sent(Channel c) {
  auto& channel = channels_[c];
  const Message message = channel.head;
  channel.head = messages_[message].next;
  if (channel.head == kNone) {
    rest(c);
    unsettle(c, now_ + stale_);
  } else {
    begin_head(c);
    predict(c);
  }
  if (messages_[message].delay > 0) {
    plan(now_ + messages_[message].delay, Kind::kDelivered, message);
  } else {
    deliver(message);
  }
}

void Simulation::deliver(Message message) {
  messages_[message].delivered = now_;
  --undelivered_;
  if (messages_[message].milestone) milestones_.push_back(message);
  for (auto w = messages_[message].first_wait; w != kNone; w = waits_[w].next) {
    auto& later = messages_[waits_[w].later];
    if (--later.awaited == 0 && later.considered) {
      plan(std::max(now_, later.release), Kind::kReady, waits_[w].later);
    }
  }
}

/// The channel has nothing to send, though its flows keep their rates until these are brought up to date.
void Simulation::rest(Channel c) {
  auto& channel = channels_[c];
  for (auto f = channel.first; f < channel.first + channel.count; ++f) account(f, 0);
  channel.rate = 0;
  ends_.remove(c);
}

void Simulation::resume(Channel c) {
  auto& channel = channels_[c];
  channel.rate = 0;
  for (auto f = channel.first; f < channel.first + channel.count; ++f) {
    account(f, sharing_.rate(f));
    channel.rate += flow_rate_[f];
  }
  predict(c);
}

void Simulation::unsettle(Channel c, double due) {
  due_ = std::min(due_, due);
  if (std::exchange(channels_[c].unsettled, true)) return;
  unsettled_.push_back(c);
}

/// Rates as they are from now on. A channel that became idle and busy again at one moment has not changed.
void Simulation::settle() {
  due_ = kNever;
  for (const Channel c : unsettled_) {
    auto& channel = channels_[c];
    channel.unsettled = false;
    const bool active = channel.head != kNone;
    if (active == channel.active) continue;
    channel.active = active;
    for (auto f = channel.first; f < channel.first + channel.count; ++f) sharing_.set_active(f, active);
  }
  unsettled_.clear();
  for (const auto f : sharing_.settle()) {
    const Channel c = channel_of_[f];
    auto& channel = channels_[c];
    if (!std::exchange(channel.unsettled, true)) {
      drain(channel);
      unsettled_.push_back(c);
    }
    if (channel.head != kNone) account(f, sharing_.rate(f));
  }
  for (const Channel c : unsettled_) {
    auto& channel = channels_[c];
    channel.unsettled = false;
    if (channel.head == kNone) continue;
    channel.rate = 0;
    for (auto f = channel.first; f < channel.first + channel.count; ++f) channel.rate += flow_rate_[f];
    predict(c);
  }
  unsettled_.clear();
}

/// What the flow has sent until now is counted, and from now on it sends at `rate`.
void Simulation::account(Sharing::Flow flow, double rate) {
  flow_bits_[flow] += flow_rate_[flow] * (now_ - flow_since_[flow]);
  flow_since_[flow] = now_;
  flow_rate_[flow] = rate;
}

void Simulation::drain(ChannelState& channel) const {
  channel.left = std::max(0.0, channel.left - channel.rate * (now_ - channel.since));
  channel.since = now_;
}

void Simulation::predict(Channel c) {
  const auto& channel = channels_[c];
  if (channel.rate > 0) {
    ends_.set(c, channel.since + channel.left / channel.rate);
  } else {
    ends_.remove(c);
  }
}

std::vector<double> Simulation::link_bits() const {
  std::vector<double> bits = link_bits_;
  for (Sharing::Flow f = 0; f < sharing_.flows(); ++f) {
    for (const auto& use : sharing_.uses(f)) bits[use.link] += use.share * flow_bits(f);
  }
  return bits;
}

}  // namespace paralet::fluid
