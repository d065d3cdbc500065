// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/clock.hpp"
#include "engine/advertisements.hpp"
#include "engine/closes.hpp"
#include "engine/connections.hpp"
#include "engine/context.hpp"
#include "engine/members.hpp"
#include "engine/peer.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"
#include "engine/sending_contexts.hpp"
#include "engine/shard.hpp"

namespace paralet {

/// Ends peers: those that failed, and those that no connection uses any more.
class PeerEnds {
 public:
  PeerEnds(Context& context, Shard& shard, Peers& peers, Advertisements& advertisements, SendingContexts& contexts,
           Members& members, Closes& closes, Connections& connections)
      : context_(context),
        shard_(shard),
        peers_(peers),
        advertisements_(advertisements),
        contexts_(&contexts),
        members_(members),
        closes_(closes),
        connections_(connections) {}

  /// PeerEvents::fail_peer.
  void fail(Peer& peer, Failure failure, const std::string& error) PARALET_REQUIRES(progress_lock);
  /// For a peer whose TCP channels failed. They run over the same port: if that has failed, the failure is reported as
  /// the port's.
  void fail_unreachable(Peer& peer, Failure failure, const std::string& why) PARALET_REQUIRES(progress_lock);
  void fail_all(Failure failure, const std::string& error) PARALET_REQUIRES(progress_lock);
  /// Periodic: ends idle peers, and forgets dead ones.
  void reap(Nanos now) PARALET_REQUIRES(progress_lock);

 private:
  Context& context_;
  Shard& shard_;
  Peers& peers_;
  Advertisements& advertisements_;
  SendingContexts* const contexts_ PARALET_PT_GUARDED_BY(progress_lock);
  Members& members_;
  Closes& closes_;
  Connections& connections_;
};

}  // namespace paralet
