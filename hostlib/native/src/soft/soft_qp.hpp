// SPDX-License-Identifier: Apache-2.0
// A QP of the back end `soft`: what its parts keep about it. `RcQp` is the protocol.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "soft/rc_qp.hpp"

namespace paralet {

/// What the QPs to one address share.
struct PeerPath {
  explicit PeerPath(ReassemblyMemory& whole) : reassembly{.left = kPeerReassemblyBytes, .whole = &whole} {}
  Nanos base_rtt = kNever;                     ///< the smallest
  Nanos recent_rtt = 0;                        ///< the largest recent one: an idle lane has not seen the current queue
  bool batches = true;                         ///< UDP_SEGMENT works on the way to it
  bool lossy = false;                          ///< packets have been lost on the way to it, on any lane
  std::uint32_t logged_path_mtu = UINT32_MAX;  ///< the user knows that the route has become this narrow
  ReassemblyMemory reassembly;
  void sample(Nanos rtt) {
    base_rtt = std::min(base_rtt, rtt);
    recent_rtt = std::max(rtt, recent_rtt - recent_rtt / 16);
  }
};

struct SoftQp {
  explicit SoftQp(const QpIdentity& id) : identity(id) {}
  SoftQp(const SoftQp&) = delete;
  SoftQp& operator=(const SoftQp&) = delete;
  QpIdentity identity;
  RemoteQp remote;
  std::uint16_t port = 0;
  std::uint8_t traffic_class = 0;
  int socket = -1;
  PeerPath* path = nullptr;     ///< shared by the QPs to one address
  std::optional<RcQp> machine;  ///< once connected
  int send_error = 0;           ///< errno of the last batch, 0: the kernel took it
  bool active = false;          ///< has work: listed as active
  bool idle = false;            ///< listed in SpareMemory
  bool acknowledge = false;     ///< listed as one to acknowledge
  Nanos idle_since = 0;
  Nanos acknowledge_by = 0;
  Nanos notify_from = 0;      ///< until then no packet of its own tells the peer of a mark
  Nanos acknowledged_at = 0;  ///< when the newest packets were first acknowledged
};

/// Floor of the silence before a probe. A QP without a round trip of its own follows those of the others to its peer.
Nanos probe_after(const SoftQp& qp);

/// What the choice of a lane is told about the QP's path.
PathEstimate estimate_of(const SoftQp& qp, Nanos now);
QpStatistics statistics_of(const SoftQp& qp);

/// Silence before a probe, without pacing: it means loss or a scheduling delay, and a probe costs one packet.
inline constexpr Nanos kProbeAfter = 2 * kMillisecond;

}  // namespace paralet
