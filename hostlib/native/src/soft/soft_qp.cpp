// SPDX-License-Identifier: Apache-2.0
#include "soft/soft_qp.hpp"

namespace paralet {
namespace {

constexpr Nanos kProbeLossy = 200 * kMicrosecond;  // with selective repeat: the answer lists all losses
constexpr Nanos kProbeUnknown = 5 * kMillisecond;  // before any round trip to the peer is known
constexpr Nanos kProbeRoundTrips = 2;              // recent round trips to the peer, on any lane, before a probe
constexpr Nanos kFresh = 500 * kMillisecond;       // a round trip older than this counts as unknown

}  // namespace

Nanos probe_after(const SoftQp& qp) {
  const Nanos recent = kProbeRoundTrips * qp.path->recent_rtt;
  if (!qp.machine->options().selective_repeat()) return std::max(kProbeAfter, recent);
  const bool measured = qp.machine->requester().round_trip().smoothed() > 0;
  if (!measured && recent == 0) return kProbeUnknown;
  if (!qp.path->lossy) return std::max(kProbeAfter, recent);
  return measured ? kProbeLossy : std::max(kProbeLossy, recent);
}

PathEstimate estimate_of(const SoftQp& qp, Nanos now) {
  if (!qp.machine) return {};
  const Requester& requester = qp.machine->requester();
  const RoundTrip& round_trip = requester.round_trip();
  // A path that was slow a while ago may be fast now: an idle lane without recent samples is tried again. The round
  // trip of a lane that waits for an acknowledgement is at least the time it has waited.
  const bool unknown = requester.all_acknowledged() && now - round_trip.sampled_at() > kFresh;
  return {.smoothed_rtt = unknown ? 0 : std::max(round_trip.smoothed(), requester.silence(now)),
          .fresh_until = round_trip.sampled_at() + kFresh,
          .window = static_cast<float>(requester.control().window()),
          .app_limited = requester.app_limited(),
          .ready_at = requester.ready_at()};
}

QpStatistics statistics_of(const SoftQp& qp) {
  QpStatistics out{.port = qp.port};
  if (qp.machine) {
    const Requester& requester = qp.machine->requester();
    const RoundTrip& round_trip = requester.round_trip();
    out.counters = qp.machine->counters();
    out.smoothed_rtt = round_trip.smoothed();
    out.min_rtt = round_trip.smallest() == kNever ? 0 : round_trip.smallest();
    out.window = requester.control().window();
    out.all_acknowledged = requester.all_acknowledged();
    out.acknowledged_packets = requester.acknowledged_packets();
  }
  return out;
}

}  // namespace paralet
