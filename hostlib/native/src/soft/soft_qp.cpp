// SPDX-License-Identifier: Apache-2.0
#include "soft/soft_qp.hpp"

namespace paralet {
namespace {

constexpr Nanos kProbeLossy = 200 * kMicrosecond;  // with selective repeat: the answer lists all losses
constexpr Nanos kProbeUnknown = 5 * kMillisecond;  // before any round trip to the peer is known
constexpr Nanos kProbeRoundTrips = 2;              // recent round trips to the peer, on any lane, before a probe

}  // namespace

Nanos probe_after(const SoftQp& qp) {
  const Nanos recent = kProbeRoundTrips * qp.path->recent_rtt;
  if (!qp.machine->options().selective_repeat()) return std::max(kProbeAfter, recent);
  const bool measured = qp.machine->requester().round_trip().smoothed() > 0;
  if (!measured && recent == 0) return kProbeUnknown;
  if (!qp.path->lossy) return std::max(kProbeAfter, recent);
  return measured ? kProbeLossy : std::max(kProbeLossy, recent);
}

}  // namespace paralet
