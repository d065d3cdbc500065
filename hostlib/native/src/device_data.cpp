// SPDX-License-Identifier: Apache-2.0
// Messages: matching sends with receives, cutting them into flowlets, spreading those over lanes, counting them in.
#include <algorithm>

#include "device.hpp"
#include "errors.hpp"
#include "interfaces.hpp"
#include "signal.hpp"

namespace paralet {
namespace {

constexpr std::size_t kReceiveBufferBytes = 64;
constexpr std::size_t kMaxSlots = 65536;
constexpr std::size_t kMaxOffers = 65536;  // that a peer may have open on one connection
constexpr std::uint64_t kOfferCookie = 0;
constexpr std::uint64_t kUnpacedFlowlet = 256 * 1024;
constexpr Nanos kAssumedRtt = 1 * kMillisecond;

Request* request_of(std::uint64_t cookie) {
  return reinterpret_cast<Request*>(cookie);  // NOLINT(performance-no-int-to-ptr): our own pointer comes back
}

}  // namespace

void Device::post_receive_buffer(std::uint64_t index) {
  backend_->post_receive(
      {.data = receive_buffers_.data() + index * kReceiveBufferBytes, .length = kReceiveBufferBytes, .cookie = index});
}

// -- results -----------------------------------------------------------------------------------------------------

void Device::finish(Request& request) {
  request.state.store(Request::State::kDone, std::memory_order_release);
  completion_signal().notify();
}

void Device::fail(Request& request, Failure failure, const std::string& error) {
  request.failure = failure;
  request.error = error;
  request.state.store(Request::State::kFailed, std::memory_order_release);
  completion_signal().notify();
}

// -- starting ----------------------------------------------------------------------------------------------------

void Device::start(std::shared_ptr<Request> request) {
  Connection& connection = *request->connection;
  if (connection.state != Connection::State::kOpen || connection.peer == nullptr || connection.peer_quiet) {
    if (connection.failure != Failure::kNone) {
      fail(*request, connection.failure, connection.error);
    } else {
      fail(*request, Failure::kClosed, "the connection is not open");
    }
    return;
  }
  if (request->kind == Request::Kind::kReceive) {
    start_receive(request);
  } else {
    connection.sends.push_back(std::move(request));
    match(connection);
  }
}

void Device::start_receive(const std::shared_ptr<Request>& request) {
  Connection& connection = *request->connection;
  Peer& peer = *connection.peer;
  if (peer.free_slots.empty()) {
    if (peer.slots.size() == kMaxSlots) {
      fail(*request, Failure::kDevice, "more than 65536 receives are open towards one peer");
      return;
    }
    peer.free_slots.push_back(static_cast<std::uint16_t>(peer.slots.size()));
    peer.slots.push_back(nullptr);
  }
  request->slot = peer.free_slots.back();
  peer.free_slots.pop_back();
  peer.slots[request->slot] = request.get();
  if (request->rkey == 0) {
    request->rkey = backend_->register_memory(request->data, request->length);
    request->temporary_region = true;
  }
  connection.receives.emplace(request.get(), request);

  const auto offer = handshake::encode(handshake::Offer{.connection = connection.remote_id,
                                                        .sequence = connection.next_sequence++,
                                                        .tag = request->tag,
                                                        .slot = request->slot,
                                                        .rkey = request->rkey,
                                                        .address = request->region_offset,
                                                        .length = request->length});
  WorkRequest work{.kind = WorkKind::kSend, .cookie = kOfferCookie, .length = handshake::kOfferBytes};
  std::copy(offer.begin(), offer.end(), work.inline_data.begin());
  backend_->post(pick_lane(peer, true)->qp.qpn, work);
}

void Device::release_receive(Request& request) {
  Peer& peer = *request.connection->peer;
  peer.slots[request.slot] = nullptr;
  peer.free_slots.push_back(request.slot);
  if (request.temporary_region) backend_->deregister_memory(request.rkey);
}

void Device::add_offer(Peer& peer, const handshake::Offer& offer) {
  const auto found = connections_.find(offer.connection);
  // An offer may cross our close on the way.
  if (found == connections_.end() || found->second->peer != &peer) return;
  Connection& connection = *found->second;
  if (connection.early_offers.size() + connection.offers.size() >= kMaxOffers) {
    fail_peer(peer, Failure::kTransport, "the peer offers more receives than a connection may have");
    return;
  }
  connection.early_offers.emplace(offer.sequence, offer);
  for (auto next = connection.early_offers.find(connection.expected_sequence); next != connection.early_offers.end();
       next = connection.early_offers.find(connection.expected_sequence)) {
    connection.offers.push_back(next->second);
    connection.early_offers.erase(next);
    ++connection.expected_sequence;
  }
  match(connection);
}

/// Pairs sends with offers: in order among those of one tag.
void Device::match(Connection& connection) {
  if (connection.state != Connection::State::kOpen || connection.peer_quiet) return;
  for (auto send = connection.sends.begin(); send != connection.sends.end() && !connection.offers.empty();) {
    const auto offer = std::find_if(connection.offers.begin(), connection.offers.end(),
                                    [&](const handshake::Offer& o) { return o.tag == (*send)->tag; });
    if (offer == connection.offers.end()) {
      ++send;
      continue;
    }
    const handshake::Offer target = *offer;
    connection.offers.erase(offer);
    const std::shared_ptr<Request> request = std::move(*send);
    send = connection.sends.erase(send);
    start_message(request, target);
  }
}

// -- sending -----------------------------------------------------------------------------------------------------

/// S (section 5.2): as set, else 4 BDP / m with the measured round trip where none is given.
std::uint64_t Device::flowlet_size(const Peer& peer) const {
  if (options_.flowlet_bytes) return std::max<std::uint64_t>(1, *options_.flowlet_bytes);
  if (options_.line_rate_bps <= 0) return kUnpacedFlowlet;
  Nanos rtt = options_.base_rtt.value_or(0);
  if (rtt == 0) {
    for (const Lane& lane : peer.lanes) {
      const Nanos lane_rtt = backend_->statistics(lane.qp.qpn).min_rtt;
      if (lane_rtt > 0 && (rtt == 0 || lane_rtt < rtt)) rtt = lane_rtt;
    }
    if (rtt == 0) rtt = kAssumedRtt;
  }
  const double bdp_bytes = options_.line_rate_bps / 8 * to_seconds(rtt);
  return flowlet_bytes(bdp_bytes, static_cast<unsigned>(peer.lanes.size()), peer.path_mtu);
}

void Device::start_message(const std::shared_ptr<Request>& request, const handshake::Offer& offer) {
  Connection& connection = *request->connection;
  Peer& peer = *connection.peer;
  if (request->length > offer.length) {
    send_frame(peer, handshake::Overrun{
                         .connection = connection.remote_id, .slot = offer.slot, .message_bytes = request->length});
    fail(*request, Failure::kTransport,
         "a message of " + std::to_string(request->length) + " bytes met a receive of " + std::to_string(offer.length) +
             ": receive at least as much as is sent");
    return;
  }
  const bool mouse = request->length <= options_.mice_bytes.value_or(peer.path_mtu);
  request->offer = offer;
  request->flowlets.emplace(request->length, mouse ? std::max<std::uint64_t>(1, request->length) : flowlet_size(peer),
                            peer.path_mtu);
  connection.in_flight.emplace(request.get(), request);
  if (mouse) {
    // A mouse does not queue behind elephants' flowlets that no lane has taken yet.
    post_flowlet(*pick_lane(peer, true), *request);
  } else {
    peer.sending.push_back(request.get());
  }
}

void Device::post_flowlet(Lane& lane, Request& request) {
  const Flowlets& flowlets = *request.flowlets;
  const std::uint32_t index = request.next_flowlet++;
  WorkRequest work{.kind = WorkKind::kWriteImm,
                   .cookie = reinterpret_cast<std::uint64_t>(&request),
                   .data = request.data + flowlets.offset(index),
                   .length = static_cast<std::uint32_t>(flowlets.length(index)),
                   .remote_address = request.offer.address + flowlets.offset(index),
                   .rkey = request.offer.rkey,
                   .imm = handshake::immediate(request.offer.slot, flowlets.count)};
  ++request.posted;
  ++lane.outstanding;
  lane.outstanding_bytes += work.length;
  backend_->post(lane.qp.qpn, work);
}

/// The lane that will be done first by its round trip and window, the one with fewer bytes outstanding or next in turn
/// among equals. nullptr when all are as deep as they may be.
Lane* Device::pick_lane(Peer& peer, bool any_depth) {
  // Two flowlets keep a lane busy while the first one's acknowledgement travels, as S is four times its share of the
  // BDP. Where the BDP was underestimated, a lane that has sent everything pulls more.
  constexpr unsigned kDepth = 2;
  Lane* best = nullptr;
  std::pair<Nanos, std::uint64_t> least;
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) {
    Lane& lane = peer.lanes[(peer.next_lane + i) % peer.lanes.size()];
    const PathEstimate path = backend_->estimate(lane.qp.qpn);
    if (!any_depth && (lane.moving_to || (lane.outstanding >= kDepth && !path.hungry))) continue;
    const double packets = static_cast<double>(lane.outstanding_bytes) / peer.path_mtu + 1.0;
    const double delay = static_cast<double>(path.smoothed_rtt) * std::max(1.0, packets / path.window);
    const std::pair cost(static_cast<Nanos>(delay), lane.outstanding_bytes);
    if (best != nullptr && cost >= least) continue;
    best = &lane;
    least = cost;
  }
  if (best != nullptr) peer.next_lane = static_cast<std::size_t>(best - peer.lanes.data()) + 1;
  return best;
}

/// Lets lanes pull waiting flowlets, oldest message first, peers in turn. True when any was taken.
bool Device::pump(Nanos t) {
  bool any = false;
  bool more = true;
  while (more) {
    more = false;
    for (const auto& peer : peers_) {
      if (peer->sending.empty()) continue;
      if (!backend_->wants_work(t)) return any;
      Lane* lane = pick_lane(*peer, false);
      if (lane == nullptr) continue;
      Request& request = *peer->sending.front();
      post_flowlet(*lane, request);
      if (request.next_flowlet == request.flowlets->count) peer->sending.pop_front();
      any = more = true;
    }
  }
  return any;
}

void Device::consult_policy(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  const QpStatistics statistics = backend_->statistics(lane.qp.qpn);
  const std::uint64_t timeouts = statistics.counters.timeouts - lane.timeouts_seen;
  lane.timeouts_seen = statistics.counters.timeouts;
  if (options_.policy.kind != PolicyKind::kAdaptive) return;
  if (lane.moving_to) {  // decided, but what is in flight may have met a path that went silent meanwhile
    if (timeouts > 0) move_lane(lane);
    return;
  }
  Nanos best = statistics.smoothed_rtt;
  for (const Lane& other : peer.lanes) {
    const Nanos rtt = backend_->statistics(other.qp.qpn).smoothed_rtt;
    if (rtt > 0) best = std::min(best, rtt);
  }
  const LaneView view{.peer = peer.address,
                      .lane = index,
                      .port = lane.port,
                      .smoothed_rtt = statistics.smoothed_rtt,
                      .peer_rtt = best,
                      .timeouts = timeouts,
                      .retransmits = statistics.counters.retransmits};
  lane.moving_to = policy_->after_flowlet(view, now());
  // What is in flight on a path that went silent is lost anyway, so there is nothing to overtake.
  if (lane.moving_to && (timeouts > 0 || lane.outstanding == 0)) move_lane(lane);
}

void Device::move_lane(Lane& lane) {
  const std::uint16_t port = *lane.moving_to;
  lane.moving_to.reset();
  if (backend_->set_port(lane.qp.qpn, port)) {
    lane.port = port;
    ++lane.moves;
  }
}

// -- completions -------------------------------------------------------------------------------------------------

void Device::on_completion(const Completion& completion) {
  const auto owner = qp_owners_.find(completion.qpn);
  if (completion.kind != Completion::Kind::kSent) {
    if (owner != qp_owners_.end()) {
      Peer& peer = *owner->second.peer;
      if (completion.kind == Completion::Kind::kReceivedWriteImm) {
        on_flowlet_arrived(peer, completion);
      } else {
        const std::byte* data = receive_buffers_.data() + completion.cookie * kReceiveBufferBytes;
        if (const auto offer = handshake::decode_offer({data, completion.byte_length})) {
          add_offer(peer, *offer);
        } else {
          fail_peer(peer, Failure::kTransport, "the peer sent a message that is no offer");
        }
      }
    }
    post_receive_buffer(completion.cookie);
    return;
  }
  if (owner == qp_owners_.end()) return;
  on_sent(*owner->second.peer, owner->second.lane, completion);
}

void Device::on_sent(Peer& peer, unsigned index, const Completion& completion) {
  if (completion.status != Status::kSuccess) {
    if (completion.status != Status::kFlushed) {
      fail_peer(
          peer, Failure::kTransport,
          "lane " + std::to_string(index) + " to " + format_ipv4(peer.address) + ": " + to_string(completion.status));
    }
    return;
  }
  if (completion.cookie == kOfferCookie) return;
  Lane& lane = peer.lanes[index];
  Request& request = *request_of(completion.cookie);
  --lane.outstanding;
  lane.outstanding_bytes -= completion.byte_length;
  ++lane.flowlets;
  --request.posted;
  ++request.finished;
  Connection& connection = *request.connection;
  if (request.finished == request.flowlets->count) {
    const auto keep = connection.in_flight.extract(&request);
    request.bytes = request.length;
    finish(request);
  }
  consult_policy(peer, index);
  if (lane.moving_to && lane.outstanding == 0) move_lane(lane);
  if (connection.state == Connection::State::kClosing || connection.reply_closed) advance_close(connection);
}

void Device::on_flowlet_arrived(Peer& peer, const Completion& completion) {
  const std::uint32_t slot = completion.imm >> 16;
  const std::uint32_t count = completion.imm & 0xFFFF;
  Request* request = slot < peer.slots.size() ? peer.slots[slot] : nullptr;
  if (request == nullptr || count == 0) {
    fail_peer(peer, Failure::kTransport, "the peer sent a flowlet for a receive that is not open");
    return;
  }
  ++request->arrived;
  request->arrived_bytes += completion.byte_length;
  if (request->arrived < count) return;
  const auto keep = request->connection->receives.extract(request);
  release_receive(*request);
  request->bytes = request->arrived_bytes;
  finish(*request);
}

}  // namespace paralet
