// SPDX-License-Identifier: Apache-2.0
#include "engine/lane_ports.hpp"

#include <utility>

#include "engine/lane_times.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr unsigned kMoveAttempts = 64;  // ports tried at once: each costs a moment of the progress lock

}  // namespace

void LanePorts::move(Peer& peer, unsigned index) {
  Lane& lane = peer.lanes[index];
  if (lane.renewal || lane.changing_to) return;  // PeerEvents::on_renewed or on_port_changed calls again
  std::uint16_t port = *std::exchange(lane.moving_to, std::nullopt);
  Backend& backend = shard_.backend();
  const bool fixed = backend.port_method() == PortMethod::kFlowLabel;
  PortChange change = backend.set_port(lane.qp.qpn, port);
  for (unsigned attempts = 0; change == PortChange::kRefused && !fixed && attempts < kMoveAttempts; ++attempts) {
    if (!policy_->takes_other(peer.name(), index, port)) break;
    const auto other = policy_->alternative(peer.name(), index % lanes_);
    if (!other) break;
    if (*other == lane.port) continue;
    port = *other;
    change = backend.set_port(lane.qp.qpn, port);
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
    renewals_.renew(peer, index, port, member_of(lane.qp.qpn));
  } else {
    policy_->port_refused();
  }
}

void LanePorts::on_port_changed(Peer& peer, unsigned index, const Completion& completion) {
  Lane& lane = peer.lanes[index];
  if (completion.qpn != lane.qp.qpn) return;  // replaced meanwhile
  lane.changing_to.reset();
  if (completion.status == Status::kSuccess) {
    lane.port = static_cast<std::uint16_t>(completion.imm);
    ++lane.moves;
  } else {
    policy_->port_refused();
  }
  move_if_possible(peer, index);
}

void LanePorts::leave_dead_path(Peer& peer, unsigned index) {
  const Lane& lane = peer.lanes[index];
  if (lane.moving_to) move(peer, index);
  if (policy_->resends_at_once()) shard_.backend().path_changed(lane.qp.qpn, now());
}

void LanePorts::consult_policy(Peer& peer, unsigned index, unsigned unheard) {
  if (!watches_lanes_) return;
  Lane& lane = peer.lanes[index];
  const QpStatistics statistics = shard_.backend().recent_statistics(lane.qp.qpn);
  const std::uint64_t timeouts = statistics.counters.timeouts - lane.timeouts_seen + unheard;
  lane.timeouts_seen = statistics.counters.timeouts;
  if (lane.moving_to) {  // already decided; but if the path went silent meanwhile, do not wait for its flowlets
    if (timeouts > 0) leave_dead_path(peer, index);
    return;
  }
  if (lane.renewal || lane.changing_to) return;  // a move is in progress; completions may belong to the old path
  LaneTimes times(statistics);
  for (const Lane& other : peer.lanes) times.compare(shard_.backend().recent_statistics(other.qp.qpn));
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
  } else if (shard_.may_move(lane)) {
    move(peer, index);
  }
}

void LanePorts::take_news() {
  if (!policy_->take()) return;
  for (const auto& peer : peers_.all) {
    if (!peer->ready() || !policy_->changed(peer->name())) continue;
    const bool cut = policy_->cut(peer->name());
    for (unsigned i = 0; i < peer->lanes.size(); ++i) {
      Lane& lane = peer->lanes[i];
      const std::uint16_t port = policy_->port(peer->name(), i);
      lane.moving_to.reset();
      const bool elsewhere = port != lane.next_port();
      const bool lost = lane.outstanding > 0 && (cut || (elsewhere && shard_.silent(lane)));
      if (elsewhere) lane.moving_to = port;
      if (lost) {
        leave_dead_path(*peer, i);
      } else if (lane.moving_to && shard_.may_move(lane)) {
        move(*peer, i);
      }
    }
  }
}

void LanePorts::report_traffic(Nanos t) {
  if (!follows_traffic_) return;
  for (const auto& peer : peers_.all) {
    if (!peer->ready()) continue;
    PeerView view{.busy = !peer->sending.empty()};
    Nanos sum = 0;
    Nanos count = 0;
    for (const Lane& lane : peer->lanes) {
      const QpStatistics statistics = shard_.backend().statistics(lane.qp.qpn);
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

}  // namespace paralet
