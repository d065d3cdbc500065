// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "engine/control_frames.hpp"
#include "engine/handshake.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/receives.hpp"
#include "engine/request.hpp"
#include "engine/sends.hpp"

namespace paralet {

/// Closes connections. The closing side starts no more flowlets but those of copies, waits for those it has posted, and
/// sends Close; from then on it is quiet. The other side does the same and answers Closed. Receives are withdrawn only
/// when the peer is quiet, so that no flowlet arrives for memory that is no longer registered.
class Closes {
 public:
  Closes(Peers& peers, ControlFrames& frames, Sends& sends, Receives& receives, PeerEvents& events)
      : peers_(peers), frames_(frames), sends_(sends), receives_(receives), events_(events) {}

  void begin(const std::shared_ptr<Connection>& connection) PARALET_REQUIRES(progress_lock);
  /// Sends Closed or Close once no flowlet is in progress; finishes when both sides are quiet.
  void advance(Connection& connection) PARALET_REQUIRES(progress_lock);
  /// Ends a connection without the peer: its QPs are destroyed, or it was never open.
  void abandon(Connection& connection, Failure failure, const std::string& error) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Close& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Closed& frame) PARALET_REQUIRES(progress_lock);

 private:
  void on_close(Connection& connection) PARALET_REQUIRES(progress_lock);
  void finalize(Connection& connection) PARALET_REQUIRES(progress_lock);

  Peers& peers_;
  ControlFrames& frames_;
  Sends& sends_;
  Receives& receives_;
  PeerEvents& events_;
};

}  // namespace paralet
