// SPDX-License-Identifier: Apache-2.0
// Lanes move to other source ports. Where a QP's port can change, it does. A NIC that takes the port from the flow
// label fixes it when the QP connects: there the lane gets a fresh QP beside its old one, which carries to their end
// the flowlets that it has. docs/protocol.md, section 5.
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "engine/device.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr const char* kOutOfSequence = "the peer sent a queue pair renewal message out of sequence";

}  // namespace

/// Whether nothing can be overtaken: what is in flight is done, or stays on the QP that it is on.
bool Device::may_move(const Lane& lane) const {
  return lane.outstanding == 0 || backend_->port_method() == PortMethod::kFlowLabel;
}

void Device::move_lane(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  if (lane.renewal) return;  // one after the other
  const std::uint16_t port = *std::exchange(lane.moving_to, std::nullopt);
  if (backend_->set_port(lane.qp.qpn, port)) {
    lane.port = port;
    ++lane.moves;
    return;
  }
  const bool renewable = peer.ready && backend_->port_method() == PortMethod::kFlowLabel;
  if (renewable && port >= wire::kFirstEntropyPort && create_fresh_qp(peer, index, port)) {
    const std::uint32_t qpn = lane.renewal->qp.qpn;
    send_frame(peer, handshake::NewQp{
                         .lane = static_cast<std::uint16_t>(index), .qp = lane.renewal->qp, .ece = backend_->ece(qpn)});
  } else if (controller_ != nullptr) {
    controller_->could_not_bind();
  }
}

/// Takes a lane off a path that lets nothing through, to its new port if it has one. What is in flight was lost with
/// the path: there is nothing to overtake, and it goes again without waiting for a timeout backed off for the path
/// before.
void Device::leave_dead_path(Peer& peer, unsigned index) {
  const Lane& lane = peer.lanes[index];
  if (lane.moving_to) move_lane(peer, index);
  // `adaptive` leaves at the first timeout, which may have come too early: there the oldest packet asks alone.
  if (controller_ != nullptr) backend_->path_changed(lane.qp.qpn, now());
}

/// False when the NIC has no more.
bool Device::create_fresh_qp(Peer& peer, unsigned index, std::uint16_t port) {
  try {
    const QpIdentity qp = backend_->create_qp();
    qp_owners_.emplace(qp.qpn, QpOwner{&peer, index});
    peer.lanes[index].renewal = std::make_unique<Renewal>(Renewal{.qp = qp, .port = port});
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

/// The peer's side of a renewal, as a question or as an answer to ours. Two questions that cross answer each other.
void Device::on_new_qp(Peer& peer, const handshake::NewQp& frame) {
  Lane* lane = peer.ready && frame.lane < peer.lanes.size() ? &peer.lanes[frame.lane] : nullptr;
  if (lane != nullptr && lane->renewal && lane->renewal->peer_drained && lane->renewal->drained) {
    lane->renewal->next = frame;
    return;
  }
  const bool asked = lane != nullptr && lane->renewal;
  const bool refused = frame.qp.qpn == 0;
  if (lane == nullptr || (asked && lane->renewal->connected) || (refused && !asked)) {
    fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  if (refused) {
    drop_qp(lane->renewal->qp.qpn);
    lane->renewal.reset();
    if (controller_ != nullptr) controller_->could_not_bind();
    return;
  }
  if (!asked && !create_fresh_qp(peer, frame.lane, lane->port)) {
    send_frame(peer, handshake::NewQp{.lane = frame.lane, .qp = {}, .ece = {}});
    return;
  }
  Renewal& renewal = *lane->renewal;
  const RemoteQp remote{.address = peer.address,
                        .udp_port = peer.udp_port,
                        .qpn = frame.qp.qpn,
                        .first_psn = frame.qp.first_psn,
                        .path_mtu = peer.path_mtu,
                        .max_ip_id = peer.max_ip_id,
                        .ece = frame.ece};
  try {
    if (!backend_->connect_qp(renewal.qp.qpn, remote, renewal.port)) {
      throw DeviceError("UDP source port " + std::to_string(renewal.port) + " cannot be had any more");
    }
  } catch (const DeviceError& error) {
    fail_peer(peer, Failure::kDevice, error.what());
    return;
  }
  renewal.connected = true;
  if (!asked) {
    send_frame(peer, handshake::NewQp{.lane = frame.lane, .qp = renewal.qp, .ece = backend_->ece(renewal.qp.qpn)});
  }
  send_frame(peer, handshake::QpReady{frame.lane});
}

/// Both ends are connected: the lane posts on its fresh QP from now on.
void Device::on_qp_ready(Peer& peer, const handshake::QpReady& frame) {
  Lane* lane = frame.lane < peer.lanes.size() ? &peer.lanes[frame.lane] : nullptr;
  if (lane == nullptr || !lane->renewal || !lane->renewal->connected || lane->renewal->taken) {
    fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  Renewal& renewal = *lane->renewal;
  std::swap(lane->qp, renewal.qp);
  renewal.taken = true;
  renewal.unfinished = lane->unfinished;
  lane->timeouts_seen = 0;
  lane->rested = backend_->estimate(lane->qp.qpn);
  if (renewal.port != std::exchange(lane->port, renewal.port)) ++lane->moves;
  next_housekeeping_ = 0;
}

void Device::on_qp_drained(Peer& peer, const handshake::QpDrained& frame) {
  Lane* lane = frame.lane < peer.lanes.size() ? &peer.lanes[frame.lane] : nullptr;
  if (lane == nullptr || !lane->renewal || !lane->renewal->taken || lane->renewal->peer_drained) {
    fail_peer(peer, Failure::kTransport, kOutOfSequence);
    return;
  }
  lane->renewal->peer_drained = true;
  next_housekeeping_ = 0;
}

/// Comes after a round's completions: those of the old QP have been seen, also what it has received.
void Device::advance_renewal(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  Renewal& renewal = *lane.renewal;
  if (renewal.taken && renewal.unfinished == 0 && !renewal.drained) {
    renewal.drained = true;
    send_frame(peer, handshake::QpDrained{static_cast<std::uint16_t>(index)});
  }
  if (!renewal.drained || !renewal.peer_drained) return;
  if (!lane.former) lane.former = std::make_unique<QpCounters>();
  *lane.former += backend_->statistics(renewal.qp.qpn).counters;
  drop_qp(renewal.qp.qpn);
  const std::optional<handshake::NewQp> next = renewal.next;
  lane.renewal.reset();
  if (lane.moving_to) move_lane(peer, index);
  if (next) on_new_qp(peer, *next);
}

}  // namespace paralet
