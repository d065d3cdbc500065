// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace paralet::packet {

namespace {

constexpr std::uint32_t kReach = 1024;  // as Reassembly::kWindow of `soft`
constexpr double kGain = 1.0 / 16;      // DCTCP: g
constexpr double kCongested = 0.5;      // PLB: a round with a larger fraction of marked packets is congested
constexpr std::uint32_t kRounds = 12;   // PLB: default of Linux's net.ipv4.tcp_plb_rehash_rounds

bool pairs_choose(Scheme scheme) { return scheme != Scheme::kHashed && !switches_choose(scheme); }

}  // namespace

Transport::Transport(Context& context, const Routes& routes, Network& network, const TransportOptions& options)
    : context_(context),
      routes_(routes),
      network_(network),
      options_(options),
      ready_(network.links()),
      shared_(network.links()) {}

std::uint32_t Transport::add_channel(std::span<const std::uint32_t> routes, std::int64_t flowlet_bytes) {
  const auto number = static_cast<std::uint32_t>(channels_.size());
  const std::size_t lanes = pairs_choose(options_.scheme) ? 1 : routes.size();
  const std::size_t each = routes.size() / lanes;
  counters_.resize(std::max(counters_.size(), std::size_t{routes.back()} + 1));
  channels_.push_back(
      {.first = static_cast<QpId>(qps_.size()),
       .lanes = static_cast<std::uint32_t>(lanes),
       .flowlet = static_cast<std::uint32_t>(std::max<std::int64_t>(1, flowlet_bytes / options_.payload_bytes))});
  const std::int64_t full = options_.payload_bytes + options_.header_bytes;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::uint32_t route = routes[lane * each];
    Qp qp{.channel = number,
          .first_route = route,
          .routes = static_cast<std::uint32_t>(each),
          .route = route,
          .nic = routes_.link(route, 0)};
    Time rtt = 0;
    for (std::size_t hop = 0; hop < routes_.length(route); ++hop) {
      const LinkId link = routes_.link(route, hop);
      rtt += network_.serialisation(link, full) + network_.propagation(link);
    }
    for (std::size_t hop = 0; hop < routes_.back_length(route); ++hop) {
      const LinkId link = routes_.back_link(route, hop);
      rtt += network_.serialisation(link, options_.ack_bytes) + network_.propagation(link);
    }
    const double product = static_cast<double>(rtt) / static_cast<double>(network_.serialisation(qp.nic, full));
    qp.max_window = std::max(2.0, std::ceil(options_.window_bdp * product / static_cast<double>(lanes)));
    qp.window = qp.max_window;
    qp.timeout = static_cast<Time>(options_.timeout_rtts * static_cast<double>(rtt));
    qp.reroute = static_cast<Time>(options_.reroute_rtts * static_cast<double>(rtt));
    if (pairs_choose(options_.scheme)) qp.route = any_route(qp);
    if (qp.max_window > 1 << 20) throw std::invalid_argument("a window is larger than a million packets");
    const auto room = std::bit_ceil(static_cast<std::uint32_t>(qp.max_window));
    qp.slots.resize(room);
    qp.reach = std::max(kReach, 2 * room);
    qps_.push_back(std::move(qp));
  }
  if (options_.lanes_per_host) share_lanes(channels_.back());
  return number;
}

/// A shared lane has the window that its farthest peer needs.
void Transport::share_lanes(const Channel& channel) {
  auto& lanes = shared_[qps_[channel.first].nic].lanes;
  if (lanes.empty()) lanes.resize(channel.lanes);
  if (lanes.size() != channel.lanes) throw std::invalid_argument("channels that share lanes differ in their number");
  for (std::uint32_t lane = 0; lane < channel.lanes; ++lane) {
    lanes[lane].window = std::max(lanes[lane].window, qps_[channel.first + lane].max_window);
  }
}

MessageId Transport::add_message(std::uint32_t channel, std::int64_t bytes, Time release, Time pause, bool milestone) {
  const std::int64_t packets = (bytes + options_.payload_bytes - 1) / options_.payload_bytes;
  messages_.push_back({.bytes = bytes,
                       .release = release,
                       .pause = pause,
                       .channel = channel,
                       .packets = static_cast<std::uint32_t>(packets),
                       .milestone = milestone});
  return waits_.add_message();
}

void Transport::activate() {
  waits_.activate([&](MessageId message) { schedule(message); });
}

/// The message waits for no other message any more.
void Transport::schedule(MessageId number) {
  const Message& message = messages_[number];
  context_.events.add(std::max(context_.now, message.release) + message.pause, EventKind::kRelease, number);
}

void Transport::release(MessageId number) {
  Message& message = messages_[number];
  if (message.packets == 0) {
    deliver(number);
    return;
  }
  Channel& channel = channels_[message.channel];
  (channel.head == kNone ? channel.head : messages_[channel.tail].next) = number;
  channel.tail = number;
  if (options_.lanes_per_host) {
    if (channel.head == number) wait_for_lanes(message.channel);
    take_turns(qps_[channel.first].nic);
  } else {
    for (std::uint32_t lane = 0; lane < channel.lanes; ++lane) make_ready(channel.first + lane);
  }
  network_.wake(qps_[channel.first].nic);
}

std::uint16_t Transport::payload(const Message& message, std::uint32_t packet) const {
  return static_cast<std::uint16_t>(std::min(options_.payload_bytes, message.bytes - packet * options_.payload_bytes));
}

bool Transport::can_send(QpId number) const {
  const Qp& qp = qps_[number];
  if (qp.repeat.probes()) return true;
  const std::uint32_t sent = qp.next - qp.first;
  if (sent - qp.repeat.settled() >= static_cast<std::uint64_t>(qp.window)) return false;
  if (qp.repeat.any_lost()) return true;
  if (sent >= qp.reach) return false;
  if (options_.lanes_per_host) {
    if (qp.next != qp.highest) return true;  // again, so that its lane counts it already
    const auto& lane = shared_[qp.nic].lanes[number - channels_[qp.channel].first];
    return qp.next != qp.end && lane.under_way < static_cast<std::uint64_t>(lane.window);
  }
  return qp.next != qp.end || channels_[qp.channel].head != kNone;
}

void Transport::make_ready(QpId number) {
  Qp& qp = qps_[number];
  if (qp.ready || !can_send(number)) return;
  qp.ready = true;
  qp.behind = kNone;
  ReadyQueue& queue = ready_[qp.nic];
  (queue.head == kNone ? queue.head : qps_[queue.tail].behind) = number;
  queue.tail = number;
}

/// The queue pair has sent or heard something: it may be able to send now, or its NIC's lane may.
void Transport::proceed(QpId number) {
  if (options_.lanes_per_host) {
    Qp& qp = qps_[number];
    SharedLane& lane = shared_lane(qp, number);
    const auto under_way = static_cast<std::uint32_t>(qp.highest - qp.first - qp.repeat.settled());
    lane.under_way += under_way - std::exchange(qp.counted, under_way);
    if (lane.sending == number && qp.highest == qp.end) lane.sending = kNone;
    if (lane.sending == kNone) give_flowlet(qp.nic, number - channels_[qp.channel].first);
    if (lane.sending != kNone) make_ready(lane.sending);
  }
  make_ready(number);
}

/// The channel has messages again and waits behind the others of its NIC.
void Transport::wait_for_lanes(std::uint32_t channel) {
  SharedLanes& shared = shared_[qps_[channels_[channel].first].nic];
  channels_[channel].behind = kNone;
  (shared.first_waiting == kNone ? shared.first_waiting : channels_[shared.last_waiting].behind) = channel;
  shared.last_waiting = channel;
}

/// Gives waiting flowlets to the lanes of a NIC that are free.
void Transport::take_turns(LinkId nic) {
  SharedLanes& shared = shared_[nic];
  for (std::size_t asked = 0; asked < shared.lanes.size() && shared.first_waiting != kNone; ++asked) {
    const std::size_t lane = std::exchange(shared.turn, (shared.turn + 1) % shared.lanes.size());
    if (give_flowlet(nic, lane)) make_ready(shared.lanes[lane].sending);
  }
}

/// Gives the next waiting flowlet to a lane, if there is one and the lane could send it. Whether it did.
bool Transport::give_flowlet(LinkId nic, std::size_t index) {
  SharedLanes& shared = shared_[nic];
  SharedLane& lane = shared.lanes[index];
  const std::uint32_t waiting = shared.first_waiting;
  if (waiting == kNone || lane.sending != kNone || lane.under_way >= static_cast<std::uint64_t>(lane.window))
    return false;
  shared.first_waiting = channels_[waiting].behind;
  lane.sending = channels_[waiting].first + static_cast<QpId>(index);
  take_flowlet(qps_[lane.sending]);
  if (channels_[waiting].head != kNone) wait_for_lanes(waiting);
  return true;
}

/// Makes room for twice as many packets that are not acknowledged.
void Transport::make_room(Qp& qp) {
  std::vector<Slot> larger(2 * qp.slots.size());
  for (std::uint32_t psn = qp.first; psn != qp.next; ++psn) larger[psn & (larger.size() - 1)] = slot(qp, psn);
  qp.slots = std::move(larger);
}

/// Assigns the next flowlet of the channel's message to the queue pair.
void Transport::take_flowlet(Qp& qp) {
  Channel& channel = channels_[qp.channel];
  Message& message = messages_[channel.head];
  ++counters_of(qp).flowlets;
  qp.flowlet_message = channel.head;
  qp.flowlet_packet = message.assigned;
  const std::uint32_t count = std::min(channel.flowlet, message.packets - message.assigned);
  message.assigned += count;
  qp.end += count;
  if (message.assigned == message.packets) channel.head = message.next;
}

PacketId Transport::next(LinkId link) {
  ReadyQueue& queue = ready_[link];
  while (queue.head != kNone) {
    const QpId number = queue.head;
    Qp& qp = qps_[number];
    queue.head = qp.behind;
    qp.ready = false;
    if (!can_send(number)) continue;
    if (qp.first == qp.highest) qp.progress = context_.now;  // none was outstanding
    std::uint32_t psn = qp.next;
    std::uint64_t fresh_bytes = 0;
    const bool again = qp.repeat.any_lost();
    const SelectiveRepeat::Range before = flight(qp);
    if (again) {
      psn = static_cast<std::uint32_t>(qp.repeat.first_lost());
    } else {
      if (qp.next == qp.end) take_flowlet(qp);
      if (qp.next == qp.highest) {
        if (qp.next - qp.first == qp.slots.size()) make_room(qp);
        const Message& message = messages_[qp.flowlet_message];
        slot(qp, psn) = {.message = qp.flowlet_message, .bytes = payload(message, qp.flowlet_packet++)};
        fresh_bytes = slot(qp, psn).bytes;
      }
      ++qp.next;
    }
    if (selective()) qp.repeat.sent(before, psn, context_.now, again);
    const std::uint32_t route = next_route(qp);
    const std::uint32_t epoch = qp.epoch;
    const bool tail = options_.scheme == Scheme::kConWeave && reroute_after(qp, psn);
    Counters& counters = counters_of(qp);
    counters.bytes += fresh_bytes;
    if (psn == qp.highest) {
      ++qp.highest;
    } else {
      ++counters.retransmits;
    }
    ++counters.packets;
    ++totals_.sent;
    const Slot own = slot(qp, psn);
    set_timer(number);
    proceed(number);
    return context_.packets.make({.sent = context_.now,
                                  .next = kNone,
                                  .qp = number,
                                  .psn = psn,
                                  .expected = 0,
                                  .message = own.message,
                                  .route = route,
                                  .in = kNone,
                                  .bytes = static_cast<std::uint16_t>(own.bytes + options_.header_bytes),
                                  .hop = 0,
                                  .kind = PacketKind::kData,
                                  .marked = false,
                                  .tail = tail,
                                  .epoch = epoch});
  }
  return kNone;
}

/// The route of the next packet.
std::uint32_t Transport::next_route(Qp& qp) {
  if (options_.scheme == Scheme::kOblivious) qp.route = any_route(qp);
  if (options_.scheme == Scheme::kRecycled) {
    if (qp.recycled_count > 0) {
      qp.route = qp.recycled[qp.oldest];
      qp.oldest = (qp.oldest + 1) % kRecycled;
      --qp.recycled_count;
    } else {
      qp.route = any_route(qp);
    }
  }
  return qp.route;
}

/// ConWeave: whether the queue pair leaves its route after packet `psn` because a probe is late; if so, its next route
/// is drawn. All packets of earlier epochs must have been acknowledged. A packet is a probe when none is outstanding.
bool Transport::reroute_after(Qp& qp, std::uint32_t psn) {
  if (qp.probed < 0) {
    qp.probe = psn;
    qp.probed = context_.now;
    return false;
  }
  const bool settled = static_cast<std::int32_t>(qp.first - qp.epoch_begin) >= 0;
  if (qp.routes == 1 || !settled || psn != qp.highest || context_.now - qp.probed <= qp.reroute) return false;
  qp.probed = -1;
  qp.route = any_route(qp);
  ++qp.epoch;
  qp.epoch_begin = psn + 1;
  return true;
}

void Transport::set_timer(QpId number) {
  Qp& qp = qps_[number];
  if (qp.timer_set) return;
  qp.timer_set = true;
  qp.progress = context_.now;
  context_.after(qp.timeout, EventKind::kTimer, number);
}

void Transport::timer(QpId number) {
  Qp& qp = qps_[number];
  qp.timer_set = false;
  if (qp.first == qp.highest) return;  // none is outstanding
  if (context_.now - qp.progress < qp.timeout) {
    qp.timer_set = true;
    context_.events.add(qp.progress + qp.timeout, EventKind::kTimer, number);
    return;
  }
  ++counters_of(qp).timeouts;
  if (options_.scheme == Scheme::kPlb) qp.route = any_route(qp);
  if (selective()) {
    qp.repeat.probe(flight(qp));
  } else {
    qp.next = qp.first;
  }
  set_timer(number);
  proceed(number);
  network_.wake(qp.nic);
}

void Transport::reorder_timer(QpId number) {
  Qp& qp = qps_[number];
  if (qp.reorder_at != context_.now) return;  // an earlier event took its place
  qp.reorder_at = kNeverTime;
  detect_losses(number);
  proceed(number);
  network_.wake(qp.nic);
}

void Transport::detect_losses(QpId number) {
  Qp& qp = qps_[number];
  qp.repeat.detect_losses(flight(qp), context_.now);
  if (qp.repeat.deadline() >= qp.reorder_at) return;
  qp.reorder_at = std::max(qp.repeat.deadline(), context_.now);
  context_.events.add(qp.reorder_at, EventKind::kReorder, number);
}

void Transport::receive(PacketId id) {
  ++totals_.arrived;
  const QpId number = context_.packets[id].qp;
  if (context_.packets[id].kind == PacketKind::kData) {
    receive_data(number, id);
  } else {
    const Packet packet = context_.packets[id];
    context_.packets.drop(id);
    receive_ack(number, packet);
  }
}

/// The packet is reused as its own acknowledgement.
void Transport::receive_data(QpId number, PacketId id) {
  Qp& qp = qps_[number];
  Packet& packet = context_.packets[id];
  const std::uint32_t psn = packet.psn;
  const MessageId message = packet.message;
  const bool fresh = psn == qp.expected;
  bool nak = false;
  if (static_cast<std::int32_t>(psn - qp.expected) > 0) {
    ++totals_.out_of_order;
    if (!selective()) {
      if (std::exchange(qp.nak_sent, true)) {  // one NAK per gap
        context_.packets.drop(id);
        return;
      }
      nak = true;
    } else {
      if (qp.early.empty()) qp.early.resize(qp.reach);
      if (!qp.early[psn % qp.reach]) packet_arrived(message);
      qp.early[psn % qp.reach] = true;
    }
  }
  if (fresh) {
    qp.nak_sent = false;
    ++qp.expected;
    while (!qp.early.empty() && qp.early[qp.expected % qp.reach]) {
      qp.early[qp.expected % qp.reach] = false;
      ++qp.expected;
    }
    packet_arrived(message);
  }
  packet.expected = qp.expected;
  packet.kind = nak ? PacketKind::kNak : PacketKind::kAck;
  packet.bytes = static_cast<std::uint16_t>(options_.ack_bytes);
  packet.hop = 0;
  ++totals_.sent;
  network_.send_ack(id);
}

void Transport::receive_ack(QpId number, const Packet& packet) {
  Qp& qp = qps_[number];
  const std::uint32_t before = qp.first;
  unsigned arrived = 0;
  if (selective()) {
    arrived = qp.repeat.acknowledge(flight(qp), packet.expected, packet.psn, context_.now);
    if (arrived > 0) qp.progress = context_.now;
  }
  if (static_cast<std::int32_t>(packet.expected - qp.first) > 0) acknowledge(qp, packet.expected);
  if (arrived > 0) detect_losses(number);
  if (packet.kind == PacketKind::kNak && packet.expected == qp.first) qp.next = qp.first;  // go back
  if (qp.probed >= 0 && static_cast<std::int32_t>(qp.first - qp.probe) > 0) qp.probed = -1;
  if (options_.scheme == Scheme::kRecycled && !packet.marked) {
    qp.recycled[(qp.oldest + qp.recycled_count) % kRecycled] = packet.route;
    if (qp.recycled_count < kRecycled) {
      ++qp.recycled_count;
    } else {
      qp.oldest = (qp.oldest + 1) % kRecycled;  // the newest has overwritten the oldest
    }
  }
  update_window(qp, packet.marked, selective() ? arrived : qp.first - before);
  proceed(number);
  network_.wake(qp.nic);
}

void Transport::acknowledge(Qp& qp, std::uint32_t expected) {
  qp.first = expected;
  qp.progress = context_.now;
  if (static_cast<std::int32_t>(qp.next - expected) < 0) qp.next = expected;  // it had gone back too far
}

/// DCTCP (Alizadeh et al., SIGCOMM 2010) on a window that never exceeds its initial size, and PLB (Qureshi et al.,
/// SIGCOMM 2022), which leaves a route after several congested rounds in succession.
void Transport::update_window(Qp& qp, bool marked, std::uint32_t count) {
  ++qp.round_acks;
  if (marked) ++qp.round_marks;
  if (options_.dctcp && !marked)
    qp.window = std::min(qp.max_window, qp.window + static_cast<double>(count) / qp.window);
  if (static_cast<std::int32_t>(qp.first - qp.round_end) < 0) return;
  const double part = static_cast<double>(qp.round_marks) / qp.round_acks;
  if (options_.scheme == Scheme::kPlb) {
    qp.congested = part > kCongested ? qp.congested + 1 : 0;
    if (qp.congested >= kRounds) {
      qp.congested = 0;
      qp.route = any_route(qp);
    }
  }
  qp.alpha += kGain * (part - qp.alpha);
  if (options_.dctcp && qp.round_marks > 0) qp.window = std::max(1.0, qp.window * (1 - qp.alpha / 2));
  qp.round_end = qp.next;
  qp.round_acks = qp.round_marks = 0;
}

/// A packet of the message has arrived for the first time.
void Transport::packet_arrived(MessageId number) {
  Message& message = messages_[number];
  if (++message.arrived == message.packets) deliver(number);
}

void Transport::deliver(MessageId number) {
  Message& message = messages_[number];
  message.delivered = context_.now;
  if (message.milestone) reached_.push_back(number);
  waits_.deliver(number, [&](MessageId later) { schedule(later); });
}

}  // namespace paralet::packet
