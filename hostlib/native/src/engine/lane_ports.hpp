// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/work.hpp"
#include "base/clock.hpp"
#include "engine/context.hpp"
#include "engine/peer.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/renewals.hpp"
#include "engine/shard.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

/// Gives lanes the source ports that the path policy chooses. Where the back end can change the port of a QP, it does.
/// A NIC that derives the port from the flow label fixes it when the QP connects: there the lane gets a fresh QP
/// (Renewals).
class LanePorts {
 public:
  LanePorts(const Context& context, Shard& shard, Peers& peers, PathPolicy& policy, Renewals& renewals)
      : lanes_(context.options.policy.lanes),
        shard_(shard),
        peers_(peers),
        policy_(&policy),
        renewals_(renewals),
        watches_lanes_(policy.watches_lanes()),
        follows_traffic_(policy.follows_traffic()) {}

  /// Asks the path policy whether the lane should change its port. `unheard`: acknowledgements of this lane that the
  /// peer seems not to have received; they count as timeouts.
  void consult_policy(Peer& peer, unsigned index, unsigned unheard = 0) PARALET_REQUIRES(progress_lock);
  /// Moves the lane to the port that it waits for, if that keeps flowlets in order.
  void move_if_possible(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock) {
    if (peer.lanes[index].moving_to && shard_.may_move(peer.lanes[index])) move(peer, index);
  }
  /// Moves the lane to the port that it waits for.
  void move(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock);
  /// The back end has changed the port of the lane's QP, or could not.
  void on_port_changed(Peer& peer, unsigned index, const Completion& completion) PARALET_REQUIRES(progress_lock);
  /// Periodic, for a lane with work posted: a lane with a new port does not wait for the flowlets of a dead path.
  void leave_if_dead(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock) {
    const Lane& lane = peer.lanes[index];
    if (lane.moving_to && policy_->resends_at_once() && shard_.silent(lane)) leave_dead_path(peer, index);
  }
  /// Moves lanes to the ports that the policy has news of: idle lanes now, others between flowlets. A lane on a dead
  /// path moves at once and retransmits.
  void take_news() PARALET_REQUIRES(progress_lock);
  /// Periodic: reports the state of each peer's lanes to the policy.
  void report_traffic(Nanos now) PARALET_REQUIRES(progress_lock);

 private:
  /// Moves a lane off a dead path, to its new port if it has one. Packets in flight were lost with the path, so order
  /// does not matter. Where the policy says so they are retransmitted at once: the backed-off timeout belongs to the
  /// old path.
  void leave_dead_path(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock);

  const unsigned lanes_;  ///< m of this device
  Shard& shard_;
  Peers& peers_;
  PathPolicy* const policy_ PARALET_PT_GUARDED_BY(progress_lock);
  Renewals& renewals_;
  const bool watches_lanes_;
  const bool follows_traffic_;
};

}  // namespace paralet
