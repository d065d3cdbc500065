// SPDX-License-Identifier: Apache-2.0
// Messages: matching sends with receives, cutting messages into flowlets, choosing their lanes, counting arrivals.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/signal.hpp"
#include "engine/device.hpp"
#include "engine/lane_times.hpp"

namespace paralet {
namespace {

constexpr std::size_t kEnoughAdvertised = 4;  // open receives; advertisements of more may wait to be sent together
constexpr Nanos kAdvertisementDelay = 100 * kMicrosecond;
constexpr Nanos kLeastSilence = 5 * kMillisecond;  // shorter silence may be scheduling delay

// Cookies of posted work are pointers to requests, or to advertisement batches if marked kBatch. 0: the completion
// needs no action.
constexpr std::uint64_t kBatch = 1;
constexpr std::uint64_t kEnd = 2;      // the SEND that ends a flowlet
constexpr std::uint64_t kLastEnd = 4;  // the SEND that ends the last flowlet of a message
constexpr std::uint64_t kMarks = kBatch | kEnd | kLastEnd;
static_assert(alignof(Request) > kMarks && alignof(AdvertisementBatch) > kMarks);
// NOLINTBEGIN(performance-no-int-to-ptr): the integers were pointers
Request* request_of(std::uint64_t cookie) { return reinterpret_cast<Request*>(cookie & ~kMarks); }
std::uint64_t cookie_of(const AdvertisementBatch* batch) { return reinterpret_cast<std::uint64_t>(batch) | kBatch; }
AdvertisementBatch* batch_of(std::uint64_t cookie) {
  return (cookie & kBatch) != 0 ? reinterpret_cast<AdvertisementBatch*>(cookie & ~kMarks) : nullptr;
}
// NOLINTEND(performance-no-int-to-ptr)

}  // namespace

void Device::post_receive_buffer(std::uint64_t index) {
  constexpr std::size_t kBytes = sizeof(AdvertisementBatch::bytes);
  backend_->post_receive({.data = receive_buffers_.data() + index * kBytes,
                          .length = static_cast<std::uint32_t>(kBytes),
                          .cookie = index});
}

// -- results -----------------------------------------------------------------------------------------------------

/// Registers the request's memory for this request alone. False, and the request has failed, when that is refused.
bool Device::register_temporarily(Request& request, Backend& backend) {
  try {
    request.temporary_rkey = request.kind == Request::Kind::kReceive
                                 ? backend.register_memory(request.data, request.length)
                                 : backend.register_source(request.data, request.length);
    return true;
  } catch (const DeviceError& error) {
    report_failure(request, Failure::kDevice, error.what());
    return false;
  }
}

void Device::finish(Request& request) {
  if (request.kind != Request::Kind::kFence) {
    const bool send = request.kind == Request::Kind::kSend;
    ++(send ? messages_.sends : messages_.receives);
    (send ? messages_.send_bytes : messages_.receive_bytes) += request.bytes;
  }
  if (end_after_release(request, Request::State::kDone)) return;
  finished_ = true;
  request.state.store(Request::State::kDone, std::memory_order_release);
}

void Device::fail(Request& request, Failure failure, const std::string& error) {
  note_failure(request, failure, error);
  if (end_after_release(request, Request::State::kFailed)) return;
  request.state.store(Request::State::kFailed, std::memory_order_release);
  completion_signal().notify();
}

void Device::note_failure(Request& request, Failure failure, const std::string& error) {
  failed_.fetch_add(1, std::memory_order_relaxed);
  request.failure = failure;
  request.error = error;
}

void Device::report_failure(Request& request, Failure failure, const std::string& error) {
  note_failure(request, failure, error);
  request.state.store(Request::State::kFailed, std::memory_order_release);
  completion_signal().notify();
}

std::string Device::overrun_text(std::uint64_t message_bytes, std::uint64_t receive_bytes) {
  return "a message of " + std::to_string(message_bytes) + " bytes met a receive of " + std::to_string(receive_bytes) +
         ": receive at least as much as is sent";
}

// -- starting ----------------------------------------------------------------------------------------------------

void Device::start(std::shared_ptr<Request> request) {
  if (request->kind == Request::Kind::kFence) {
    start_fence(std::move(request));
    return;
  }
  Connection& connection = *request->connection;
  request->failure = Failure::kNone;
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
    if (!connection.advertised.empty()) match(connection);
  }
}

void Device::start_fence(std::shared_ptr<Request> request) {
  Request& fence = *request;
  fence.failure = Failure::kNone;
  if (!backend_) {
    fail(fence, Failure::kClosed, "the device was closed");
    return;
  }
  try {
    backend_->post_fence(fence.rkey, fence.region_offset, reinterpret_cast<std::uint64_t>(&fence));
    fences_.push_back(std::move(request));
  } catch (const DeviceError& error) {
    fail(fence, Failure::kDevice, error.what());
  }
}

void Device::on_fenced(const Completion& completion) {
  Request& fence = *request_of(completion.cookie);
  const auto keep = fences_.remove(fence);
  if (completion.status == Status::kSuccess) {
    finish(fence);
  } else {
    fail(fence, Failure::kDevice,
         std::string("cannot flush received data to device memory: ") + to_string(completion.status));
  }
}

void Device::start_receive(const std::shared_ptr<Request>& request) {
  Connection& connection = *request->connection;
  Peer& peer = *connection.peer;
  if (peer.slots.full()) {
    fail(*request, Failure::kDevice, "more than 65536 receives are open towards one peer");
    return;
  }
  if (request->rkey == 0 && registrar_ == nullptr && !register_temporarily(*request, *backend_)) return;
  request->slot = peer.slots.take(*request);
  request->arrived = 0;
  request->arrived_bytes = 0;

  if (peer.gathering == nullptr) {
    peer.gathering = &spare_batch(peer);
    peer.gathering->count = 0;
    peer.gathering->each = static_cast<std::uint32_t>(handshake::advertisement_bytes(peer.fusion != nullptr));
    peer.advertisements_urgent = false;
    peer.advertisements_since = now();
    advertising_.push_back(&peer);
  }
  handshake::Advertisement advertisement{
      .connection = connection.remote_id,
      .sequence = connection.next_sequence++,
      .tag = request->tag,
      .slot = request->slot,
      .rkeys = {backend_->remote_key(request->registration())},
      .address = backend_->remote_address(request->registration()) + (request->rkey != 0 ? request->region_offset : 0),
      .length = request->length};
  if (peer.fusion) {
    for (unsigned i = 1; i < peer.fusion->members.size(); ++i) {
      advertisement.rkeys[i] = backend_->remote_key_on(i, request->registration());
    }
  }
  const std::size_t each = peer.gathering->each;
  const auto bytes = handshake::encode(advertisement, peer.fusion != nullptr);
  std::memcpy(peer.gathering->bytes.data() + peer.gathering->count * each, bytes.data(), each);
  ++peer.gathering->count;
  connection.receives.push_back(request);
  peer.advertisements_urgent = peer.advertisements_urgent || connection.receives.size() <= kEnoughAdvertised;
  if ((peer.gathering->count + 1) * each > peer.gathering->bytes.size()) send_advertisements(peer);
}

/// Sends the advertisements that have gathered in one SEND.
void Device::send_advertisements(Peer& peer) {
  std::erase(advertising_, &peer);
  AdvertisementBatch* batch = std::exchange(peer.gathering, nullptr);  // comes back with the completion
  post_advertisements(peer.choice.for_small(peer.lanes, peer.path_mtu, measured()), *batch);
}

void Device::post_advertisements(Lane& lane, AdvertisementBatch& batch) {
  batch.lane = &lane;
  batch.repeated = false;
  // A NIC takes one advertisement with the request itself, without a registration.
  const std::size_t each = batch.registers ? 1 : batch.count;
  for (std::size_t i = 0; i < batch.count; i += each) {
    post(lane, {.kind = WorkKind::kSend,
                .cookie = i + each == batch.count ? cookie_of(&batch) : 0,
                .data = batch.bytes.data() + i * batch.each,
                .length = static_cast<std::uint32_t>(each * batch.each),
                .memory = batch.memory});
  }
}

/// Sends the advertisements of silent lanes again on other lanes, because the peer uses advertisements in order. It
/// ignores the second copy.
void Device::repeat_advertisements(Peer& peer) {
  for (std::size_t i = 0; i < peer.batches.size(); ++i) {
    AdvertisementBatch& batch = *peer.batches[i];
    if (batch.lane == nullptr || batch.repeated || !silent(*batch.lane)) continue;
    Lane& other = peer.choice.for_urgent(peer.lanes, peer.path_mtu, measured());
    if (silent(other)) return;
    AdvertisementBatch& copy = spare_batch(peer);
    copy.bytes = batch.bytes;
    copy.count = batch.count;
    copy.each = batch.each;
    batch.repeated = true;
    post_advertisements(other, copy);
  }
}

/// Gives works taken back from another member's QP the keys of this member.
void Device::address_again(std::vector<WorkRequest>& works, unsigned member) const {
  for (std::size_t i = 0; i < works.size(); ++i) {
    WorkRequest& work = works[i];
    if (work.kind == WorkKind::kSend) {
      const AdvertisementBatch* batch = batch_of(work.cookie);
      work.memory = batch != nullptr ? batch->memory : 0;  // SENDs that share a batch have no registration
      continue;
    }
    // The end of a flowlet follows its WRITE, which has no cookie. A ping has neither.
    const bool apart = work.kind == WorkKind::kWrite && work.length > 0;
    const std::uint64_t cookie = apart && i + 1 < works.size() ? works[i + 1].cookie : work.cookie;
    if (cookie == 0) continue;
    const Request& request = *request_of(cookie);
    work.rkey = request.advertisement.rkeys[member];
    work.memory = request.registration();
  }
}

/// Checks that a quiet peer is alive with a WRITE of no bytes. It needs no receive; a peer that does not acknowledge it
/// is given up after retry_time, as for data.
void Device::ping(Peer& peer) {
  post(peer.choice.for_urgent(peer.lanes, peer.path_mtu, measured()), {.kind = WorkKind::kWrite});
}

AdvertisementBatch& Device::spare_batch(Peer& peer) {
  if (peer.spare_batches.empty()) {
    const auto& fresh = peer.batches.emplace_back(std::make_shared<AdvertisementBatch>());
    register_batch(peer, fresh);
    return *fresh;
  }
  AdvertisementBatch& batch = *peer.spare_batches.back();
  peer.spare_batches.pop_back();
  return batch;
}

/// Posts flowlets and advertisements, and sends what may leave now. True when anything left.
bool Device::flush(Nanos t) {
  const bool pumped = pump(t);
  for (std::size_t i = 0; i < advertising_.size();) {
    Peer& peer = *advertising_[i];
    if (peer.advertisements_urgent || t - peer.advertisements_since >= kAdvertisementDelay) {
      send_advertisements(peer);
    } else {
      ++i;
    }
  }
  return backend_->flush(t) || pumped;
}

void Device::release_receive(Request& request) {
  Peer& peer = *request.connection->peer;
  peer.slots.release(request.slot);
  const std::uint32_t rkey = request.registration();
  if (!retired(rkey) || awaited(rkey)) return;
  std::erase(retired_, rkey);
  backend_->deregister_memory(rkey);
}

void Device::on_advertisements(Peer& peer, std::span<const std::byte> bytes) {
  const std::size_t each = handshake::advertisement_bytes(peer.fusion != nullptr);
  if (bytes.empty() || bytes.size() % each != 0) {
    fail_peer(peer, Failure::kTransport,
              "the peer sent a SEND that is neither receive advertisements nor the end of a flowlet");
    return;
  }
  for (; !bytes.empty() && !peer.dead(); bytes = bytes.subspan(each)) {
    if (const auto advertisement = handshake::decode_advertisement(bytes.first(each))) {
      add_advertisement(peer, *advertisement);
    } else {
      fail_peer(peer, Failure::kTransport,
                "the peer sent a SEND that is neither receive advertisements nor the end of a flowlet");
    }
  }
}

void Device::add_advertisement(Peer& peer, const handshake::Advertisement& advertisement) {
  const auto found = connections_.find(advertisement.connection);
  // Not an error: the advertisement and our close may cross.
  if (found == connections_.end() || found->second->peer != &peer) return;
  Connection& connection = *found->second;
  switch (connection.advertised.add(advertisement)) {
    case AdvertisedReceives::Verdict::kTooMany:
      fail_peer(peer, Failure::kTransport, "the peer advertised more than 65536 receives on one connection");
      return;
    case AdvertisedReceives::Verdict::kCopy:  // repeat_advertisements
    case AdvertisedReceives::Verdict::kEarly:
      return;
    case AdvertisedReceives::Verdict::kTaken:
      break;
  }
  if (!connection.sends.empty()) match(connection);
}

/// Pairs sends with advertised receives, in order within a tag.
void Device::match(Connection& connection) {
  if (connection.state != Connection::State::kOpen || connection.peer_quiet) return;
  Request* next = nullptr;
  for (Request* send = connection.sends.front(); send != nullptr && !connection.advertised.empty(); send = next) {
    next = send->next;
    if (const auto target = connection.advertised.take(send->tag)) {
      start_message(connection.sends.remove(*send), *target);
    }
  }
}

// -- sending -----------------------------------------------------------------------------------------------------

/// S in bytes (ParaLet, section 5.2), with base_rtt or the smallest measured round trip.
std::uint64_t Device::flowlet_size(const Peer& peer) const {
  FlowletRule rule{.bytes = options_.flowlet_bytes,
                   .line_rate_bps = options_.line_rate_bps,
                   .port_rate_bps = backend_->port_rate_bps(),
                   .rtt = options_.base_rtt.value_or(0),
                   .lanes = static_cast<unsigned>(peer.lanes.size()),
                   .path_mtu = peer.path_mtu};
  const bool by_rate = !rule.bytes && (rule.line_rate_bps > 0 || rule.port_rate_bps > 0);
  if (!by_rate || rule.rtt > 0) return paralet::flowlet_size(rule);
  for (const Lane& lane : peer.lanes) {
    const Nanos rtt = backend_->statistics(lane.qp.qpn).min_rtt;
    if (rtt > 0 && (rule.rtt == 0 || rtt < rule.rtt)) rule.rtt = rtt;
  }
  return paralet::flowlet_size(rule);
}

void Device::start_message(const std::shared_ptr<Request>& request, const handshake::Advertisement& advertisement) {
  Connection& connection = *request->connection;
  Peer& peer = *connection.peer;
  if (request->length > advertisement.length) {
    send_frame(peer,
               handshake::Overrun{
                   .connection = connection.remote_id, .slot = advertisement.slot, .message_bytes = request->length});
    connection.overrun = overrun_text(request->length, advertisement.length);
    fail(*request, Failure::kTransport, connection.overrun);
    return;
  }
  if (request->rkey == 0 && registrar_ == nullptr && !register_temporarily(*request, *backend_)) return;
  const bool mouse = request->length <= options_.mice_bytes.value_or(peer.path_mtu);
  request->advertisement = advertisement;
  request->next_flowlet = request->posted = request->finished = 0;
  request->flowlets.emplace(request->length, mouse ? std::max<std::uint64_t>(1, request->length) : flowlet_size(peer),
                            peer.path_mtu);
  if (request->trace) request->trace->expect(request->flowlets->count);
  connection.in_flight.push_back(request);
  if (mouse) {
    // Small messages do not wait behind the flowlets of large ones.
    post_flowlet(peer.choice.for_small(peer.lanes, peer.path_mtu, measured()), *request, peer.path_mtu);
  } else {
    peer.sending.push_back(request.get());
    if (follows_traffic_) policy_->started(peer.name(), request->length, now());
  }
}

void Device::post_flowlet(Lane& lane, Request& request, std::uint32_t path_mtu) {
  const Flowlets& flowlets = *request.flowlets;
  const std::uint32_t index = request.next_flowlet++;
  const auto cookie = reinterpret_cast<std::uint64_t>(&request);
  const auto length = static_cast<std::uint32_t>(flowlets.length(index));
  const bool apart = backend_->ends_apart(length, path_mtu);
  ++request.posted;
  if (request.trace) {
    const auto lane_index = static_cast<unsigned>(&lane - request.connection->peer->lanes.data());
    request.trace->begin(lane_index, lane.qp.qpn, lane.port, length, now());
  }
  ++lane.outstanding;
  lane.outstanding_bytes += length;
  post(lane, {.kind = apart ? WorkKind::kWrite : WorkKind::kWriteImm,
              .cookie = apart ? 0 : cookie,
              .data = request.data + flowlets.offset(index),
              .length = length,
              .remote_address = request.advertisement.address + flowlets.offset(index),
              .rkey = request.advertisement.rkeys[member_of(lane.qp.qpn)],
              .imm = handshake::immediate(request.advertisement.slot, flowlets.count),
              .memory = request.registration()});
  if (!apart) return;
  const bool last = index + 1 == flowlets.count;
  auto& end = request.ends[last ? 1 : 0];
  end = handshake::encode(handshake::FlowletEnd{
      .slot = request.advertisement.slot, .count = static_cast<std::uint16_t>(flowlets.count), .bytes = length});
  post(lane, {.kind = WorkKind::kSend,
              .cookie = cookie | (last ? kLastEnd : kEnd),
              .data = end.data(),
              .length = static_cast<std::uint32_t>(end.size())});
}

void Device::post(Lane& lane, const WorkRequest& work) {
  ++lane.unfinished;
  backend_->post(lane.qp.qpn, work);
}

/// Lanes pull waiting flowlets: the oldest message of a peer first, round robin over peers. True when any was posted.
bool Device::pump(Nanos t) {
  bool any = false;
  if (follows_traffic_) policy_->begin_round();
  // Ends when a whole round over the peers posted nothing.
  for (std::size_t passed = 0; passed < peers_.size(); ++pumped_) {
    if (pumped_ >= peers_.size()) pumped_ = 0;
    Peer& peer = *peers_[pumped_];
    ++passed;
    if (peer.sending.empty()) continue;
    if (follows_traffic_ && !policy_->may_send(peer.name(), t)) continue;
    if (!backend_->wants_work(t)) return any;  // this peer is the next
    Lane* lane = peer.choice.for_flowlet(peer.lanes, peer.path_mtu, measured());
    if (lane == nullptr) continue;
    Request& request = *peer.sending.front();
    if (follows_traffic_) policy_->sent(peer.name(), request.flowlets->length(request.next_flowlet), peer.path_mtu);
    post_flowlet(*lane, request, peer.path_mtu);
    if (request.next_flowlet == request.flowlets->count) peer.sending.pop_front();
    any = true;
    passed = 0;
  }
  return any;
}

/// Asks the path policy whether the lane should change its port. `unheard`: acknowledgements of this lane that the peer
/// seems not to have received; they count as timeouts.
void Device::consult_policy(Peer& peer, unsigned index, unsigned unheard) {
  if (!watches_lanes_) return;
  Lane& lane = peer.lanes[index];
  const QpStatistics statistics = backend_->statistics(lane.qp.qpn);
  const std::uint64_t timeouts = statistics.counters.timeouts - lane.timeouts_seen + unheard;
  lane.timeouts_seen = statistics.counters.timeouts;
  if (lane.moving_to) {  // already decided; but if the path went silent meanwhile, do not wait for its flowlets
    if (timeouts > 0) leave_dead_path(peer, index);
    return;
  }
  if (lane.renewal || lane.changing_to) return;  // a move is in progress; completions may belong to the old path
  LaneTimes times(statistics);
  for (const Lane& other : peer.lanes) times.compare(backend_->statistics(other.qp.qpn));
  const LaneView view{.peer = peer.name(),
                      .lane = index,
                      .port = lane.port,
                      .smoothed_rtt = times.own(),
                      .peer_rtt = times.best(),
                      .timeouts = timeouts,
                      .retransmits = statistics.counters.retransmits,
                      .packets = statistics.counters.tx_packets};
  lane.moving_to = policy_->after_flowlet(view, now());
  if (!lane.moving_to) return;
  if (timeouts > 0) {
    leave_dead_path(peer, index);
  } else if (may_move(lane)) {
    move_lane(peer, index);
  }
}

/// Whether the lane's path seems dead: the current silence is several times its usual round trip.
bool Device::silent(const Lane& lane) const {
  constexpr Nanos kRoundTrips = 4;
  const Nanos usual = backend_->statistics(lane.qp.qpn).smoothed_rtt;
  return backend_->estimate(lane.qp.qpn).smoothed_rtt > std::max(kRoundTrips * usual, kLeastSilence);
}

/// Moves lanes to the ports that the policy has news of: idle lanes now, others between flowlets. A lane on a dead path
/// moves at once and retransmits.
void Device::take_news() {
  if (!policy_->take()) return;
  for (const auto& peer : peers_) {
    if (!peer->ready() || !policy_->changed(peer->name())) continue;
    const bool cut = policy_->cut(peer->name());
    for (unsigned i = 0; i < peer->lanes.size(); ++i) {
      Lane& lane = peer->lanes[i];
      const std::uint16_t port = policy_->port(peer->name(), i);
      lane.moving_to.reset();
      const bool elsewhere = port != lane.heading();
      const bool lost = lane.outstanding > 0 && (cut || (elsewhere && silent(lane)));
      if (elsewhere) lane.moving_to = port;
      if (lost) {
        leave_dead_path(*peer, i);
      } else if (lane.moving_to && may_move(lane)) {
        move_lane(*peer, i);
      }
    }
  }
}

/// Reports the state of each peer's lanes to the policy.
void Device::report_traffic(Nanos t) {
  for (const auto& peer : peers_) {
    if (!peer->ready()) continue;
    PeerView view{.busy = !peer->sending.empty()};
    Nanos sum = 0;
    Nanos count = 0;
    for (const Lane& lane : peer->lanes) {
      const QpStatistics statistics = backend_->statistics(lane.qp.qpn);
      view.busy = view.busy || lane.outstanding > 0;
      view.retransmits += statistics.counters.retransmits;
      sum += statistics.smoothed_rtt;
      count += statistics.smoothed_rtt > 0 ? 1 : 0;
    }
    view.rtt = count > 0 ? sum / count : 0;
    policy_->observe(peer->name(), view);
  }
  policy_->tick(t);
}

// -- completions -------------------------------------------------------------------------------------------------

void Device::on_completion(const Completion& completion) {
  if (completion.kind == Completion::Kind::kFenced) {  // its QP belongs to no peer
    on_fenced(completion);
    return;
  }
  const auto owner = qp_owners_.find(completion.qpn);
  if (owner != qp_owners_.end()) {
    Peer& peer = *owner->second.peer;
    peer.heard = peer.heard || completion.kind != Completion::Kind::kPortChanged;
    if (peer.fusion) note_member(peer, owner->second.lane, completion);
    switch (completion.kind) {
      case Completion::Kind::kSent:
        on_sent(peer, owner->second.lane, completion);
        break;
      case Completion::Kind::kReceivedWriteImm:
        on_flowlet_arrived(peer, owner->second.lane, completion.imm >> 16, completion.imm & 0xFFFF,
                           completion.byte_length);
        break;
      case Completion::Kind::kReceivedSend:
        on_received_send(
            peer, owner->second.lane,
            {receive_buffers_.data() + completion.cookie * sizeof(AdvertisementBatch::bytes), completion.byte_length});
        break;
      case Completion::Kind::kAcksMayBeLost:
        consult_policy(peer, owner->second.lane, 1);
        break;
      case Completion::Kind::kQpFailed:
        fail_lane(peer, owner->second.lane, completion);
        break;
      case Completion::Kind::kQpBroken:
        on_broken(peer, owner->second.lane, completion);
        break;
      case Completion::Kind::kStopped:
        on_stopped(peer, owner->second.lane, completion);
        break;
      case Completion::Kind::kPortChanged:
        on_port_changed(peer, owner->second.lane, completion);
        break;
      case Completion::Kind::kFenced:
        break;
    }
  }
  const bool received =
      completion.kind == Completion::Kind::kReceivedWriteImm || completion.kind == Completion::Kind::kReceivedSend;
  if (received) post_receive_buffer(completion.cookie);
}

void Device::fail_lane(Peer& peer, unsigned index, const Completion& why) {
  const Status status = why.status;
  const bool own = status == Status::kPortDown || status == Status::kDeviceLost || status == Status::kSendRefused;
  std::string error =
      "lane " + std::to_string(index) + " to " + format_address(peer.address) + ": " + to_string(status);
  if (status == Status::kSendRefused) {
    const int number = static_cast<int>(why.imm);
    error += std::string(": ") + std::strerror(number) + " (errno " + std::to_string(number) + ")";
    if (number == EMSGSIZE || number == EINVAL) {
      error += "; the path MTU is " + std::to_string(peer.path_mtu) + " bytes: choose one that fits the route's MTU";
    }
  }
  fail_peer(peer, own ? Failure::kDevice : Failure::kTransport, error);
}

void Device::on_sent(Peer& peer, unsigned index, const Completion& completion) {
  if (completion.status != Status::kSuccess) {
    if (completion.status != Status::kFlushed) fail_lane(peer, index, completion);
    return;
  }
  Lane& lane = peer.lanes[index];
  lane.breaks = 0;
  if (--lane.unfinished == 0) lane.rested = backend_->estimate(lane.qp.qpn);
  if (lane.renewal && lane.renewal->switched() && lane.renewal->qp.qpn == completion.qpn &&
      --lane.renewal->unfinished == 0) {
    next_housekeeping_ = 0;  // advance_renewal runs after this round's completions, which may belong to that QP
  }
  if (AdvertisementBatch* batch = batch_of(completion.cookie)) {
    batch->lane = nullptr;
    peer.spare_batches.push_back(batch);
    return;
  }
  if (completion.cookie == 0) return;
  Request& request = *request_of(completion.cookie);
  std::uint64_t bytes = completion.byte_length;
  if ((completion.cookie & kEnd) != 0) bytes = request.flowlets->length(0);
  if ((completion.cookie & kLastEnd) != 0) bytes = request.flowlets->length(request.flowlets->count - 1);
  --lane.outstanding;
  lane.outstanding_bytes -= bytes;
  ++lane.flowlets;
  if (follows_traffic_) policy_->delivered(peer.name(), bytes, now());
  --request.posted;
  ++request.finished;
  if (request.trace) request.trace->end(completion.qpn, now());
  Connection& connection = *request.connection;
  if (request.finished == request.flowlets->count) {
    const auto keep = connection.in_flight.remove(request);
    request.bytes = request.length;
    finish(request);
  }
  consult_policy(peer, index);
  if (lane.moving_to && may_move(lane)) move_lane(peer, index);
  if (connection.state == Connection::State::kClosing || connection.reply_closed) advance_close(connection);
}

void Device::on_received_send(Peer& peer, unsigned lane, std::span<const std::byte> bytes) {
  if (const auto end = handshake::decode_flowlet_end(bytes)) {
    on_flowlet_arrived(peer, lane, end->slot, end->count, end->bytes);
  } else {
    on_advertisements(peer, bytes);
  }
}

void Device::on_flowlet_arrived(Peer& peer, unsigned lane, std::uint32_t slot, std::uint32_t count,
                                std::uint32_t bytes) {
  Request* request = peer.slots.at(slot);
  if (request == nullptr || count == 0) {
    fail_peer(peer, Failure::kTransport, "the peer sent a flowlet for a receive that is not open");
    return;
  }
  ++request->arrived;
  request->arrived_bytes += bytes;
  if (request->arrived_bytes > request->length) {
    fail_peer(peer, Failure::kTransport, "the peer sent more than the receive takes");
    return;
  }
  if (request->trace) {
    if (!request->trace->expected()) request->trace->expect(count);
    const std::uint32_t qpn = peer.lanes[lane].qp.qpn;
    const Nanos t = now();
    request->trace->begin(lane, qpn, 0, bytes, t);
    request->trace->end(qpn, t);
  }
  if (request->arrived < count) return;
  const auto keep = request->connection->receives.remove(*request);
  const bool memory_gone = retired(request->registration());
  release_receive(*request);
  if (memory_gone) {
    fail(*request, Failure::kClosed, "its memory was taken back before the message came");
    return;
  }
  request->bytes = request->arrived_bytes;
  finish(*request);
}

}  // namespace paralet
