// SPDX-License-Identifier: Apache-2.0
#include "simulation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace paralet::fluid {

namespace {

/// Times that differ by less than this, relatively, count as equal.
constexpr double kSameTime = 1e-9;

}  // namespace

Simulation::Simulation(std::span<const double> capacity, double precision, double stale)
    : allocator_(capacity, precision), stale_(stale), link_bits_(capacity.size()) {}

Simulation::Channel Simulation::add_channel(MaxMinAllocator::Flow first, std::uint32_t count) {
  const auto channel = static_cast<Channel>(channels_.size());
  channels_.push_back({.first = first, .count = count});
  const auto flows = allocator_.flows();
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
  return waits_.add_message();
}

void Simulation::set_capacity(std::uint32_t link, double capacity) {
  allocator_.set_capacity(link, capacity);
  rates_due_ = now_;
}

void Simulation::set_uses(MaxMinAllocator::Flow flow, std::span<const Use> uses) {
  set_flow_rate(flow, flow_rate_[flow]);
  for (const auto& use : allocator_.uses(flow)) link_bits_[use.link] += use.share * flow_bits_[flow];
  flow_bits_[flow] = 0;
  allocator_.set_uses(flow, uses);
  rates_due_ = now_;
}

std::span<const Simulation::Message> Simulation::advance(double until) {
  milestones_.clear();
  waits_.activate([&](Message message) { schedule_ready(message); });
  while (milestones_.empty()) {
    const double end = ends_.empty() ? kNever : ends_.top_time();
    const double next = events_.empty() ? end : std::min(end, events_.top().time);
    // All events of one time are handled before rates are updated, once.
    if (rates_due_ < next && std::max(rates_due_, now_ + kSameTime * now_) < next) {
      if (rates_due_ > until) break;
      now_ = std::max(now_, rates_due_);
      update_rates();
      continue;
    }
    if (next > until || next == kNever) break;
    now_ = std::max(now_, next);
    ++event_count_;
    if (end == next) {
      head_sent(ends_.top());
      continue;
    }
    const Event event = events_.top();
    events_.pop();
    if (event.kind == Kind::kReady) {
      ready(event.message);
    } else {
      deliver(event.message);
    }
  }
  if (milestones_.empty() && std::isfinite(until)) now_ = std::max(now_, until);
  return milestones_;
}

void Simulation::schedule(double time, Kind kind, Message message) {
  events_.push({time, scheduled_++, kind, message});
}

/// The message waits for no other message any more.
void Simulation::schedule_ready(Message message) {
  schedule(std::max(now_, messages_[message].release), Kind::kReady, message);
}

void Simulation::ready(Message message) {
  auto& it = messages_[message];
  if (it.channel == kNoChannel) {
    it.begun = now_;
    schedule(now_ + it.delay, Kind::kDelivered, message);
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
    resume_sending(c);
  } else {
    list_changed(c, now_);
  }
}

void Simulation::begin_head(Channel c) {
  auto& channel = channels_[c];
  auto& message = messages_[channel.head];
  message.begun = now_;
  channel.left = message.bits;
  channel.since = now_;
}

void Simulation::head_sent(Channel c) {
  auto& channel = channels_[c];
  const Message message = channel.head;
  channel.head = messages_[message].next;
  if (channel.head == kNone) {
    stop_sending(c);
    list_changed(c, now_ + stale_);
  } else {
    begin_head(c);
    predict_end(c);
  }
  if (messages_[message].delay > 0) {
    schedule(now_ + messages_[message].delay, Kind::kDelivered, message);
  } else {
    deliver(message);
  }
}

void Simulation::deliver(Message message) {
  messages_[message].delivered = now_;
  if (messages_[message].milestone) milestones_.push_back(message);
  waits_.deliver(message, [&](Message later) { schedule_ready(later); });
}

/// The channel has nothing to send. The allocator keeps its flows' share until the next update of rates.
void Simulation::stop_sending(Channel c) {
  auto& channel = channels_[c];
  for (auto f = channel.first; f < channel.first + channel.count; ++f) set_flow_rate(f, 0);
  channel.rate = 0;
  ends_.remove(c);
}

void Simulation::resume_sending(Channel c) {
  auto& channel = channels_[c];
  channel.rate = 0;
  for (auto f = channel.first; f < channel.first + channel.count; ++f) {
    set_flow_rate(f, allocator_.rate(f));
    channel.rate += flow_rate_[f];
  }
  predict_end(c);
}

void Simulation::list_changed(Channel c, double due) {
  rates_due_ = std::min(rates_due_, due);
  if (std::exchange(channels_[c].listed, true)) return;
  changed_channels_.push_back(c);
}

/// Brings rates up to date. A channel that became idle and busy again at one time has not changed.
void Simulation::update_rates() {
  rates_due_ = kNever;
  for (const Channel c : changed_channels_) {
    auto& channel = channels_[c];
    channel.listed = false;
    const bool active = channel.head != kNone;
    if (active == channel.active) continue;
    channel.active = active;
    for (auto f = channel.first; f < channel.first + channel.count; ++f) allocator_.set_active(f, active);
  }
  changed_channels_.clear();
  for (const auto f : allocator_.update_rates()) {
    const Channel c = channel_of_[f];
    auto& channel = channels_[c];
    if (!std::exchange(channel.listed, true)) {
      drain(channel);
      changed_channels_.push_back(c);
    }
    if (channel.head != kNone) set_flow_rate(f, allocator_.rate(f));
  }
  for (const Channel c : changed_channels_) {
    auto& channel = channels_[c];
    channel.listed = false;
    if (channel.head == kNone) continue;
    channel.rate = 0;
    for (auto f = channel.first; f < channel.first + channel.count; ++f) channel.rate += flow_rate_[f];
    predict_end(c);
  }
  changed_channels_.clear();
}

/// Counts what the flow has sent until now. From now on it sends at `rate`.
void Simulation::set_flow_rate(MaxMinAllocator::Flow flow, double rate) {
  flow_bits_[flow] += flow_rate_[flow] * (now_ - flow_since_[flow]);
  flow_since_[flow] = now_;
  flow_rate_[flow] = rate;
}

void Simulation::drain(ChannelState& channel) const {
  channel.left = std::max(0.0, channel.left - channel.rate * (now_ - channel.since));
  channel.since = now_;
}

void Simulation::predict_end(Channel c) {
  const auto& channel = channels_[c];
  if (channel.rate > 0) {
    ends_.set(c, channel.since + channel.left / channel.rate);
  } else {
    ends_.remove(c);
  }
}

std::vector<double> Simulation::link_bits() const {
  std::vector<double> bits = link_bits_;
  for (MaxMinAllocator::Flow f = 0; f < allocator_.flows(); ++f) {
    for (const auto& use : allocator_.uses(f)) bits[use.link] += use.share * flow_bits(f);
  }
  return bits;
}

}  // namespace paralet::fluid
