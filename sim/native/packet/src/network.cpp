// SPDX-License-Identifier: Apache-2.0
#include "network.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "transport.hpp"

namespace paralet::packet {

Network::Network(Context& context, const Routes& routes, std::span<const std::int64_t> rates,
                 std::span<const Time> propagations, std::span<const NodeId> heads, std::span<const bool> switches,
                 const NetworkOptions& options)
    : context_(context), routes_(routes), options_(options) {
  for (const bool is_switch : switches) nodes_.push_back({is_switch});
  for (std::size_t l = 0; l < rates.size(); ++l)
    links_.push_back({rates[l], heads[l], {propagations[l], options_.mark_bytes, 0}, propagations[l]});
  if (!options_.pause) return;
  std::vector<std::int64_t> degree(nodes_.size());
  std::vector<std::int64_t> headroom(nodes_.size());  // bytes that may still arrive after a pause was sent
  for (const auto& link : links_) {
    ++degree[link.head];
    // Not in integers: the product of a long delay and a high rate overflows them.
    const double seconds = static_cast<double>(link.first_propagation) / static_cast<double>(kSecond);
    const double on_the_way = std::min(2 * seconds * static_cast<double>(link.rate) / 8,
                                       static_cast<double>(options_.switch_bytes));  // more never fits
    const std::int64_t arriving = static_cast<std::int64_t>(on_the_way) + 3 * options_.largest_bytes;
    headroom[link.head] = std::max(headroom[link.head], arriving);
  }
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (!nodes_[n].is_switch || degree[n] == 0) continue;
    nodes_[n].pause_above = options_.switch_bytes / degree[n] - headroom[n];
    if (nodes_[n].pause_above < 2 * options_.largest_bytes) {
      throw std::invalid_argument("the buffer of a switch is too small for priority flow control");
    }
  }
}

void Network::set_conditions(LinkId link, const LinkConditions& conditions) {
  if (options_.pause && conditions.propagation > links_[link].first_propagation) {
    throw std::invalid_argument("priority flow control needs buffers for the delay of every link");
  }
  links_[link].conditions = conditions;
}

void Network::send_ack(PacketId id) { enqueue_ack(routes_.link_of(context_.packets[id]), id); }

void Network::enqueue_ack(LinkId link, PacketId id) {
  links_[link].acks.push(context_.packets, id);
  wake(link);
}

void Network::enqueue(LinkId number, PacketId id) {
  Link& link = links_[number];
  Packet& packet = context_.packets[id];
  Node& node = nodes_[links_[number ^ 1U].head];
  const std::int64_t bytes = packet.bytes;
  const bool fits = node.buffered + bytes <= options_.switch_bytes;
  if (!fits || (!options_.pause && link.queued + bytes > options_.port_bytes)) {
    ++link.counters.dropped;
    transport_->dropped(packet);
    context_.packets.drop(id);
    return;
  }
  node.buffered += bytes;
  if (options_.pause) {
    Link& in = links_[packet.in];
    in.buffered += bytes;
    if (!in.pause_sent && in.buffered > node.pause_above) {
      in.pause_sent = true;
      ++in.counters.pauses;
      context_.after(in.conditions.propagation, EventKind::kPause, packet.in);
    }
  }
  if (link.conditions.mark_bytes > 0 && link.queued >= link.conditions.mark_bytes) {
    packet.marked = true;
    ++link.counters.marked;
  }
  link.queued += bytes;
  link.counters.max_queued = std::max(link.counters.max_queued, link.queued);
  link.queue.push(context_.packets, id);
  if (!link.busy) start(number);
}

void Network::start(LinkId number) {
  Link& link = links_[number];
  if (!link.acks.empty()) {
    link.sending = link.acks.pop(context_.packets);
  } else if (link.paused) {
    return;
  } else {
    link.sending = link.own_turn || link.queue.empty() ? own_data(number) : kNone;
    link.own_turn = false;
    if (link.sending == kNone) {
      if (link.queue.empty()) return;
      link.sending = link.queue.pop(context_.packets);
      link.own_turn = true;
    }
  }
  link.busy = true;
  context_.after(serialisation(number, context_.packets[link.sending].bytes), EventKind::kSent, number);
}

PacketId Network::own_data(LinkId number) { return from_switch(number) ? kNone : transport_->next(number); }

void Network::sent(LinkId number) {
  Link& link = links_[number];
  const PacketId id = link.sending;
  const Packet& packet = context_.packets[id];
  link.busy = false;
  ++link.counters.packets;
  link.counters.bytes += packet.bytes;
  const bool data = packet.kind == PacketKind::kData;
  if (data && packet.hop > 0) {  // it was in the queue
    link.queued -= packet.bytes;
    free_buffer(links_[number ^ 1U].head, packet);
  }
  if (data && link.conditions.loss > 0 && context_.random.real() < link.conditions.loss) {
    ++link.counters.lost;
    transport_->dropped(packet);
    context_.packets.drop(id);
    return start(number);
  }
  link.propagating.push(context_.packets, id);
  link.last_arrival = std::max(link.last_arrival, context_.now + link.conditions.propagation);
  context_.after(link.last_arrival - context_.now, EventKind::kArrived, number);
  start(number);
}

void Network::free_buffer(NodeId at, const Packet& packet) {
  nodes_[at].buffered -= packet.bytes;
  if (!options_.pause) return;
  Link& in = links_[packet.in];
  in.buffered -= packet.bytes;
  if (in.pause_sent && in.buffered <= nodes_[at].pause_above - options_.largest_bytes) {
    in.pause_sent = false;
    context_.after(in.conditions.propagation, EventKind::kResume, packet.in);
  }
}

void Network::arrived(LinkId number) {
  const PacketId id = links_[number].propagating.pop(context_.packets);
  Packet& packet = context_.packets[id];
  // Where switches choose, a route says only where data end.
  if (!to_switch(number) && (switches_choose(options_.scheme) || !routes_.relayed(packet))) {
    transport_->receive(id);
    return;
  }
  packet.in = number;
  ++packet.hop;
  if (packet.kind != PacketKind::kData) {
    enqueue_ack(routes_.link_of(packet), id);
  } else if (switches_choose(options_.scheme)) {
    enqueue(choose_link(links_[number].head, packet), id);
  } else if (options_.scheme != Scheme::kConWeave || may_forward(routes_.link_of(packet), id)) {
    enqueue(routes_.link_of(packet), id);
  }
}

void Network::set_groups(Groups groups) {
  groups_ = std::move(groups);
  best_.assign((nodes_.size() - groups_.first_switch) * groups_.links.size(), kNone);
}

/// The link to which switch `at` forwards a packet when switches choose.
LinkId Network::choose_link(NodeId at, const Packet& packet) {
  const LinkId last = routes_.link(packet.route, routes_.length(packet.route) - 1U);
  const std::size_t own = at - groups_.first_switch;
  const auto group = static_cast<std::size_t>(groups_.of[own * links_.size() + last]);
  const auto& links = groups_.links[group];
  const auto count = static_cast<std::uint32_t>(links.size());
  if (count == 1) return links[0];
  if (options_.scheme == Scheme::kSpraying) return links[context_.random.below(count)];
  if (options_.scheme == Scheme::kDrill) {
    LinkId& best = best_[own * groups_.links.size() + group];
    for (int sample = 0; sample < 2; ++sample) {
      const LinkId other = links[context_.random.below(count)];
      if (best == kNone || links_[other].queued < links_[best].queued) best = other;
    }
    return best;
  }
  const std::size_t place = packet.qp * kHops + packet.hop % kHops;
  if (place >= flowlets_.size()) flowlets_.resize((packet.qp + std::size_t{1}) * kHops);
  Flowlet& flowlet = flowlets_[place];
  if (flowlet.link == kNone || context_.now - flowlet.last > options_.flowlet_gap) {
    flowlet.link = links[context_.random.below(count)];
  }
  flowlet.last = context_.now;
  return flowlet.link;
}

/// ConWeave at the last switch: whether the caller may forward the packet. If not, it is held or already forwarded.
bool Network::may_forward(LinkId link, PacketId id) {
  if (to_switch(link)) return true;
  const Packet packet = context_.packets[id];
  if (packet.qp >= held_.size()) held_.resize(packet.qp + std::size_t{1});
  Held& held = held_[packet.qp];
  if (packet.epoch > held.epoch) {
    if (held.packets.empty()) {
      held.since = context_.now;
      context_.after(options_.hold, EventKind::kFlush, packet.qp);
    }
    held.packets.push(context_.packets, id);
    return false;
  }
  if (!packet.tail || packet.epoch < held.epoch) return true;
  enqueue(link, id);
  release_held(held);
  return false;
}

void Network::release_held(Held& held) {
  ++held.epoch;
  while (!held.packets.empty()) {
    const PacketId id = held.packets.pop(context_.packets);
    enqueue(routes_.link_of(context_.packets[id]), id);
  }
}

void Network::flush(QpId qp) {
  Held& held = held_[qp];
  if (!held.packets.empty() && context_.now - held.since >= options_.hold) release_held(held);
}

void Network::resume(LinkId number) {
  links_[number].paused = false;
  wake(number);
}

std::uint64_t Network::in_flight() {
  std::uint64_t count = 0;
  for (const auto& link : links_) {
    if (link.busy) ++count;
    for (const auto* queue : {&link.acks, &link.queue, &link.propagating}) {
      for (PacketId id = queue->first(); id != kNone; id = context_.packets[id].next) ++count;
    }
  }
  for (const auto& held : held_) {
    for (PacketId id = held.packets.first(); id != kNone; id = context_.packets[id].next) ++count;
  }
  return count;
}

}  // namespace paralet::packet
