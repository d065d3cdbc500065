// SPDX-License-Identifier: Apache-2.0
// Changes of a lane's source port. Where the backend can change the port of a QP, it does. A NIC that derives the port
// from the flow label fixes it when the QP connects: there the lane gets a fresh QP, and the old one finishes the
// flowlets posted on it (Renewal; docs/protocol.md, section 5). A QP that breaks is replaced in the same way.
#include <utility>

#include "backend/rc_timing.hpp"
#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "engine/device.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr Nanos kRoundTrips = 4;
constexpr Nanos kShortestRenewal = 5 * kMillisecond;  // else a peer that asks again at once costs QPs without end
constexpr unsigned kMoveAttempts = 64;                // ports tried at once: each costs a moment of the progress lock
constexpr unsigned kMaxBreaks = 8;                    // of a lane's QPs in a row, before the peer is given up
constexpr const char* kOutOfSequence = "the peer sent a queue pair renewal message out of sequence";

}  // namespace

/// Whether a move now keeps flowlets in order: none is in progress, or they stay on the old QP.
bool Device::may_move(const Lane& lane) const {
  return lane.outstanding == 0 || backend_->port_method() == PortMethod::kFlowLabel;
}

void Device::move_lane(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  if (lane.renewal || lane.changing_to) return;  // advance_renewal or on_port_changed calls again
  std::uint16_t port = *std::exchange(lane.moving_to, std::nullopt);
  const bool fixed = backend_->port_method() == PortMethod::kFlowLabel;
  PortChange change = backend_->set_port(lane.qp.qpn, port);
  for (unsigned attempts = 0; change == PortChange::kRefused && !fixed && attempts < kMoveAttempts; ++attempts) {
    if (!policy_->takes_other(peer.name(), index, port)) break;
    const auto other = policy_->alternative(peer.name(), index % options_.policy.lanes);
    if (!other) break;
    if (*other == lane.port) continue;
    port = *other;
    change = backend_->set_port(lane.qp.qpn, port);
  }
  switch (change) {
    case PortChange::kDone:
      lane.port = port;
      ++lane.moves;
      return;
    case PortChange::kStarted:
      lane.changing_to = port;
      return;
    case PortChange::kRefused:
      break;
  }
  if (fixed && peer.ready() && port >= wire::kFirstEntropyPort) {
    renew_lane(peer, index, port, member_of(lane.qp.qpn));
  } else {
    policy_->port_refused();
  }
}

/// The back end has changed the port of the lane's QP, or could not.
void Device::on_port_changed(Peer& peer, unsigned index, const Completion& completion) {
  Lane& lane = peer.lanes[index];
  if (completion.qpn != lane.qp.qpn) return;  // replaced meanwhile
  lane.changing_to.reset();
  if (completion.status == Status::kSuccess) {
    lane.port = static_cast<std::uint16_t>(completion.imm);
    ++lane.moves;
  } else {
    policy_->port_refused();
  }
  if (lane.moving_to && may_move(lane)) move_lane(peer, index);
}

/// Moves a lane off a dead path, to its new port if it has one. Packets in flight were lost with the path, so order
/// does not matter. Where the policy says so they are retransmitted at once: the backed-off timeout belongs to the old
/// path.
void Device::leave_dead_path(Peer& peer, unsigned index) {
  const Lane& lane = peer.lanes[index];
  if (lane.moving_to) move_lane(peer, index);
  if (policy_->resends_at_once()) backend_->path_changed(lane.qp.qpn, now());
}

/// Asks the peer for a renewal of the lane, on this member.
void Device::renew_lane(Peer& peer, unsigned index, std::uint16_t port, unsigned member) {
  create_fresh_qp(peer, index, port, member, [this, &peer, index](bool created) PARALET_REQUIRES(progress_lock_) {
    const Lane& lane = peer.lanes[index];
    if (created) {
      const QpIdentity& qp = lane.renewal->qp;
      send_frame(peer,
                 handshake::NewQp{.lane = static_cast<std::uint16_t>(index), .qp = qp, .ece = backend_->ece(qp.qpn)});
    } else if (lane.broken) {
      fail_peer(peer, Failure::kDevice,
                "lane " + std::to_string(index) + " to " + format_address(peer.address) +
                    ": the RDMA device ended its queue pair and has no other");
    } else {
      policy_->port_refused();
    }
  });
}

/// The NIC moved a QP to the error state and gave no reason. The kernel's rxe does so as soon as it finds no route for
/// a packet (rxe_requester in rxe_req.c), so a link that goes down for a moment breaks every QP that sends. A renewal
/// replaces the QP, and what did not arrive over it goes over the fresh one. Where the reason is that the path is lost,
/// only another member of a fused device can replace it.
void Device::on_broken(Peer& peer, unsigned index, const Completion& completion) {
  Lane& lane = peer.lanes[index];
  if (completion.status != Status::kFlushed) {
    const unsigned member = member_of(completion.qpn);
    if (!has_other_path(peer, member)) {
      fail_lane(peer, index, completion);
      return;
    }
    if (peer.fusion->members[member].up) leave_member(peer, member, to_string(completion.status), true);
    if (peer.dead()) return;
    const bool unused = lane.renewal && !lane.renewal->switched() && completion.qpn == lane.renewal->qp.qpn;
    if (unused) return;  // the lane leaves it when it has it
  }
  const bool old = completion.qpn != lane.qp.qpn;  // the old one of a renewal
  if (old && lane.renewal->drained()) return;      // the peer knows, and its end may be gone
  if (++lane.breaks > kMaxBreaks) {
    fail_peer(peer, Failure::kDevice,
              "lane " + std::to_string(index) + " to " + format_address(peer.address) +
                  ": the RDMA device ended its queue pair " + std::to_string(lane.breaks) +
                  " times in a row and gave no reason");
    return;
  }
  if (old) {
    stop_old_qp(lane);
    return;
  }
  lane.broken = true;
  // A renewal in progress replaces it, or advance_renewal does.
  if (!lane.renewal) replace_broken_qp(peer, index);
}

void Device::replace_broken_qp(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  const unsigned member = member_of(lane.qp.qpn);
  renew_lane(peer, index, std::exchange(lane.moving_to, std::nullopt).value_or(lane.heading()),
             peer.fusion ? peer.fusion->other(member) : member);
}

/// The peer's fresh QP, as its own request or as the answer to ours. Two requests that cross answer each other.
void Device::on(Peer& peer, const handshake::NewQp& frame) {
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
    fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  // A fused peer may find that it cannot connect its QP after it has sent it, and after ours was connected to it.
  const bool in_sequence = asked && (lane->renewal->state == Renewal::State::kAsked ||
                                     (refused && peer.fusion && lane->renewal->state == Renewal::State::kConnected));
  if (lane == nullptr || asked != in_sequence || (refused && !asked) || (asked && lane->renewal->refused && !refused)) {
    fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  if (refused) {
    const unsigned fresh = member_of(lane->renewal->qp.qpn);
    if (has_other_path(peer, fresh) && !peer.fusion->members[fresh].up) {  // no path there
      end_refused(peer, frame.lane);
      return;
    }
    if (lane->broken) {
      fail_peer(peer, Failure::kDevice,
                "lane " + std::to_string(frame.lane) + " to " + format_address(peer.address) +
                    ": the RDMA device ended its queue pair, and the peer has no other");
      return;
    }
    drop_qp(lane->renewal->qp.qpn);
    lane->renewal.reset();
    policy_->port_refused();
    return;
  }
  if (asked && member == member_of(lane->renewal->qp.qpn)) {
    answer_new_qp(peer, frame, true);
    return;
  }
  // Requests for different members cross. An rkey holds on one member, so both QPs must be on members of one index: the
  // connecting side's request counts, and it still waits for the answer.
  std::uint16_t port = lane->heading();
  if (asked) {
    if (std::exchange(lane->renewal->crossed, true)) {
      fail_peer(peer, Failure::kTransport, kOutOfSequence);
      return;
    }
    if (peer.initiator) return;
    port = lane->renewal->port;
    drop_qp(lane->renewal->qp.qpn);
    lane->renewal.reset();
  }
  const auto refuse = [this, &peer, index = frame.lane]() PARALET_REQUIRES(progress_lock_) {
    send_frame(peer, handshake::NewQp{.lane = index, .qp = {}, .ece = {}});
    if (peer.lanes[index].broken) replace_broken_qp(peer, index);
  };
  if (peer.fusion && peer.fusion->members[member].up_since == 0) {  // the peer has not shown that it has that address
    refuse();
    return;
  }
  create_fresh_qp(peer, frame.lane, port, member,
                  [this, &peer, frame, refuse](bool created) PARALET_REQUIRES(progress_lock_) {
                    if (created) {
                      answer_new_qp(peer, frame, false);
                    } else {
                      refuse();
                    }
                  });
}

/// A side of fused devices could not connect its fresh QP: the lane stays where it is, or goes to another member.
void Device::end_refused(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  drop_qp(lane.renewal->qp.qpn);
  lane.renewal.reset();
  next_housekeeping_ = 0;  // moves the lane if its member is down
  if (lane.broken) replace_broken_qp(peer, index);
}

/// Connects the fresh QP of our side, and tells the peer about it unless we have when we `asked`. If that is
/// impossible, it refuses the renewal. After our own request the peer may have answered that it is ready, which is
/// still to come.
void Device::answer_new_qp(Peer& peer, const handshake::NewQp& frame, bool asked) {
  const RemoteQp remote = remote_qp(peer, frame.qp, frame.ece);
  connect_fresh_qp(
      peer, frame.lane, remote,
      [this, &peer, index = frame.lane, asked](bool connected) PARALET_REQUIRES(progress_lock_) {
        Renewal& renewal = *peer.lanes[index].renewal;
        if (!connected) {
          send_frame(peer, handshake::NewQp{.lane = index, .qp = {}, .ece = {}});
          renewal.refused = asked;
          if (!asked) end_refused(peer, index);
          return;
        }
        renewal.on(Renewal::Event::kConnected);
        if (!asked) {
          send_frame(peer, handshake::NewQp{.lane = index, .qp = renewal.qp, .ece = backend_->ece(renewal.qp.qpn)});
        }
        send_frame(peer, handshake::QpReady{index});
      });
}

/// The lane's renewal after this event from the peer. nullptr, and the peer has failed, if the event cannot happen.
Renewal* Device::renewal_after(Peer& peer, unsigned index, Renewal::Event event) {
  Renewal* renewal = index < peer.lanes.size() ? peer.lanes[index].renewal.get() : nullptr;
  if (renewal != nullptr && renewal->on(event)) return renewal;
  fail_peer(peer, Failure::kTransport, kOutOfSequence);
  return nullptr;
}

/// Both ends are connected: the lane posts on its fresh QP from now on.
void Device::on(Peer& peer, const handshake::QpReady& frame) {
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
  lane.rested = backend_->estimate(lane.qp.qpn);
  lane.shunned = peer.fusion && !peer.fusion->members[member_of(lane.qp.qpn)].up;
  if (renewal->port != std::exchange(lane.port, renewal->port)) ++lane.moves;
  if (std::exchange(lane.broken, false)) stop_old_qp(lane);
  next_housekeeping_ = 0;
}

void Device::on(Peer& peer, const handshake::QpDrained& frame) {
  if (renewal_after(peer, frame.lane, Renewal::Event::kPeerDrained) != nullptr) next_housekeeping_ = 0;
}

/// Whether a QP has been silent for a timeout.
bool Device::past_timeout(std::uint32_t qpn) const {
  const QpStatistics statistics = backend_->statistics(qpn);
  const Nanos least = options_.min_timeout.value_or(kMinAckTimeout);
  return backend_->estimate(qpn).smoothed_rtt > std::max(least, kRoundTrips * statistics.smoothed_rtt);
}

/// Stops our end of the lane's old QP. When both ends are, each side knows what arrived, and nothing can arrive later.
void Device::stop_old_qp(Lane& lane) {
  if (std::exchange(lane.renewal->stopping, true)) return;
  backend_->stop_qp(lane.renewal->qp.qpn);
}

void Device::on_stopped(Peer& peer, unsigned index, const Completion& completion) {
  Lane& lane = peer.lanes[index];
  if (!lane.renewal || !lane.renewal->stopping || lane.renewal->qp.qpn != completion.qpn) return;
  lane.renewal->arrived_here = completion.imm;
  send_frame(peer, handshake::QpStopped{.lane = static_cast<std::uint16_t>(index), .arrived = completion.imm});
  resolve(lane);
}

void Device::on(Peer& peer, const handshake::QpStopped& frame) {
  Lane* lane = frame.lane < peer.lanes.size() ? &peer.lanes[frame.lane] : nullptr;
  if (lane == nullptr || !lane->renewal || !lane->renewal->switched() || lane->renewal->arrived_there ||
      lane->renewal->state == Renewal::State::kFinished) {
    fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  lane->renewal->arrived_there = frame.arrived;
  stop_old_qp(*lane);
  resolve(*lane);
}

/// Posts what did not arrive on the old QP on the fresh one, once both ends are stopped.
void Device::resolve(Lane& lane) {
  Renewal& renewal = *lane.renewal;
  if (renewal.resolved || !renewal.arrived_here || !renewal.arrived_there) return;
  renewal.resolved = true;
  std::vector<WorkRequest> works = backend_->take_back(renewal.qp.qpn, *renewal.arrived_there);
  if (backend_->members() > 1) address_again(works, member_of(lane.qp.qpn));
  for (const WorkRequest& work : works) {
    backend_->post(lane.qp.qpn, work);
    --renewal.unfinished;
  }
  next_housekeeping_ = 0;
}

/// Runs after a round's completions, so that all completions of the old QP have been handled, receives included.
void Device::advance_renewal(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  Renewal& renewal = *lane.renewal;
  if (renewal.stopping) {
    if (!renewal.resolved || renewal.unfinished > 0) return;
  } else {
    if (renewal.unfinished == 0 && renewal.on(Renewal::Event::kDrained)) {
      send_frame(peer, handshake::QpDrained{static_cast<std::uint16_t>(index)});
    }
    if (renewal.switched() && renewal.unfinished > 0 && past_timeout(renewal.qp.qpn)) stop_old_qp(lane);
    if (renewal.state != Renewal::State::kFinished) return;
  }
  if (now() - renewal.begun < kShortestRenewal) return;
  if (!lane.former) lane.former = std::make_unique<QpCounters>();
  *lane.former += backend_->statistics(renewal.qp.qpn).counters;
  drop_qp(renewal.qp.qpn);
  const std::optional<handshake::NewQp> next = renewal.next;
  lane.renewal.reset();
  if (lane.broken) {
    replace_broken_qp(peer, index);
  } else if (lane.moving_to) {
    move_lane(peer, index);
  }
  if (next && !peer.dead()) on_frame(peer, *next);
}

}  // namespace paralet
