// SPDX-License-Identifier: Apache-2.0
#include "engine/front.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/ip_address.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {
namespace {

constexpr Nanos kHousekeeping = 5 * kMillisecond;
constexpr Nanos kReleaseSpare = 1 * kSecond;
constexpr Nanos kQuietShare = 4;       // a waiting device probes a quiet peer after retry_time / 4
constexpr unsigned kEventsEvery = 64;  // rounds between two calls of look

/// Whether the peer has acknowledged something.
bool delivers(const Completion& completion) {
  return completion.kind == Completion::Kind::kSent && completion.status == Status::kSuccess;
}

}  // namespace

// -- rounds --------------------------------------------------------------------------------------------------------

bool Front::step(Nanos t) {
  if (rounds_++ % kEventsEvery == 0) look();
  lock_.start_submitted();
  if (parts_.policy->news()) parts_.ports.take_news();
  bool any = shard_.backend().progress(t, completions_);
  for (std::size_t i = 0; i < completions_.size(); ++i) on_completion(completions_[i]);
  completions_.clear();
  any = flush(t) || any;
  if (t >= context_.next_housekeeping) housekeeping(t);
  return any;
}

void Front::start(std::shared_ptr<Request> request) {
  parts_.results.begin(*request);
  if (request->kind == Request::Kind::kFence) {
    parts_.fences.start(std::move(request));
    return;
  }
  Connection& connection = *request->connection;
  request->failure = Failure::kNone;
  if (request->kind == Request::Kind::kReceive && parts_.receives.take_kept(*request)) return;
  if (connection.state != Connection::State::kOpen || connection.peer == nullptr || connection.peer_quiet) {
    if (connection.failure != Failure::kNone) {
      parts_.results.fail(*request, connection.failure, connection.error);
    } else {
      parts_.results.fail(*request, Failure::kClosed, "the connection is not open");
    }
    return;
  }
  if (request->kind == Request::Kind::kReceive) {
    parts_.receives.start(request);
  } else {
    parts_.sends.start(std::move(request));
  }
}

bool Front::flush(Nanos t) {
  const bool pumped = parts_.sends.pump(t);
  parts_.advertisements.send_due(t);
  const bool any = shard_.backend().flush(t) || pumped;
  if (parts_.receives.take_last_of_long()) shard_.backend().settle(t);
  return any;
}

void Front::settle(Nanos t) {
  parts_.advertisements.send_all();
  shard_.backend().flush(t);
  shard_.backend().settle(t);
}

void Front::rest(Nanos t) {
  settle(t);
  shard_.backend().rest();
}

Nanos Front::next_deadline(Nanos t) const {
  if (parts_.advertisements.waiting()) return t;
  return std::min(
      {shard_.backend().deadline(t), parts_.sends.deadline(), context_.next_housekeeping, parts_.policy->deadline()});
}

// -- completions ---------------------------------------------------------------------------------------------------

/// Whether a completion shows that the peer's engine runs. Its NIC acknowledges also for a process that is stopped. So
/// does its kernel over TCP, where the engine answers only pings, which alone have no cookie there.
bool Front::from_engine(const Peer& peer, const Completion& completion) const {
  switch (completion.kind) {
    case Completion::Kind::kReceivedSend:
    case Completion::Kind::kReceivedWriteImm:
    case Completion::Kind::kAcksMayBeLost:
      return true;
    case Completion::Kind::kSent:
      if (peer.signs.acknowledges_alone) return false;
      return delivers(completion) && (completion.cookie == 0 || shard_.backend().transport() != Transport::kTcp);
    default:
      return false;
  }
}

void Front::on_completion(const Completion& completion) {
  if (completion.kind == Completion::Kind::kFenced) {  // its QP belongs to no peer
    parts_.fences.on_fenced(completion);
    return;
  }
  if (const Shard::QpOwner* const owner = shard_.owner(completion.qpn)) {
    Peer& peer = *owner->peer;
    const unsigned lane = owner->lane;
    peer.heard = peer.heard || from_engine(peer, completion);
    peer.delivered = peer.delivered || delivers(completion);
    if (peer.fusion) Members::note(peer, lane, completion);
    switch (completion.kind) {
      case Completion::Kind::kSent:
        parts_.sends.on_sent(peer, lane, completion);
        break;
      case Completion::Kind::kReceivedWriteImm:
        parts_.receives.on_flowlet_arrived(peer, lane, completion.imm >> 16, completion.imm & 0xFFFF,
                                           completion.byte_length);
        break;
      case Completion::Kind::kReceivedSend:
        on_received_send(peer, lane, shard_.received(completion));
        break;
      case Completion::Kind::kAcksMayBeLost:
        parts_.ports.consult_policy(peer, lane, 1);
        break;
      case Completion::Kind::kQpFailed:
        fail_lane(peer, lane, completion);
        break;
      case Completion::Kind::kQpBroken:
        parts_.renewals.on_broken(peer, lane, completion);
        break;
      case Completion::Kind::kPathMtu:
        parts_.renewals.on_path_mtu(peer, lane, completion);
        break;
      case Completion::Kind::kStopped:
        parts_.renewals.on_stopped(peer, lane, completion);
        break;
      case Completion::Kind::kPortChanged:
        parts_.ports.on_port_changed(peer, lane, completion);
        break;
      case Completion::Kind::kFenced:
        break;
    }
  }
  const bool received =
      completion.kind == Completion::Kind::kReceivedWriteImm || completion.kind == Completion::Kind::kReceivedSend;
  if (received) shard_.post_receive_buffer(completion.cookie);
}

void Front::on_received_send(Peer& peer, unsigned lane, std::span<const std::byte> bytes) {
  if (const auto end = handshake::decode_flowlet_end(bytes)) {
    parts_.receives.on_flowlet_arrived(peer, lane, end->slot, end->count, end->bytes);
    return;
  }
  if (peer.eager) {
    if (const auto message = handshake::decode_eager_message(bytes)) {
      parts_.receives.on_eager(peer, lane, *message, bytes.subspan(handshake::kEagerHeaderBytes));
      return;
    }
  }
  on_control_record(peer, bytes);
}

/// Advertisements, asks and credits, at least one.
void Front::on_control_record(Peer& peer, std::span<const std::byte> bytes) {
  const std::size_t each = handshake::advertisement_bytes(peer.fusion != nullptr);
  const auto first = [&bytes](std::size_t length) { return bytes.first(std::min(length, bytes.size())); };
  std::size_t taken = 0;
  do {
    taken = 0;
    if (const auto advertisement = handshake::decode_advertisement(first(each))) {
      parts_.sends.on_advertisement(peer, *advertisement);
      taken = each;
    } else if (const auto credit = handshake::decode_eager_credit(first(handshake::kEagerCreditBytes));
               credit && peer.eager) {
      parts_.sends.on_credit(peer, *credit);
      taken = handshake::kEagerCreditBytes;
    } else if (const auto ask = handshake::decode_ask(first(handshake::kAskBytes)); ask && peer.eager) {
      parts_.receives.on_ask(peer, *ask);
      taken = handshake::kAskBytes;
    }
    bytes = bytes.subspan(taken);
  } while (taken > 0 && !bytes.empty() && !peer.dead());
  if (taken == 0 && !peer.dead()) {
    fail_peer(peer, Failure::kTransport,
              "the peer sent a SEND that is neither receive advertisements nor the end of a flowlet");
  }
}

// -- channels ------------------------------------------------------------------------------------------------------

void Front::look() {
  std::array<epoll_event, 32> events;
  for (const epoll_event& event : parts_.sockets.ready(events)) {
    const int fd = event.data.fd;
    if (fd == context_.polling->wake_fd()) {
      context_.polling->woken();
    } else if (fd != shard_.backend().event_fd() && !parts_.listeners.on_readable(fd)) {
      on_channel_event(fd, event.events);
    }
  }
}

std::vector<handshake::Frame> Front::serve(Channel& channel, std::uint32_t events) {
  const int fd = channel.fd();
  if ((events & EPOLLOUT) != 0) channel.on_writable();
  auto frames = channel.on_readable();
  if (!channel.closed()) parts_.sockets.watch(fd, channel.wants_write());
  return frames;
}

/// A channel whose first frame has not come yet: it says which peer it belongs to.
void Front::on_incoming(Channel& channel, std::uint32_t events) {
  const int fd = channel.fd();
  const auto frames = serve(channel, events);
  if (frames.empty() && !channel.closed()) return;
  Incoming incoming = parts_.listeners.take(fd);
  if (incoming.channel->closed() || incoming.hello) return;  // gone, or spoke before the welcome
  Peer* peer = nullptr;
  if (const auto* hello = std::get_if<handshake::Hello>(&frames.front())) {
    if (parts_.connections.comes_first(*hello)) {
      incoming.hello = std::make_unique<handshake::Hello>(*hello);
      parts_.listeners.hold(std::move(incoming));
      return;
    }
    peer = parts_.connections.welcome(incoming.channel, incoming.address, *hello);
  } else if (const auto* joining = std::get_if<handshake::Join>(&frames.front())) {
    peer = parts_.members.join(incoming.channel, incoming.address, *joining);
  }
  if (peer != nullptr) on_frames(*peer, {frames.begin() + 1, frames.end()});
}

/// Hellos that waited for a set-up of this device's own, which has ended without use for them.
void Front::welcome_held() {
  for (Incoming& incoming : parts_.listeners.take_held()) {
    if (parts_.connections.comes_first(*incoming.hello)) {
      parts_.listeners.hold(std::move(incoming));
    } else {
      parts_.connections.welcome(incoming.channel, incoming.address, *incoming.hello);
    }
  }
}

void Front::on_channel_event(int fd, std::uint32_t events) {
  if (Channel* const incoming = parts_.listeners.incoming(fd)) {
    on_incoming(*incoming, events);
    return;
  }
  for (std::size_t i = 0; i < parts_.peers.all.size(); ++i) {
    Peer& peer = *parts_.peers.all[i];
    if (peer.dead()) continue;
    const auto found =
        std::ranges::find_if(peer.channels(), [fd](const auto& channel) { return channel && channel->fd() == fd; });
    if (found == peer.channels().end()) continue;
    Channel& channel = **found;
    const auto member = static_cast<unsigned>(found - peer.channels().begin());
    const bool was_connecting = channel.connecting();
    const auto frames = serve(channel, events);
    const bool connected = was_connecting && !channel.connecting();
    peer.heard = peer.heard || connected;
    if (connected && peer.fusion && peer.ready()) parts_.members.on_connected(peer, member);
    const bool closed = channel.closed();
    if (!frames.empty() || closed) {
      // A NIC acknowledges on its own, and so does TCP. Completions of data that the peer knows to have arrived may
      // still be queued; handle them before the frames that follow that data.
      std::vector<Completion> arrived;
      for (bool more = true; more; arrived.clear()) {
        more = shard_.backend().take_arrived(now(), arrived) && !arrived.empty();
        for (const Completion& completion : arrived) on_completion(completion);
      }
    }
    on_frames(peer, frames);
    if (!peer.dead()) on_channel_closed(peer, member);  // an answer to a frame may have closed it
    return;
  }
}

void Front::on_channel_closed(Peer& peer, unsigned member) {
  Channel* const channel = peer.channels()[member].get();
  if (channel == nullptr || !channel->closed()) return;  // replaced meanwhile
  const std::string reason = channel->reason();
  if (peer.fusion && peer.ready()) {
    if (!peer.fusion->members[member].up) {
      parts_.members.on_not_opened(peer, member, reason);
      return;
    }
    if (channel->lost()) {
      parts_.members.leave(peer, member, reason);
      return;
    }
    // The peer's last frames may have come over another channel.
    for (std::size_t i = 0; i < peer.channels().size(); ++i) {
      if (i != member && peer.channels()[i]) on_frames(peer, peer.channels()[i]->on_readable());
      if (peer.dead()) return;
    }
  }
  if (peer.ready()) {
    fail_unreachable(peer, Failure::kClosed, format_address(peer.address) + " went away: " + reason);
  } else {
    fail_unreachable(peer, Failure::kTransport, "cannot connect to " + format_address(peer.address) + ": " + reason);
  }
}

// -- frames --------------------------------------------------------------------------------------------------------

void Front::on_frames(Peer& peer, const std::vector<handshake::Frame>& frames) {
  for (const auto& frame : frames) {
    if (peer.dead()) return;
    peer.heard = true;
    on_frame(peer, frame);
  }
  if (peer.fusion && !peer.dead()) parts_.frames.acknowledge(peer);
  if (!std::exchange(peer.signs.owes_answer, false) || peer.dead()) return;
  // A peer that does not read its answers gets no more of them: they would fill the memory.
  const auto has_room = [](const auto& channel) { return channel && !channel->wants_write(); };
  if (std::ranges::any_of(peer.channels(), has_room)) parts_.frames.send(peer, handshake::SignOfLife{});
}

void Front::on_sign(Peer& peer, const handshake::SignOfLife& sign) {
  if (!peer.signs.agreed) {
    fail_peer(peer, Failure::kTransport, "the peer sent a sign of life, which was not agreed on");
    return;
  }
  peer.signs.owes_answer = peer.signs.owes_answer || sign.wants_answer;
}

void Front::on_frame(Peer& peer, const handshake::Frame& frame) {
  if (peer.setting_up) {
    peer.until_set_up().held.push_back(frame);
    return;
  }
  std::visit(
      [&]<typename T>(const T& message) PARALET_REQUIRES(progress_lock) {
        using namespace handshake;  // NOLINT(google-build-using-namespace): its frames only
        constexpr auto is_any = []<typename... Types>() { return (std::is_same_v<T, Types> || ...); };
        if constexpr (is_any.template operator()<NewQp, QpReady, QpDrained, QpStopped>()) {
          if (!parts_.set_up.hold(peer, message.lane, frame)) parts_.renewals.on(peer, message);
        } else if constexpr (is_any.template operator()<Join, MemberDown, Numbered>()) {
          parts_.members.on(peer, message);
        } else if constexpr (is_any.template operator()<Close, Closed>()) {
          parts_.closes.on(peer, message);
        } else if constexpr (std::is_same_v<T, Overrun>) {
          parts_.receives.on(peer, message);
        } else if constexpr (std::is_same_v<T, SignOfLife>) {
          on_sign(peer, message);
        } else {
          parts_.connections.on(peer, message);
        }
      },
      frame);
}

// -- periodic ------------------------------------------------------------------------------------------------------

void Front::housekeeping(Nanos t) {
  bool busy = false;
  for (std::size_t p = 0; p < parts_.peers.all.size(); ++p) {  // by index: a peer that fails may add another
    Peer& peer = *parts_.peers.all[p];
    if (!peer.dead()) busy = keep_peer(peer, t) || busy;
  }
  parts_.listeners.tick(t);
  welcome_held();
  parts_.ports.report_traffic(t);
  parts_.ends.reap(t);
  parts_.observation.tick(t);
  if (!busy && t >= next_release_) {
    release_spare();
    next_release_ = t + kReleaseSpare;
  }
  busy = busy || parts_.policy->busy();
  context_.next_housekeeping = t + (busy ? kHousekeeping : 20 * kHousekeeping);
}

/// True when its lanes have work.
bool Front::keep_peer(Peer& peer, Nanos t) {
  bool busy = false;
  bool any_silent = false;
  bool working = false;
  for (unsigned i = 0; i < peer.lanes.size(); ++i) {
    Lane& lane = peer.lanes[i];
    if (lane.renewal) parts_.renewals.advance(peer, i);
    if (peer.dead()) break;
    if (lane.renewal) busy = true;
    if (lane.unfinished == 0) continue;
    busy = working = true;
    any_silent = any_silent || shard_.silent(lane);
    // The policy is asked when a flowlet finishes. On a dead path none does, so timeouts ask it here. A lane of a fused
    // device goes to another member then (Members::leave_silent).
    const unsigned member = member_of(lane.qp.qpn);
    const bool goes =
        peer.has_other_path(member) && !peer.fusion->members[member].delivers() && shard_.past_timeout(lane.qp.qpn);
    const std::uint64_t timeouts = shard_.backend().recent_statistics(lane.qp.qpn).counters.timeouts;
    if (!goes && timeouts > lane.timeouts_seen) parts_.ports.consult_policy(peer, i);
    parts_.ports.leave_if_dead(peer, i);
  }
  if (peer.fusion && peer.ready()) parts_.members.watch(peer, t);
  if (peer.dead()) return busy;
  if (any_silent) parts_.advertisements.repeat(peer);
  // Work in progress detects a dead peer by its own retransmissions. Otherwise ping.
  const bool heard = std::exchange(peer.heard, false);
  const bool delivered = std::exchange(peer.delivered, false);
  if (heard) {
    peer.heard_at = t;
    peer.signs.heard(t);
  } else if (peer.ready() && peer.signs.quiet(t, context_.options.retry_time)) {
    ask_for_sign(peer, t);
    if (peer.dead()) return busy;
  }
  if (heard || delivered || working) {
    peer.quiet_since = t;
  } else if (t - peer.quiet_since >= context_.options.retry_time / kQuietShare) {
    peer.quiet_since = t;
    if (peer.ready() && parts_.observation.awaits(peer)) shard_.ping(peer);
  }
  return busy;
}

/// A peer whose NIC acknowledges on its own has said nothing for a while.
void Front::ask_for_sign(Peer& peer, Nanos t) {
  switch (peer.signs.next(t, parts_.observation.awaits(peer))) {
    case Signs::Due::kNothing:
      break;
    case Signs::Due::kAsk:
      parts_.frames.send(peer, handshake::SignOfLife{.wants_answer = true});
      break;
    case Signs::Due::kGiveUp:
      fail_unreachable(peer, Failure::kTransport,
                       format_address(peer.address) +
                           " gave no sign of life within the retry time: its process is stopped, or it cannot be "
                           "reached");
      break;
  }
}

/// Frees the memory of empty queues: of many peers few are busy at a time.
void Front::release_spare() {
  for (const auto& peer : parts_.peers.all) peer->sending.release();
  for (const auto& [id, connection] : parts_.peers.connections) connection->advertised.release();
  parts_.copies.release_spare();
}

}  // namespace paralet
