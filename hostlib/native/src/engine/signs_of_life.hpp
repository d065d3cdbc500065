// SPDX-License-Identifier: Apache-2.0
// Whether the engine of a peer runs. The NIC of a process that is stopped goes on acknowledging, so over a NIC only
// what the engine itself says tells: SENDs, WRITEs with immediate data, and frames. A device that waits for such a peer
// asks it for a frame when nothing has come for a while. docs/protocol.md: "Quiet peers".
#pragma once

#include <cstdint>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "engine/handshake.hpp"

namespace paralet {

/// A device sends a sign of life when it is asked for one. The offer is a bit of Ece::comp_mask in hello and welcome,
/// which no NIC has: vendor and options are the NIC's.
inline constexpr std::uint32_t kSignsOfLife = 0x80000000;

/// What one peer and this device have agreed on, and what this device waits for.
struct Signs {
  /// A peer is asked after this part of the retry time without a sign, and again after as much; it is given up when it
  /// has left as many asks unanswered. So it is not blamed for a time in which this process was stopped itself.
  static constexpr unsigned kAsks = 4;
  enum class Due : std::uint8_t { kNothing, kAsk, kGiveUp };

  Nanos since = 0;              ///< its last sign, or the last ask
  std::uint8_t unanswered = 0;  ///< asks since its last sign, at most kAsks
  bool agreed = false;
  bool acknowledges_alone = false;  ///< its NIC acknowledges, whatever its engine does
  bool owes_answer = false;         ///< it has asked for a sign

  /// The endpoint of the other side, in a hello or a welcome. Takes the offer out: it is not for the NIC.
  void agree(bool offered, Ece& remote);
  /// The peer's engine has said something.
  void heard(Nanos now) {
    unanswered = 0;
    since = now;
  }
  /// Whether the peer is to be asked about now, if somebody waits for it.
  [[nodiscard]] bool quiet(Nanos now, Nanos retry_time) const {
    return acknowledges_alone && now - since >= retry_time / kAsks;
  }
  /// For a quiet peer: what to do next.
  Due next(Nanos now, bool awaited);
};

/// The offer of this device, in place of what a NIC might have there.
inline void offer_signs(Ece& own, bool offered) {
  own.comp_mask = (own.comp_mask & ~kSignsOfLife) | (offered ? kSignsOfLife : 0);
}

}  // namespace paralet
