// SPDX-License-Identifier: Apache-2.0
#include "engine/renewals.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "engine/posted_work.hpp"

namespace paralet {
namespace {

constexpr Nanos kShortestRenewal = 5 * kMillisecond;  // else a peer that asks again at once costs QPs without end
constexpr unsigned kMaxBreaks = 8;                    // of a lane's QPs in a row, before the peer is given up
constexpr const char* kOutOfSequence = "the peer sent a queue pair renewal message out of sequence";

/// Gives works taken back from another member's QP the keys of this member.
void address_again(std::vector<WorkRequest>& works, unsigned member) {
  for (std::size_t i = 0; i < works.size(); ++i) {
    WorkRequest& work = works[i];
    if (work.kind == WorkKind::kSend) {
      const AdvertisementBatch* batch = batch_of(work.cookie);
      work.memory = batch != nullptr ? batch->memory : 0;  // SENDs that share a batch have no registration
      continue;
    }
    // The end of a flowlet follows its WRITE, which has no cookie. A ping has neither.
    const bool separately = work.kind == WorkKind::kWrite && work.length > 0;
    const std::uint64_t cookie = separately && i + 1 < works.size() ? works[i + 1].cookie : work.cookie;
    if (cookie == 0) continue;
    const Request& request = *request_of(cookie);
    work.rkey = request.advertisement.rkeys[member];
    work.memory = request.registration();
  }
}

}  // namespace

/// What the peer has to know of the lane's fresh QP.
handshake::NewQp Renewals::fresh_qp(const Peer& peer, unsigned index) {
  const Renewal& renewal = *peer.lanes[index].renewal;
  return {.lane = static_cast<std::uint16_t>(index),
          .qp = renewal.qp,
          .ece = shard_.backend().ece(renewal.qp.qpn),
          .path_mtu = peer.narrowed ? std::optional(renewal.path_mtu) : std::nullopt};
}

/// Asks the peer for a renewal of the lane, on this member.
void Renewals::renew(Peer& peer, unsigned index, std::uint16_t port, unsigned member) {
  set_up_.create_fresh_qp(
      peer, index, port, member, [this, &peer, index](bool created) PARALET_REQUIRES(progress_lock) {
        const Lane& lane = peer.lanes[index];
        if (created) {
          frames_.send(peer, fresh_qp(peer, index));
        } else if (lane.broken) {
          events_.fail_peer(peer, Failure::kDevice,
                            "lane " + std::to_string(index) + " to " + format_address(peer.address) +
                                ": the RDMA device ended its queue pair and has no other");
        } else {
          policy_->port_refused();
        }
      });
}

/// The peer's fresh QP, as its own request or as the answer to ours. Two requests that cross answer each other.
void Renewals::on(Peer& peer, const handshake::NewQp& frame) {
  Lane* lane = peer.ready() && frame.lane < peer.lanes.size() ? &peer.lanes[frame.lane] : nullptr;
  if (lane != nullptr && lane->renewal &&
      (lane->renewal->state == Renewal::State::kFinished || lane->renewal->resolved)) {
    lane->renewal->next = frame;
    return;
  }
  const bool asked = lane != nullptr && lane->renewal;
  const bool refused = frame.qp.qpn == 0;
  const unsigned member = member_of(frame.qp.qpn);
  if (member >= (peer.fusion ? peer.fusion->members.size() : 1)) {
    events_.fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  // A fused peer may find that it cannot connect its QP after it has sent it, and after ours was connected to it.
  const bool in_sequence = asked && (lane->renewal->state == Renewal::State::kAsked ||
                                     (refused && peer.fusion && lane->renewal->state == Renewal::State::kConnected));
  if (lane == nullptr || asked != in_sequence || (refused && !asked) || (asked && lane->renewal->refused && !refused)) {
    events_.fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  if (refused) {
    const unsigned fresh = member_of(lane->renewal->qp.qpn);
    if (peer.has_other_path(fresh) && !peer.fusion->members[fresh].up) {  // no path there
      end_refused(peer, frame.lane);
      return;
    }
    if (lane->broken) {
      events_.fail_peer(peer, Failure::kDevice,
                        "lane " + std::to_string(frame.lane) + " to " + format_address(peer.address) +
                            ": the RDMA device ended its queue pair, and the peer has no other");
      return;
    }
    shard_.drop_qp(lane->renewal->qp.qpn);
    lane->renewal.reset();
    policy_->port_refused();
    return;
  }
  if (frame.path_mtu) peer.narrow(*frame.path_mtu);
  if (asked && member == member_of(lane->renewal->qp.qpn)) {
    answer_new_qp(peer, frame, true);
    return;
  }
  // Requests for different members cross. An rkey holds on one member, so both QPs must be on members of one index: the
  // connecting side's request counts, and it still waits for the answer.
  std::uint16_t port = lane->next_port();
  if (asked) {
    if (std::exchange(lane->renewal->crossed, true)) {
      events_.fail_peer(peer, Failure::kTransport, kOutOfSequence);
      return;
    }
    if (peer.initiator) return;
    port = lane->renewal->port;
    shard_.drop_qp(lane->renewal->qp.qpn);
    lane->renewal.reset();
  }
  const auto refuse = [this, &peer, index = frame.lane]() PARALET_REQUIRES(progress_lock) {
    frames_.send(peer, handshake::NewQp{.lane = index, .qp = {}, .ece = {}, .path_mtu = {}});
    if (peer.lanes[index].broken) replace_broken_qp(peer, index);
  };
  if (peer.fusion && peer.fusion->members[member].up_since == 0) {  // the peer has not shown that it has that address
    refuse();
    return;
  }
  set_up_.create_fresh_qp(peer, frame.lane, port, member,
                          [this, &peer, frame, refuse](bool created) PARALET_REQUIRES(progress_lock) {
                            if (created) {
                              answer_new_qp(peer, frame, false);
                            } else {
                              refuse();
                            }
                          });
}

/// Connects the fresh QP of our side, and tells the peer about it unless we have when we `asked`. If that is
/// impossible, it refuses the renewal. After our own request the peer may have answered that it is ready, which is
/// still to come.
void Renewals::answer_new_qp(Peer& peer, const handshake::NewQp& frame, bool asked) {
  RemoteQp remote = peer.remote_qp(frame.qp, frame.ece);
  remote.path_mtu = std::min(peer.lanes[frame.lane].renewal->path_mtu, frame.path_mtu.value_or(UINT32_MAX));
  set_up_.connect_fresh_qp(peer, frame.lane, remote,
                           [this, &peer, index = frame.lane, asked](bool connected) PARALET_REQUIRES(progress_lock) {
                             Renewal& renewal = *peer.lanes[index].renewal;
                             if (!connected) {
                               frames_.send(peer, handshake::NewQp{.lane = index, .qp = {}, .ece = {}, .path_mtu = {}});
                               renewal.refused = asked;
                               if (!asked) end_refused(peer, index);
                               return;
                             }
                             renewal.on(Renewal::Event::kConnected);
                             if (!asked) {
                               frames_.send(peer, fresh_qp(peer, index));
                             }
                             frames_.send(peer, handshake::QpReady{index});
                           });
}

/// A side of fused devices could not connect its fresh QP: the lane stays where it is, or goes to another member.
void Renewals::end_refused(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  shard_.drop_qp(lane.renewal->qp.qpn);
  lane.renewal.reset();
  context_.next_housekeeping = 0;  // moves the lane if its member is down
  if (lane.broken) replace_broken_qp(peer, index);
}

/// Both ends are connected: the lane posts on its fresh QP from now on.
void Renewals::on(Peer& peer, const handshake::QpReady& frame) {
  if (frame.lane < peer.lanes.size() && peer.lanes[frame.lane].renewal && peer.lanes[frame.lane].renewal->refused) {
    end_refused(peer, frame.lane);
    return;
  }
  Renewal* renewal = renewal_after(peer, frame.lane, Renewal::Event::kPeerConnected);
  if (renewal == nullptr) return;
  Lane& lane = peer.lanes[frame.lane];
  std::swap(lane.qp, renewal->qp);
  renewal->unfinished = lane.unfinished;
  lane.timeouts_seen = 0;
  lane.changing_to.reset();
  lane.last_estimate = shard_.backend().estimate(lane.qp.qpn);
  lane.shunned = peer.fusion && !peer.fusion->members[member_of(lane.qp.qpn)].up;
  if (renewal->port != std::exchange(lane.port, renewal->port)) ++lane.moves;
  if (std::exchange(lane.broken, false)) stop_old_qp(lane);
  context_.next_housekeeping = 0;
}

void Renewals::on(Peer& peer, const handshake::QpDrained& frame) {
  if (renewal_after(peer, frame.lane, Renewal::Event::kPeerDrained) != nullptr) context_.next_housekeeping = 0;
}

/// The lane's renewal after this event from the peer. nullptr, and the peer has failed, if the event cannot happen.
Renewal* Renewals::renewal_after(Peer& peer, unsigned index, Renewal::Event event) {
  Renewal* renewal = index < peer.lanes.size() ? peer.lanes[index].renewal.get() : nullptr;
  if (renewal != nullptr && renewal->on(event)) return renewal;
  events_.fail_peer(peer, Failure::kTransport, kOutOfSequence);
  return nullptr;
}

/// Runs after a round's completions, so that all completions of the old QP have been handled, receives included.
void Renewals::advance(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  Renewal& renewal = *lane.renewal;
  if (renewal.stopping) {
    if (!renewal.resolved || renewal.unfinished > 0) return;
  } else {
    if (renewal.unfinished == 0 && renewal.on(Renewal::Event::kDrained)) {
      frames_.send(peer, handshake::QpDrained{static_cast<std::uint16_t>(index)});
    }
    if (renewal.switched() && renewal.unfinished > 0 && shard_.past_timeout(renewal.qp.qpn)) stop_old_qp(lane);
    if (renewal.state != Renewal::State::kFinished) return;
  }
  if (now() - renewal.begun < kShortestRenewal) return;
  if (!lane.former) lane.former = std::make_unique<QpCounters>();
  *lane.former += shard_.backend().statistics(renewal.qp.qpn).counters;
  shard_.drop_qp(renewal.qp.qpn);
  const std::optional<handshake::NewQp> next = renewal.next;
  lane.renewal.reset();
  if (lane.broken) {
    replace_broken_qp(peer, index);
  } else {
    events_.on_renewed(peer, index);
  }
  if (next && !peer.dead()) events_.on_frame(peer, *next);
}

// -- QPs that break, and QPs on dead paths ------------------------------------------------------------------------

/// The NIC moved a QP to the error state and gave no reason. The kernel's rxe does so as soon as it finds no route for
/// a packet (rxe_requester in rxe_req.c), so a link that goes down for a moment breaks every QP that sends. A renewal
/// replaces the QP, and what did not arrive over it goes over the fresh one. Where the reason is that the path is lost,
/// only another member of a fused device can replace it.
void Renewals::on_broken(Peer& peer, unsigned index, const Completion& completion) {
  Lane& lane = peer.lanes[index];
  if (completion.status != Status::kFlushed) {
    const unsigned member = member_of(completion.qpn);
    if (!peer.has_other_path(member)) {
      events_.fail_lane(peer, index, completion);
      return;
    }
    if (peer.fusion->members[member].up) events_.on_member_unusable(peer, member, to_string(completion.status));
    if (peer.dead()) return;
    const bool unused = lane.renewal && !lane.renewal->switched() && completion.qpn == lane.renewal->qp.qpn;
    if (unused) return;  // the lane leaves it when it has it
  }
  if (completion.qpn != lane.qp.qpn && lane.renewal->drained()) return;  // the peer knows, and its end may be gone
  if (++lane.breaks > kMaxBreaks) {
    events_.fail_peer(peer, Failure::kDevice,
                      "lane " + std::to_string(index) + " to " + format_address(peer.address) +
                          ": the RDMA device ended its queue pair " + std::to_string(lane.breaks) +
                          " times in a row and gave no reason");
    return;
  }
  leave(peer, index, completion.qpn, other_member(peer, index));
}

void Renewals::on_path_mtu(Peer& peer, unsigned index, const Completion& completion) {
  peer.narrow(completion.imm);
  leave(peer, index, completion.qpn, member_of(completion.qpn));
}

/// What does not arrive over this QP of the lane goes over a fresh one, on this member if no renewal is in progress.
void Renewals::leave(Peer& peer, unsigned index, std::uint32_t qpn, unsigned member) {
  Lane& lane = peer.lanes[index];
  if (qpn != lane.qp.qpn) {  // the old one of a renewal
    if (!lane.renewal->drained()) stop_old_qp(lane);
    return;
  }
  lane.broken = true;
  // A renewal in progress replaces it, or `advance` does.
  if (!lane.renewal) replace_qp(peer, index, member);
}

unsigned Renewals::other_member(const Peer& peer, unsigned index) {
  const unsigned member = member_of(peer.lanes[index].qp.qpn);
  return peer.fusion ? peer.fusion->other(member) : member;
}

void Renewals::replace_qp(Peer& peer, unsigned index, unsigned member) {
  Lane& lane = peer.lanes[index];
  renew(peer, index, std::exchange(lane.moving_to, std::nullopt).value_or(lane.next_port()), member);
}

void Renewals::replace_broken_qp(Peer& peer, unsigned index) { replace_qp(peer, index, other_member(peer, index)); }

/// Stops our end of the lane's old QP. When both ends are, each side knows what arrived, and nothing can arrive later.
void Renewals::stop_old_qp(Lane& lane) {
  if (std::exchange(lane.renewal->stopping, true)) return;
  shard_.backend().stop_qp(lane.renewal->qp.qpn);
}

void Renewals::on_stopped(Peer& peer, unsigned index, const Completion& completion) {
  Lane& lane = peer.lanes[index];
  if (!lane.renewal || !lane.renewal->stopping || lane.renewal->qp.qpn != completion.qpn) return;
  lane.renewal->arrived_here = completion.imm;
  frames_.send(peer, handshake::QpStopped{.lane = static_cast<std::uint16_t>(index), .arrived = completion.imm});
  resolve(lane);
}

void Renewals::on(Peer& peer, const handshake::QpStopped& frame) {
  Lane* lane = frame.lane < peer.lanes.size() ? &peer.lanes[frame.lane] : nullptr;
  if (lane == nullptr || !lane->renewal || !lane->renewal->switched() || lane->renewal->arrived_there ||
      lane->renewal->state == Renewal::State::kFinished) {
    events_.fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  lane->renewal->arrived_there = frame.arrived;
  stop_old_qp(*lane);
  resolve(*lane);
}

/// Posts what did not arrive on the old QP on the fresh one, once both ends are stopped.
void Renewals::resolve(Lane& lane) {
  Renewal& renewal = *lane.renewal;
  if (renewal.resolved || !renewal.arrived_here || !renewal.arrived_there) return;
  renewal.resolved = true;
  std::vector<WorkRequest> works = shard_.backend().take_back(renewal.qp.qpn, *renewal.arrived_there);
  if (shard_.backend().members() > 1) address_again(works, member_of(lane.qp.qpn));
  for (const WorkRequest& work : works) {
    shard_.backend().post(lane.qp.qpn, work);
    --renewal.unfinished;
  }
  context_.next_housekeeping = 0;
}

}  // namespace paralet
