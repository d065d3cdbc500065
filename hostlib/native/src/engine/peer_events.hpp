// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/work.hpp"
#include "engine/handshake.hpp"
#include "engine/peer.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"

namespace paralet {

/// What a part notices of a peer and parts above it have to act on. None is on the data path.
class PeerEvents {
 public:
  virtual ~PeerEvents() = default;
  /// The peer cannot go on: its requests fail, connections in progress are tried again. It is told why, except for
  /// kClosed. Does nothing for a dead peer.
  virtual void fail_peer(Peer& peer, Failure failure, const std::string& why) PARALET_REQUIRES(progress_lock) = 0;
  /// The same for a peer that TCP cannot reach, which may be the fault of this device's own port.
  virtual void fail_unreachable(Peer& peer, Failure failure, const std::string& why)
      PARALET_REQUIRES(progress_lock) = 0;
  /// The peer's channel over a member has closed.
  virtual void on_channel_closed(Peer& peer, unsigned member) PARALET_REQUIRES(progress_lock) = 0;
  /// A frame came, or one that was held back is due.
  virtual void on_frame(Peer& peer, const handshake::Frame& frame) PARALET_REQUIRES(progress_lock) = 0;
  /// The path between the members of a fused peer cannot be used any more.
  virtual void on_member_unusable(Peer& peer, unsigned member, const std::string& why)
      PARALET_REQUIRES(progress_lock) = 0;
  /// A renewal of the lane is over.
  virtual void on_renewed(Peer& peer, unsigned lane) PARALET_REQUIRES(progress_lock) = 0;
  /// A flowlet of a connection that is closing has finished.
  virtual void on_last_flowlets(Connection& connection) PARALET_REQUIRES(progress_lock) = 0;

  /// A lane's QP has failed for good, and the peer with it.
  void fail_lane(Peer& peer, unsigned lane, const Completion& why) PARALET_REQUIRES(progress_lock);
};

}  // namespace paralet
