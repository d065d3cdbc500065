// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "engine/renewal.hpp"

namespace paralet {

/// A lane towards one peer. The fields that LaneChoice reads of every lane come first, in one cache line.
struct alignas(64) Lane {
  std::optional<std::uint16_t> moving_to;    ///< the next source port: no new flowlets until the lane has it
  std::optional<std::uint16_t> changing_to;  ///< the source port that the back end is giving the QP; no new flowlets
  unsigned outstanding = 0;                  ///< flowlets posted and not finished
  unsigned unfinished = 0;                   ///< work posted and not finished: flowlets and receive advertisements
  unsigned unfinished_seen = 0;              ///< by Observation
  std::uint16_t port = 0;
  bool shunned = false;  ///< its member of a fused device may have failed: other lanes are preferred
  bool broken = false;   ///< `qp` is broken: a renewal replaces it
  std::uint64_t outstanding_bytes = 0;
  PathEstimate last_estimate;  ///< the estimate when the last work finished, valid until more is posted

  std::unique_ptr<Renewal> renewal;  ///< behind a pointer, as few lanes have one and idle lanes should be small
  QpIdentity qp;
  std::uint64_t flowlets = 0;
  std::uint32_t moves = 0;
  unsigned breaks : 8 = 0;         ///< times in a row that the NIC ended a QP of the lane before any request succeeded
  unsigned taking_turns : 24 = 0;  ///< of `outstanding`, all but short messages (Request::takes_turns)
  std::uint64_t timeouts_seen = 0;
  std::unique_ptr<QpCounters> former;   ///< sums over the lane's former QPs
  std::uint64_t acknowledged_seen = 0;  ///< packets and flowlets, by Observation
  Nanos waiting_since = 0;              ///< LaneCounters::waiting_since, by Observation

  /// The source port after the change or renewal in progress, if any.
  [[nodiscard]] std::uint16_t next_port() const {
    return renewal && !renewal->switched() ? renewal->port : changing_to.value_or(port);
  }
  /// Whether large flowlets should wait until the lane has another source port.
  [[nodiscard]] bool leaving() const { return moving_to || changing_to || shunned; }
};
static_assert(sizeof(Lane) == 128);  // two cache lines: a process may have tens of thousands of lanes

}  // namespace paralet
