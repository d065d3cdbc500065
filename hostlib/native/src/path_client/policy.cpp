// SPDX-License-Identifier: Apache-2.0
#include "path_client/policy.hpp"

#include <algorithm>

#include "base/random.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

using path_client::Assignments;
using path_client::PeerPaths;
using path_client::Reason;

constexpr unsigned kSlowFlowlets = 3;  // slow flowlets in a row that make a path bad: a single one may meet a burst
constexpr std::uint64_t kDead = 2;     // timeouts that make a path dead, without a finished flowlet between them
constexpr std::uint64_t kLossSample = 128;  // packets over which loss is measured
// How long a lane stays away from a bad path. It returns because the judgement may have been wrong, and because a lane
// on a random path disturbs the planned traffic of others. Each attempt on a dead path costs a few timeouts.
constexpr Nanos kFirstAway = 200 * kMillisecond;
constexpr Nanos kLongestAway = 10 * kSecond;
constexpr Nanos kBurst = 4 * kMillisecond;      // bucket of a rate limit, as time at that rate: covers late wake-ups
constexpr double kLeastBurst = 32 * 1024;       // bytes: at 10 Mbit/s that time is one packet, and waits take longer
constexpr std::size_t kEthernetBytes = 14 + 4;  // header and FCS
constexpr std::size_t kPacketBytes = wire::kIpUdpBytes + wire::kBthBytes + wire::kIcrcBytes + kEthernetBytes;

path_client::Hello hello(const path_client::Options& options, PeerName device, bool over_tcp, unsigned lanes) {
  return {.token = options.token,
          .device = device,
          .instance = (static_cast<std::uint64_t>(random_u32()) << 32) | random_u32(),
          .lanes = lanes,
          .tcp = over_tcp};
}

const path_client::Options& checked(const path_client::Options& options) {
  path_client::check(options);
  return options;
}

}  // namespace

ControllerPolicy::ControllerPolicy(const path_client::Options& options, PeerName device, bool over_tcp, unsigned lanes,
                                   std::unique_ptr<PathPolicy> fallback, std::function<void()> wake)
    : options_(checked(options)),
      lanes_(lanes),
      fallback_(std::move(fallback)),
      elephants_(options.elephant_bytes, [this](const path_client::Event& event) { return mailbox_.post(event); }),
      assignments_(std::make_shared<const Assignments>()),
      client_(options_, hello(options, device, over_tcp, lanes), mailbox_, std::move(wake)) {}

// -- ports --------------------------------------------------------------------------------------------------------

const PeerPaths* ControllerPolicy::paths(PeerName peer) const {
  const auto found = assignments_->peers.find(peer);
  return found != assignments_->peers.end() && !found->second.ports.empty() ? &found->second : nullptr;
}

ControllerPolicy::LaneState& ControllerPolicy::lane_state(PeerName peer, unsigned lane) {
  std::vector<LaneState>& lanes = peers_[peer].lanes;
  if (lanes.size() <= lane) lanes.resize(lane + 1);
  return lanes[lane];
}

bool ControllerPolicy::has_left(PeerName peer, unsigned lane, std::uint64_t serial) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || lane >= found->second.lanes.size()) return false;
  const LaneState& state = found->second.lanes[lane];
  return state.away && state.left_serial == serial;
}

std::uint16_t ControllerPolicy::port(PeerName peer, unsigned lane) {
  const PeerPaths* assigned = paths(peer);
  if (assigned == nullptr || has_left(peer, lane, assigned->serial)) return fallback_->port(peer, lane % lanes_);
  return assigned->ports[lane % lanes_ % assigned->ports.size()];
}

std::optional<std::uint16_t> ControllerPolicy::alternative(PeerName peer, unsigned lane) {
  return fallback_->alternative(peer, lane % lanes_);
}

bool ControllerPolicy::takes_other(PeerName peer, unsigned lane, std::uint16_t port) const {
  const PeerPaths* assigned = paths(peer);
  return assigned == nullptr || assigned->ports[lane % lanes_ % assigned->ports.size()] != port;
}

/// Why the path of a lane is bad, and the measured value.
std::optional<std::pair<Reason, double>> ControllerPolicy::fault(const LaneView& view, LaneState& state) const {
  const path_client::Thresholds& limits = options_.thresholds;
  // A single timeout may be spurious. On a dead path, no flowlet finishes before the next timeout.
  state.timeouts = view.timeouts > 0 ? state.timeouts + view.timeouts : 0;
  if (state.timeouts >= kDead) return std::pair(Reason::kLoss, 1.0);
  const std::uint64_t packets = view.packets - std::min(view.packets, state.packets);
  if (packets >= kLossSample) {
    const std::uint64_t again = view.retransmits - std::min(view.retransmits, state.retransmits);
    const double loss = static_cast<double>(again) / static_cast<double>(packets);
    state.packets = view.packets;
    state.retransmits = view.retransmits;
    if (loss > limits.loss) return std::pair(Reason::kLoss, loss);
  }
  const bool slow = view.peer_rtt > 0 && view.smoothed_rtt > limits.rtt_floor.value_or(0) &&
                    static_cast<double>(view.smoothed_rtt) > limits.rtt_ratio * static_cast<double>(view.peer_rtt);
  state.bad_flowlets = slow ? state.bad_flowlets + 1 : 0;
  if (state.bad_flowlets < kSlowFlowlets) return std::nullopt;
  return std::pair(Reason::kRtt, to_seconds(view.smoothed_rtt));
}

std::optional<std::uint16_t> ControllerPolicy::after_flowlet(const LaneView& view, Nanos now) {
  const PeerPaths* assigned = paths(view.peer);
  if (assigned == nullptr) return std::nullopt;
  const std::uint16_t port = assigned->ports[view.lane % lanes_ % assigned->ports.size()];
  LaneState& state = lane_state(view.peer, view.lane);
  const bool left = state.left_serial == assigned->serial;
  if (left && state.away) {
    if (now < state.back_at) return std::nullopt;
    state = {.left_serial = assigned->serial,
             .away_for = state.away_for,
             .packets = view.packets,
             .retransmits = view.retransmits};
    return port;
  }
  if (view.port != port) return std::nullopt;
  const auto found = fault(view, state);
  if (!found) return std::nullopt;
  const Nanos away_for = left ? std::min(2 * state.away_for, kLongestAway) : kFirstAway;
  state = {.left_serial = assigned->serial,
           .away = true,
           .away_for = away_for,
           .back_at = now + away_for,
           .packets = view.packets,
           .retransmits = view.retransmits};
  ++reverted_;
  if (const std::uint64_t id = elephants_.open(view.peer); id != 0) {
    static_cast<void>(mailbox_.post(path_client::Report{
        .id = id, .lane = view.lane, .port = view.port, .reason = found->first, .value = found->second}));
  }
  return alternative(view.peer, view.lane);
}

// -- assignments ----------------------------------------------------------------------------------------------------

bool ControllerPolicy::take() {
  const auto fresh = mailbox_.take_update();
  if (!fresh) return false;
  all_changed_ = fresh->connection != assignments_->connection;
  changed_after_ = applied_serial_;
  assignments_ = fresh;
  if (all_changed_) {  // all earlier assignments are void
    for (auto& [peer, state] : peers_) {
      end_wait(peer, state);
      limit(state, 0);
    }
  }
  for (const auto& [peer, given] : assignments_->peers) {
    if (given.rate_serial <= changed_after_) continue;
    applied_serial_ = std::max(applied_serial_, given.rate_serial);
    const auto known = peers_.find(peer);
    if (known == peers_.end() && given.rate_bps == 0) continue;
    PeerState& state = peers_[peer];
    end_wait(peer, state);
    limit(state, given.rate_bps);
  }
  return true;
}

bool ControllerPolicy::changed(PeerName peer) const {
  if (all_changed_) return true;
  const auto found = assignments_->peers.find(peer);
  return found != assignments_->peers.end() && found->second.serial > changed_after_;
}

bool ControllerPolicy::cut(PeerName peer) const {
  const auto found = assignments_->peers.find(peer);
  return found != assignments_->peers.end() && found->second.cut_serial > changed_after_;
}

// -- sending --------------------------------------------------------------------------------------------------------

void ControllerPolicy::limit(PeerState& state, double rate_bps) {
  if (state.rate_bps == rate_bps) return;
  state.rate_bps = rate_bps;
  state.pacer.reset();
  if (rate_bps > 0) state.pacer.emplace(rate_bps / 8, std::max(kLeastBurst, rate_bps / 8 * to_seconds(kBurst)));
}

void ControllerPolicy::started(PeerName peer, std::uint64_t bytes, Nanos now) {
  if (!elephants_.started(peer, bytes, now)) return;
  if (options_.assign_wait > 0 && assignments_->connected) {
    peers_[peer].hold_until = now + options_.assign_wait;
  } else if (paths(peer) == nullptr) {
    ++ecmp_starts_;
  }
}

void ControllerPolicy::end_wait(PeerName peer, PeerState& state) {
  if (std::exchange(state.hold_until, 0) != 0 && paths(peer) == nullptr) ++ecmp_starts_;
}

bool ControllerPolicy::may_send(PeerName peer, Nanos now) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return true;
  PeerState& state = found->second;
  if (now < state.hold_until) {
    blocked_until_ = std::min(blocked_until_, state.hold_until);
    return false;
  }
  end_wait(peer, state);
  if (!state.pacer || state.pacer->ready(now)) return true;
  blocked_until_ = std::min(blocked_until_, state.pacer->ready_at());
  return false;
}

void ControllerPolicy::sent(PeerName peer, std::uint64_t bytes, std::uint32_t path_mtu) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.pacer) return;
  const std::uint64_t packets = std::max<std::uint64_t>(1, (bytes + path_mtu - 1) / path_mtu);
  found->second.pacer->spend(bytes + packets * kPacketBytes);
}

// -- periodic work --------------------------------------------------------------------------------------------------

void ControllerPolicy::tick(Nanos now) {
  elephants_.tick(now);
  // A rate limit ends with its elephant. A limit that was assigned without an elephant stays.
  for (auto& [peer, state] : peers_) {
    if (state.rate_bps == 0) continue;
    const auto given = assignments_->peers.find(peer);
    const std::uint64_t answered = given != assignments_->peers.end() ? given->second.answers : 0;
    if (answered != 0 && answered != elephants_.open(peer)) limit(state, 0);
  }
}

std::optional<PathClientCounters> ControllerPolicy::counters() const {
  const path_client::ClientCounters client = client_.counters();
  return PathClientCounters{.connected = client.connected,
                            .since = client.since,
                            .connections = client.connections,
                            .announced = elephants_.announced(),
                            .assigned = client.assigned,
                            .ecmp_starts = ecmp_starts_,
                            .released = elephants_.released(),
                            .announces = client.announces,
                            .assigns = client.assigns,
                            .pushes = client.pushes,
                            .stale = client.stale,
                            .invalid = client.invalid,
                            .dropped = elephants_.dropped(),
                            .reverted = reverted_,
                            .unbound = unbound_,
                            .probes_sent = client.probes_sent,
                            .probes_answered = client.probes_answered,
                            .probes_limited = client.probes_limited,
                            .probes_mismatched = client.probes_mismatched,
                            .ports_moved = client.ports_moved,
                            .elephants = elephants_.open()};
}

}  // namespace paralet
