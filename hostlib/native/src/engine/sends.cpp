// SPDX-License-Identifier: Apache-2.0
#include "engine/sends.hpp"

#include <algorithm>
#include <utility>

#include "engine/advertised_receives.hpp"
#include "engine/advertisements.hpp"
#include "engine/flowlet.hpp"
#include "engine/posted_work.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {

void Sends::start(std::shared_ptr<Request> request) {
  Connection& connection = *request->connection;
  connection.eager_sends.note(request->length, context_.options.eager_bytes);
  connection.sends.push_back(std::move(request));
  advance(connection);
  if (connection.sends.empty() || !connection.peer->eager || !connection.eager_sends.lacks_credit()) return;
  results_.count(&MessageCounters::eager_waits);
}

/// Sends what can go: short messages eagerly, oldest first, and all that meet an advertised receive. The others wait,
/// for a credit or for the advertisements that the peer is asked for.
void Sends::advance(Connection& connection) {
  if (connection.state != Connection::State::kOpen || connection.peer_quiet) return;
  do {
    while (connection.eager_sends.allowed() && first_is_short(connection) && send_first_eagerly(connection)) {
    }
  } while (match(connection));
  if (connection.sends.empty()) return;
  if (connection.peer->credit_waits && connection.eager_sends.lacks_credit() && first_is_short(connection)) return;
  if (const auto number = connection.eager_sends.ask()) advertisements_.ask(connection, *number);
}

/// Whether the oldest send that waits may go eagerly when there is a credit.
bool Sends::first_is_short(const Connection& connection) const {
  return connection.peer->eager && !connection.sends.empty() &&
         connection.sends.front()->length <= context_.options.eager_bytes;
}

/// Sends the oldest message, a short one, in a SEND. False: it has to go to the receive that it meets.
bool Sends::send_first_eagerly(Connection& connection) {
  Request& first = *connection.sends.front();
  Peer& peer = *connection.peer;
  const auto target = connection.advertised.take(first.tag);
  // A WRITE to the receive has no header, which may take one more packet, and is copied once less. Where the peer posts
  // few receives ahead, it would have to advertise the next ones one by one: a SEND for each message.
  const bool writes = first.length + handshake::kEagerHeaderBytes > peer.path_mtu &&
                      connection.advertised.size() >= Advertisements::kEnough;
  if (target && (writes || first.length > target->length)) {
    start_message(connection.sends.remove(first), *target);
    return true;
  }
  // Nothing may be between here and the number: the peer waits for each.
  auto copy = !target && connection.advertised.full_ahead() ? nullptr : copies_.take(first);
  if (!copy) {
    if (target) start_message(connection.sends.remove(first), *target);
    return target.has_value();
  }
  const auto request = connection.sends.remove(first);
  const std::uint32_t number = connection.eager_sends.next();
  if (!target) connection.advertised.send_ahead(number, request->tag);
  const auto header = handshake::encode(
      handshake::EagerMessage{.connection = connection.remote_id,
                              .number = number,
                              .advertised = target ? target->sequence : connection.advertised.expected(),
                              .tag = request->tag});
  const auto bytes = static_cast<std::uint32_t>(header.size() + copy->length);
  std::byte* const message = SendCopies::with_header(*copy, header);
  copy->next_flowlet = copy->posted = 1;
  copy->finished = 0;
  copy->takes_turns = false;
  copy->flowlets.emplace(copy->length, kMostEagerBytes, peer.path_mtu);
  connection.in_flight.push_back(copy);
  // Messages of several packets are spread over the lanes, as flowlets are.
  Lane& lane = copy->length <= peer.path_mtu ? peer.choice.for_small(peer.lanes, peer.path_mtu, shard_.measured())
                                             : peer.choice.for_urgent(peer.lanes, peer.path_mtu, shard_.measured());
  contexts_->posted(lane, peer.index_of(lane), bytes, copy->takes_turns);
  shard_.post(lane, {.kind = WorkKind::kSend, .cookie = cookie_of(*copy), .data = message, .length = bytes});
  request->bytes = request->length;
  results_.count(&MessageCounters::eager_sends);
  results_.finish(*request);
  return true;
}

void Sends::on_advertisement(Peer& peer, const handshake::Advertisement& advertisement) {
  const auto connection = peers_.connection(peer, advertisement.connection);
  if (!connection) return;  // not an error: the advertisement and our close may cross
  switch (connection->advertised.add(advertisement)) {
    case AdvertisedReceives::Verdict::kTooMany:
      events_.fail_peer(peer, Failure::kTransport, "the peer advertised more than 65536 receives on one connection");
      return;
    case AdvertisedReceives::Verdict::kCopy:  // Advertisements::repeat, of the peer
    case AdvertisedReceives::Verdict::kEarly:
      return;
    case AdvertisedReceives::Verdict::kTaken:
      break;
  }
  if (!connection->sends.empty()) advance(*connection);
}

void Sends::on_credit(Peer& peer, const handshake::EagerCredit& credit) {
  const auto connection = peers_.connection(peer, credit.connection);
  if (!connection) return;
  if (!connection->eager_sends.credit(credit)) {
    events_.fail_peer(peer, Failure::kTransport, "the peer has taken more eager messages than were sent");
    return;
  }
  connection->advertised.taken_ahead(credit.taken, credit.advertised);
  if (!connection->sends.empty()) advance(*connection);
}

/// Pairs sends with advertised receives, in order within a tag. True when there was a pair.
bool Sends::match(Connection& connection) {
  bool any = false;
  Request* next = nullptr;
  for (Request* send = connection.sends.front(); send != nullptr && !connection.advertised.empty(); send = next) {
    next = send->next;
    if (const auto target = connection.advertised.take(send->tag)) {
      start_message(connection.sends.remove(*send), *target);
      any = true;
    }
  }
  return any;
}

// -- flowlets -----------------------------------------------------------------------------------------------------

/// S in bytes (ParaLet, section 5.2), with base_rtt or the smallest measured round trip.
std::uint64_t Sends::flowlet_size(const Peer& peer, std::uint64_t message_bytes) const {
  FlowletRule rule{.bytes = context_.options.flowlet_bytes,
                   .line_rate_bps = context_.options.line_rate_bps,
                   .port_rate_bps = shard_.backend().port_rate_bps(),
                   .rtt = context_.options.base_rtt.value_or(0),
                   .lanes = static_cast<unsigned>(peer.lanes.size()),
                   .shards = shard_.backend().shards(),
                   .message_bytes = message_bytes,
                   .path_mtu = peer.path_mtu};
  const bool by_rate = !rule.bytes && (rule.line_rate_bps > 0 || rule.port_rate_bps > 0);
  if (!by_rate || rule.rtt > 0) return paralet::flowlet_size(rule);
  for (const Lane& lane : peer.lanes) {
    const Nanos rtt = shard_.backend().statistics(lane.qp.qpn).min_rtt;
    if (rtt > 0 && (rule.rtt == 0 || rtt < rule.rtt)) rule.rtt = rtt;
  }
  return paralet::flowlet_size(rule);
}

void Sends::start_message(std::shared_ptr<Request> request, const handshake::Advertisement& advertisement) {
  Connection& connection = *request->connection;
  Peer& peer = *connection.peer;
  if (request->length > advertisement.length) {
    frames_.send(peer,
                 handshake::Overrun{
                     .connection = connection.remote_id, .slot = advertisement.slot, .message_bytes = request->length});
    connection.overrun = std::make_unique<std::string>(overrun_text(request->length, advertisement.length));
    results_.fail(*request, Failure::kTransport, *connection.overrun);
    return;
  }
  if (auto copy = copies_.take(*request)) {
    request->bytes = request->length;
    results_.finish(*request);
    request = std::move(copy);
  } else if (!results_.register_memory(*request)) {
    return;
  }
  const bool mouse = request->length <= context_.options.mice_bytes.value_or(peer.path_mtu);
  request->advertisement = advertisement;
  request->takes_turns = !mouse;
  request->next_flowlet = request->posted = request->finished = 0;
  request->flowlets.emplace(request->length,
                            mouse ? std::max<std::uint64_t>(1, request->length) : flowlet_size(peer, request->length),
                            peer.path_mtu);
  if (request->trace) request->trace->expect(request->flowlets->count);
  connection.in_flight.push_back(request);
  if (mouse) {
    // Small messages do not wait behind the flowlets of large ones.
    post_flowlet(peer.choice.for_small(peer.lanes, peer.path_mtu, shard_.measured()), *request, peer.path_mtu);
  } else {
    peer.sending.push_back(request.get());
    if (follows_traffic_) policy_->started(peer.name(), request->length, now());
  }
}

void Sends::post_flowlet(Lane& lane, Request& request, std::uint32_t path_mtu) {
  const Flowlets& flowlets = *request.flowlets;
  const std::uint32_t index = request.next_flowlet++;
  const auto cookie = cookie_of(request);
  const auto length = static_cast<std::uint32_t>(flowlets.length(index));
  const bool separately = shard_.backend().ends_separately(length, path_mtu);
  const unsigned lane_index = request.connection->peer->index_of(lane);
  ++request.posted;
  if (request.trace) request.trace->begin(lane_index, lane.qp.qpn, lane.port, length, now());
  contexts_->posted(lane, lane_index, length, request.takes_turns);
  shard_.post(lane, {.kind = separately ? WorkKind::kWrite : WorkKind::kWriteImm,
                     .cookie = separately ? 0 : cookie,
                     .data = request.data + flowlets.offset(index),
                     .length = length,
                     .remote_address = request.advertisement.address + flowlets.offset(index),
                     .rkey = request.advertisement.rkeys[member_of(lane.qp.qpn)],
                     .imm = handshake::immediate(request.advertisement.slot, flowlets.count),
                     .memory = request.registration()});
  if (!separately) return;
  const bool last = index + 1 == flowlets.count;
  auto& end = request.ends[last ? 1 : 0];
  end = handshake::encode(handshake::FlowletEnd{
      .slot = request.advertisement.slot, .count = static_cast<std::uint16_t>(flowlets.count), .bytes = length});
  shard_.post(lane, {.kind = WorkKind::kSend,
                     .cookie = cookie | (last ? kLastEnd : kEnd),
                     .data = end.data(),
                     .length = static_cast<std::uint32_t>(end.size())});
}

bool Sends::pump(Nanos t) {
  bool any = false;
  lane_ready_at_ = kNever;
  if (follows_traffic_) policy_->begin_round();
  // Ends when a whole round over the peers posted nothing.
  for (std::size_t passed = 0; passed < peers_.all.size(); ++pumped_) {
    if (pumped_ >= peers_.all.size()) pumped_ = 0;
    Peer& peer = *peers_.all[pumped_];
    ++passed;
    if (peer.sending.empty()) continue;
    if (follows_traffic_ && !policy_->may_send(peer.name(), t)) continue;
    if (!shard_.backend().wants_work(t)) return any;  // this peer is the next
    const auto [lane, ready_at] = peer.choice.for_flowlet(peer.lanes, peer.path_mtu, shard_.measured(), *contexts_);
    if (lane == nullptr) {
      lane_ready_at_ = std::min(lane_ready_at_, ready_at);
      continue;
    }
    Request& request = *peer.sending.front();
    if (follows_traffic_) policy_->sent(peer.name(), request.flowlets->length(request.next_flowlet), peer.path_mtu);
    post_flowlet(*lane, request, peer.path_mtu);
    if (request.next_flowlet == request.flowlets->count) peer.sending.pop_front();
    any = true;
    passed = 0;
  }
  return any;
}

// -- ends ---------------------------------------------------------------------------------------------------------

void Sends::on_sent(Peer& peer, unsigned index, const Completion& completion) {
  if (completion.status != Status::kSuccess) {
    if (completion.status != Status::kFlushed) events_.fail_lane(peer, index, completion);
    return;
  }
  Lane& lane = peer.lanes[index];
  lane.breaks = 0;
  if (--lane.unfinished == 0) lane.last_estimate = shard_.backend().estimate(lane.qp.qpn);
  if (lane.renewal && lane.renewal->switched() && lane.renewal->qp.qpn == completion.qpn &&
      --lane.renewal->unfinished == 0) {
    // Renewals::advance runs after this round's completions, which may belong to that QP.
    context_.next_housekeeping = 0;
  }
  if (AdvertisementBatch* batch = batch_of(completion.cookie)) {
    Advertisements::on_sent(peer, *batch);
    return;
  }
  if (completion.cookie == 0) return;
  Request& request = *request_of(completion.cookie);
  std::uint64_t bytes = completion.byte_length;
  if ((completion.cookie & kEnd) != 0) bytes = request.flowlets->length(0);
  if ((completion.cookie & kLastEnd) != 0) bytes = request.flowlets->length(request.flowlets->count - 1);
  contexts_->finished(lane, index, bytes, request.takes_turns);
  ++lane.flowlets;
  if (follows_traffic_) policy_->delivered(peer.name(), bytes, now());
  --request.posted;
  ++request.finished;
  if (request.trace) request.trace->end(completion.qpn, now());
  Connection& connection = *request.connection;
  if (request.finished == request.flowlets->count) {
    auto ended = connection.in_flight.remove(request);
    if (request.is_copy) {
      copies_.give_back(std::move(ended));
    } else {
      request.bytes = request.length;
      results_.finish(request);
    }
  }
  ports_.consult_policy(peer, index);
  ports_.move_if_possible(peer, index);
  if (connection.state == Connection::State::kClosing || connection.reply_closed) events_.on_last_flowlets(connection);
}

void Sends::stop(Connection& connection, const std::string& why, bool flush) {
  while (Request* send = connection.sends.front())
    results_.fail(*connection.sends.remove(*send), Failure::kClosed, why);
  auto& sending = connection.peer->sending;
  for (std::size_t i = sending.size(); i-- > 0;) {
    if (sending[i]->connection.get() == &connection && !(flush && sending[i]->is_copy)) sending.erase(i);
  }
}

void Sends::fail_in_flight(Request& send, Failure failure, const std::string& why) {
  auto ended = send.connection->in_flight.remove(send);
  results_.fail(send, failure, why);
  if (send.is_copy) copies_.give_back(std::move(ended));
}

}  // namespace paralet
