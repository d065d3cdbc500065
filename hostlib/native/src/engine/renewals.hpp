// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/work.hpp"
#include "engine/context.hpp"
#include "engine/control_frames.hpp"
#include "engine/handshake.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/progress_lock.hpp"
#include "engine/qp_set_up.hpp"
#include "engine/renewal.hpp"
#include "engine/shard.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

/// Replaces QPs of lanes by fresh ones (Renewal; docs/protocol.md, section 5): where a QP's source port is fixed, where
/// a QP breaks, and where a lane goes to another member of a fused device.
class Renewals {
 public:
  Renewals(Context& context, Shard& shard, ControlFrames& frames, QpSetUp& set_up, PathPolicy& policy,
           PeerEvents& events)
      : context_(context), shard_(shard), frames_(frames), set_up_(set_up), policy_(&policy), events_(events) {}

  /// Asks the peer for a renewal of the lane, on this member.
  void renew(Peer& peer, unsigned index, std::uint16_t port, unsigned member) PARALET_REQUIRES(progress_lock);
  /// Goes on with the lane's renewal. Runs after a round's completions, so that all completions of the old QP have been
  /// handled, receives included.
  void advance(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock);

  void on(Peer& peer, const handshake::NewQp& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::QpReady& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::QpDrained& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::QpStopped& frame) PARALET_REQUIRES(progress_lock);
  void on_broken(Peer& peer, unsigned index, const Completion& completion) PARALET_REQUIRES(progress_lock);
  /// The route takes no packets of a QP's path MTU any more (Completion::Kind::kPathMtu).
  void on_path_mtu(Peer& peer, unsigned index, const Completion& completion) PARALET_REQUIRES(progress_lock);
  void on_stopped(Peer& peer, unsigned index, const Completion& completion) PARALET_REQUIRES(progress_lock);

 private:
  void answer_new_qp(Peer& peer, const handshake::NewQp& frame, bool asked) PARALET_REQUIRES(progress_lock);
  void end_refused(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock);
  Renewal* renewal_after(Peer& peer, unsigned index, Renewal::Event event) PARALET_REQUIRES(progress_lock);
  [[nodiscard]] handshake::NewQp fresh_qp(const Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock);
  void leave(Peer& peer, unsigned index, std::uint32_t qpn, unsigned member) PARALET_REQUIRES(progress_lock);
  void replace_qp(Peer& peer, unsigned index, unsigned member) PARALET_REQUIRES(progress_lock);
  void replace_broken_qp(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock);
  [[nodiscard]] static unsigned other_member(const Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock);
  void stop_old_qp(Lane& lane) PARALET_REQUIRES(progress_lock);
  void resolve(Lane& lane) PARALET_REQUIRES(progress_lock);

  Context& context_;
  Shard& shard_;
  ControlFrames& frames_;
  QpSetUp& set_up_;
  PathPolicy* const policy_ PARALET_PT_GUARDED_BY(progress_lock);
  PeerEvents& events_;
};

}  // namespace paralet
