// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace paralet::packet {

namespace {

constexpr double kGain = 1.0 / 16;     // DCTCP's g
constexpr double kCongested = 0.5;     // PLB: of a round's packets, marked
constexpr std::uint32_t kRounds = 12;  // PLB in Linux: net.ipv4.tcp_plb_rehash_rounds

bool pairs_choose(Scheme scheme) { return scheme != Scheme::kHashed && !switches_choose(scheme); }

}  // namespace

Transport::Transport(Core& core, const Routes& routes, Network& network, const TransportOptions& options)
    : core_(core), routes_(routes), network_(network), options_(options), ready_(network.links()) {}

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
      rtt += network_.serialisation(link, full) + network_.serialisation(link ^ 1U, options_.ack_bytes) +
             2 * network_.propagation();
    }
    const double product = static_cast<double>(rtt) / static_cast<double>(network_.serialisation(qp.nic, full));
    qp.most = std::max(2.0, std::ceil(options_.window_bdp * product / static_cast<double>(lanes)));
    qp.window = qp.most;
    qp.timeout = static_cast<Time>(options_.timeout_rtts * static_cast<double>(rtt));
    qp.reroute = static_cast<Time>(options_.reroute_rtts * static_cast<double>(rtt));
    if (pairs_choose(options_.scheme)) qp.route = any_route(qp);
    qp.reorder = static_cast<Time>(options_.reorder_rtts * static_cast<double>(rtt));
    if (qp.most > 1 << 20) throw std::invalid_argument("a window is larger than a million packets");
    const auto room = std::bit_ceil(4 * static_cast<std::uint32_t>(qp.most));
    qp.mask = room - 1;
    qp.slots.resize(room);
    if (options_.receiver == Receiver::kSelectiveRepeat) qp.early.resize(room);
    qps_.push_back(std::move(qp));
  }
  return number;
}

MessageId Transport::add_message(std::uint32_t channel, std::int64_t bytes, Time release, Time pause) {
  const std::int64_t packets = (bytes + options_.payload_bytes - 1) / options_.payload_bytes;
  messages_.push_back({.bytes = bytes,
                       .release = release,
                       .pause = pause,
                       .channel = channel,
                       .packets = static_cast<std::uint32_t>(packets)});
  ++undelivered_;
  return static_cast<MessageId>(messages_.size() - 1);
}

void Transport::add_wait(MessageId earlier, MessageId later) {
  if (messages_[earlier].delivered >= 0) return;
  waits_.push_back({later, messages_[earlier].first_wait});
  messages_[earlier].first_wait = static_cast<std::uint32_t>(waits_.size() - 1);
  ++messages_[later].awaited;
}

void Transport::consider() {
  const auto end = static_cast<MessageId>(messages_.size());
  for (MessageId m = std::exchange(considered_, end); m < end; ++m) {
    if (messages_[m].awaited == 0) schedule(m);
  }
}

/// It waits for no other message any more.
void Transport::schedule(MessageId number) {
  const Message& message = messages_[number];
  core_.events.add(std::max(core_.now, message.release) + message.pause, EventKind::kRelease, number);
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
  for (std::uint32_t lane = 0; lane < channel.lanes; ++lane) make_ready(channel.first + lane);
  network_.wake(qps_[channel.first].nic);
}

std::uint16_t Transport::payload(const Message& message, std::uint32_t packet) const {
  return static_cast<std::uint16_t>(std::min(options_.payload_bytes, message.bytes - packet * options_.payload_bytes));
}

bool Transport::can_send(const Qp& qp) const {
  const bool selective = options_.receiver == Receiver::kSelectiveRepeat;
  if ((selective ? qp.out : qp.next - qp.first) >= static_cast<std::uint32_t>(qp.window)) return false;
  if (qp.lost > 0) return true;
  if (qp.next - qp.first > qp.mask) return false;
  return qp.next != qp.end || channels_[qp.channel].head != kNone;
}

void Transport::make_ready(QpId number) {
  Qp& qp = qps_[number];
  if (qp.ready || !can_send(qp)) return;
  qp.ready = true;
  qp.behind = kNone;
  Line& line = ready_[qp.nic];
  (line.head == kNone ? line.head : qps_[line.tail].behind) = number;
  line.tail = number;
}

/// The next flowlet of the channel's message.
void Transport::give(Qp& qp) {
  Channel& channel = channels_[qp.channel];
  Message& message = messages_[channel.head];
  ++counters_[qp.route].flowlets;
  qp.flowlet_message = channel.head;
  qp.flowlet_packet = message.given;
  const std::uint32_t count = std::min(channel.flowlet, message.packets - message.given);
  message.given += count;
  qp.end += count;
  if (message.given == message.packets) channel.head = message.next;
}

PacketId Transport::next(LinkId link) {
  Line& line = ready_[link];
  while (line.head != kNone) {
    const QpId number = line.head;
    Qp& qp = qps_[number];
    line.head = qp.behind;
    qp.ready = false;
    if (!can_send(qp)) continue;
    if (qp.first == qp.highest) qp.progress = core_.now;  // nothing was out
    std::uint32_t psn = qp.next;
    std::uint64_t fresh_bytes = 0;
    if (qp.lost > 0) {
      for (psn = qp.first; !slot(qp, psn).lost;) ++psn;
      slot(qp, psn).lost = false;
      --qp.lost;
    } else {
      if (qp.next == qp.end) give(qp);
      if (qp.next == qp.highest) {
        const Message& message = messages_[qp.flowlet_message];
        slot(qp, psn) = {.sent = 0,
                         .message = qp.flowlet_message,
                         .bytes = payload(message, qp.flowlet_packet++),
                         .has = false,
                         .lost = false};
        fresh_bytes = slot(qp, psn).bytes;
      }
      ++qp.next;
    }
    const std::uint32_t route = way(qp);
    const std::uint32_t epoch = qp.epoch;
    const bool tail = options_.scheme == Scheme::kConWeave && last_on_route(qp, psn);
    Counters& counters = counters_[route];
    counters.bytes += fresh_bytes;
    if (psn == qp.highest) {
      ++qp.highest;
    } else {
      ++counters.again;
    }
    if (options_.receiver == Receiver::kSelectiveRepeat) ++qp.out;
    ++counters.packets;
    ++totals_.sent;
    Slot& own = slot(qp, psn);
    own.sent = core_.now;
    arm(number);
    make_ready(number);
    return core_.packets.make({.sent = core_.now,
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
std::uint32_t Transport::way(Qp& qp) {
  if (options_.scheme == Scheme::kOblivious) qp.route = any_route(qp);
  if (options_.scheme == Scheme::kRecycled) {
    if (qp.goods > 0) {
      qp.route = qp.good[qp.oldest];
      qp.oldest = (qp.oldest + 1) % kGood;
      --qp.goods;
    } else {
      qp.route = any_route(qp);
    }
  }
  return qp.route;
}

/// ConWeave: whether the queue pair leaves its route behind this packet, because a probe is late. It may do so again
/// only when all of its earlier epochs has been acknowledged. Every packet is a probe when none is out.
bool Transport::last_on_route(Qp& qp, std::uint32_t psn) {
  if (qp.probed < 0) {
    qp.probe = psn;
    qp.probed = core_.now;
    return false;
  }
  const bool settled = static_cast<std::int32_t>(qp.first - qp.epoch_begin) >= 0;
  if (qp.routes == 1 || !settled || psn != qp.highest || core_.now - qp.probed <= qp.reroute) return false;
  qp.probed = -1;
  qp.route = any_route(qp);
  ++qp.epoch;
  qp.epoch_begin = psn + 1;
  return true;
}

void Transport::arm(QpId number) {
  Qp& qp = qps_[number];
  if (qp.timed) return;
  qp.timed = true;
  qp.progress = core_.now;
  core_.after(qp.timeout, EventKind::kTimer, number);
}

void Transport::timer(QpId number) {
  Qp& qp = qps_[number];
  qp.timed = false;
  if (qp.first == qp.highest) return;  // nothing is out
  if (core_.now - qp.progress < qp.timeout) {
    qp.timed = true;
    core_.events.add(qp.progress + qp.timeout, EventKind::kTimer, number);
    return;
  }
  ++counters_[qp.route].timeouts;
  if (options_.scheme == Scheme::kPlb) qp.route = any_route(qp);
  if (options_.receiver == Receiver::kGoBackN) {
    qp.next = qp.first;
  } else {
    for (std::uint32_t psn = qp.first; psn != qp.next; ++psn) {
      Slot& own = slot(qp, psn);
      if (own.has || own.lost) continue;
      own.lost = true;
      ++qp.lost;
      --qp.out;
    }
  }
  arm(number);
  make_ready(number);
  network_.wake(qp.nic);
}

void Transport::receive(PacketId id) {
  ++totals_.arrived;
  const QpId number = core_.packets[id].qp;
  if (core_.packets[id].kind == PacketKind::kData) {
    take_data(number, id);
  } else {
    const Packet packet = core_.packets[id];
    core_.packets.drop(id);
    take_answer(number, packet);
  }
}

/// What has arrived becomes its own answer.
void Transport::take_data(QpId number, PacketId id) {
  Qp& qp = qps_[number];
  Packet& packet = core_.packets[id];
  const std::uint32_t psn = packet.psn;
  const MessageId message = packet.message;
  const bool fresh = psn == qp.expected;
  bool refuse = false;
  if (static_cast<std::int32_t>(psn - qp.expected) > 0) {
    ++totals_.out_of_order;
    if (options_.receiver == Receiver::kGoBackN) {
      if (std::exchange(qp.refused, true)) {  // dropped by the receiver; it has been told
        core_.packets.drop(id);
        return;
      }
      refuse = true;
    } else if (!qp.early[psn & qp.mask]) {
      qp.early[psn & qp.mask] = true;
      land(message);
    }
  }
  if (fresh) {
    qp.refused = false;
    ++qp.expected;
    while (!qp.early.empty() && qp.early[qp.expected & qp.mask]) {
      qp.early[qp.expected & qp.mask] = false;
      ++qp.expected;
    }
    land(message);
  }
  packet.expected = qp.expected;
  packet.kind = refuse ? PacketKind::kNak : PacketKind::kAck;
  packet.bytes = static_cast<std::uint16_t>(options_.ack_bytes);
  packet.hop = 0;
  ++totals_.sent;
  network_.answer(id);
}

void Transport::take_answer(QpId number, const Packet& packet) {
  Qp& qp = qps_[number];
  const std::uint32_t before = qp.first;
  if (options_.receiver == Receiver::kSelectiveRepeat) selected(qp, packet);
  if (static_cast<std::int32_t>(packet.expected - qp.first) > 0) acknowledge(qp, packet.expected);
  if (packet.kind == PacketKind::kNak && packet.expected == qp.first) qp.next = qp.first;  // go back
  if (qp.probed >= 0 && static_cast<std::int32_t>(qp.first - qp.probe) > 0) qp.probed = -1;
  if (options_.scheme == Scheme::kRecycled && !packet.marked) {
    qp.good[(qp.oldest + qp.goods) % kGood] = packet.route;
    if (qp.goods < kGood) {
      ++qp.goods;
    } else {
      qp.oldest = (qp.oldest + 1) % kGood;  // the newest took the oldest's place
    }
  }
  adapt(qp, packet.marked, qp.first - before);
  make_ready(number);
  network_.wake(qp.nic);
}

void Transport::acknowledge(Qp& qp, std::uint32_t expected) {
  if (options_.receiver == Receiver::kSelectiveRepeat) {
    for (std::uint32_t psn = qp.first; psn != expected; ++psn) {
      Slot& own = slot(qp, psn);
      if (own.lost) {
        --qp.lost;
      } else if (!own.has) {
        --qp.out;
      }
    }
  }
  qp.first = expected;
  qp.progress = core_.now;
  if (static_cast<std::int32_t>(qp.next - expected) < 0) qp.next = expected;  // it went back, and need not have
}

/// Selective repeat: the receiver has this packet, and what was sent long before it and is not there is lost.
void Transport::selected(Qp& qp, const Packet& packet) {
  qp.newest = std::max(qp.newest, packet.sent);
  if (static_cast<std::int32_t>(packet.psn - qp.first) < 0) return;
  Slot& own = slot(qp, packet.psn);
  if (!own.has) {
    if (own.lost) {
      own.lost = false;
      --qp.lost;
    } else {
      --qp.out;
    }
    own.has = true;
  }
  if (packet.psn == qp.first || packet.expected != qp.first) return;  // no gap, or one less
  for (std::uint32_t psn = qp.first; psn != packet.psn; ++psn) {
    Slot& other = slot(qp, psn);
    if (other.has || other.lost || other.sent + qp.reorder >= qp.newest) continue;
    other.lost = true;
    ++qp.lost;
    --qp.out;
  }
}

/// DCTCP (Alizadeh et al., SIGCOMM 2010), on a window of packets that never exceeds its first size; and PLB (Qureshi et
/// al., SIGCOMM 2022), which leaves a route after congested rounds in succession.
void Transport::adapt(Qp& qp, bool marked, std::uint32_t count) {
  ++qp.round_acks;
  if (marked) ++qp.round_marks;
  if (options_.reacts && !marked) qp.window = std::min(qp.most, qp.window + static_cast<double>(count) / qp.window);
  if (static_cast<std::int32_t>(qp.first - qp.round_end) < 0) return;
  const double part = static_cast<double>(qp.round_marks) / qp.round_acks;
  if (options_.scheme == Scheme::kPlb) {
    qp.congested = part > kCongested ? qp.congested + 1 : 0;
    if (qp.congested >= kRounds) {
      qp.congested = 0;
      qp.route = any_route(qp);
    }
  }
  qp.marked_part += kGain * (part - qp.marked_part);
  if (options_.reacts && qp.round_marks > 0) qp.window = std::max(1.0, qp.window * (1 - qp.marked_part / 2));
  qp.round_end = qp.next;
  qp.round_acks = qp.round_marks = 0;
}

/// A packet of the message is in its place.
void Transport::land(MessageId number) {
  Message& message = messages_[number];
  if (++message.arrived == message.packets) deliver(number);
}

void Transport::deliver(MessageId number) {
  Message& message = messages_[number];
  message.delivered = core_.now;
  --undelivered_;
  for (std::uint32_t w = message.first_wait; w != kNone; w = waits_[w].next) {
    const MessageId later = waits_[w].later;
    if (--messages_[later].awaited == 0 && considered(later)) schedule(later);
  }
}

}  // namespace paralet::packet
