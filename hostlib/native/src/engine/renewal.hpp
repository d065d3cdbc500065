// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "engine/handshake.hpp"

namespace paralet {

/// Replacement of a lane's QP by a fresh one. A lane changes its port this way where a QP's source port is fixed.
/// Posted work stays on the old QP, which is destroyed when neither side has work left on it. docs/protocol.md,
/// section 5.
struct Renewal {
  enum class State : std::uint8_t {
    kAsked,        ///< our fresh QP exists and the peer knows it; the peer's is unknown. The lane posts on the old QP
    kConnected,    ///< our fresh QP is connected to the peer's. The lane posts on the old QP
    kDraining,     ///< both ends are connected. The lane posts on the fresh QP; both sides finish work on the old one
    kDrained,      ///< we have no work left on the old QP, the peer has
    kPeerDrained,  ///< the peer has no work left on the old QP, we have
    kFinished,     ///< neither has: the next housekeeping destroys the old QP
  };
  enum class Event : std::uint8_t {
    kConnected,      ///< we connected our fresh QP
    kPeerConnected,  ///< the peer said QpReady
    kDrained,        ///< our last work on the old QP finished
    kPeerDrained,    ///< the peer said QpDrained
  };

  Nanos begun = now();
  State state = State::kAsked;
  QpIdentity qp;                         ///< the fresh QP until kDraining, then the old one
  std::uint16_t port = 0;                ///< source port of the fresh QP
  std::uint32_t path_mtu = 0;            ///< of the fresh QP, as far as our side goes
  unsigned unfinished = 0;               ///< work posted on the old QP, from kDraining on
  bool setting_up = false;               ///< the set-up thread creates or connects the fresh QP
  bool crossed = false;                  ///< the peer's request for another member has come
  bool refused = false;                  ///< we could not connect it: ends with what the peer sent before it knew
  std::vector<handshake::Frame> held;    ///< frames about the lane that came meanwhile
  std::optional<handshake::NewQp> next;  ///< the peer's next renewal: it destroyed its old QP before us
  // The old QP is on a dead path: both ends are stopped, and what did not arrive is posted on the fresh QP.
  bool stopping = false;                       ///< our end is stopped, or about to be
  std::optional<std::uint32_t> arrived_here;   ///< messages on the old QP, once our end is stopped
  std::optional<std::uint32_t> arrived_there;  ///< the same of the peer's end
  bool resolved = false;                       ///< both are known, and nothing is posted on the old QP any more

  /// The only place that changes `state`. Returns false, and changes nothing, if the event cannot happen in this state.
  bool on(Event event);
  /// Whether the lane posts on the fresh QP.
  [[nodiscard]] bool switched() const { return state >= State::kDraining; }
  /// Whether we have said that our work on the old QP is finished.
  [[nodiscard]] bool drained() const { return state == State::kDrained || state == State::kFinished; }
};

}  // namespace paralet
