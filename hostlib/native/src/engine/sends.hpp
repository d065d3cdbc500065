// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/work.hpp"
#include "base/clock.hpp"
#include "engine/advertisements.hpp"
#include "engine/context.hpp"
#include "engine/control_frames.hpp"
#include "engine/lane_ports.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"
#include "engine/results.hpp"
#include "engine/send_copies.hpp"
#include "engine/send_payloads.hpp"
#include "engine/sending_contexts.hpp"
#include "engine/shard.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

/// Messages that this side sends: matched with receives of the peer, cut into flowlets, posted on lanes.
class Sends {
 public:
  Sends(Context& context, Shard& shard, Peers& peers, ControlFrames& frames, PathPolicy& policy, Results& results,
        Advertisements& advertisements, LanePorts& ports, SendCopies& copies, SendingContexts& contexts,
        PeerEvents& events)
      : context_(context),
        shard_(shard),
        peers_(peers),
        frames_(frames),
        policy_(&policy),
        results_(results),
        advertisements_(advertisements),
        ports_(ports),
        copies_(copies),
        contexts_(&contexts),
        events_(events),
        follows_traffic_(policy.follows_traffic()) {}

  /// Starts a send on an open connection.
  void start(std::shared_ptr<Request> request) PARALET_REQUIRES(progress_lock);
  void on_advertisement(Peer& peer, const handshake::Advertisement& advertisement) PARALET_REQUIRES(progress_lock);
  void on_credit(Peer& peer, const handshake::EagerCredit& credit) PARALET_REQUIRES(progress_lock);
  /// Lanes pull waiting flowlets: the oldest message of a peer first, round robin over peers. True when any was posted.
  bool pump(Nanos now) PARALET_REQUIRES(progress_lock);
  /// When a lane becomes ready for a flowlet that the last `pump` left waiting, although nothing arrives.
  [[nodiscard]] Nanos deadline() const PARALET_REQUIRES(progress_lock) { return lane_ready_at_; }
  /// Work on a lane has ended: a flowlet, a batch of advertisements, or a ping.
  void on_sent(Peer& peer, unsigned index, const Completion& completion) PARALET_REQUIRES(progress_lock);
  /// Fails the connection's sends without a receive, and posts nothing more of the others. Copies, whose senders were
  /// told that they are done, are still posted if `flush`.
  void stop(Connection& connection, const std::string& why, bool flush = false) PARALET_REQUIRES(progress_lock);
  /// Fails a send of the connection's `in_flight` of which nothing is posted.
  void fail_in_flight(Request& send, Failure failure, const std::string& why) PARALET_REQUIRES(progress_lock);

 private:
  void advance(Connection& connection) PARALET_REQUIRES(progress_lock);
  [[nodiscard]] bool first_is_short(const Connection& connection) const PARALET_REQUIRES(progress_lock);
  bool send_first_eagerly(Connection& connection) PARALET_REQUIRES(progress_lock);
  bool match(Connection& connection) PARALET_REQUIRES(progress_lock);
  void start_message(std::shared_ptr<Request> request, const handshake::Advertisement& advertisement)
      PARALET_REQUIRES(progress_lock);
  void post_flowlet(Lane& lane, Request& request, std::uint32_t path_mtu) PARALET_REQUIRES(progress_lock);
  [[nodiscard]] std::uint64_t flowlet_size(const Peer& peer, std::uint64_t message_bytes) const
      PARALET_REQUIRES(progress_lock);

  Context& context_;
  Shard& shard_;
  Peers& peers_;
  ControlFrames& frames_;
  PathPolicy* const policy_ PARALET_PT_GUARDED_BY(progress_lock);
  Results& results_;
  Advertisements& advertisements_;
  LanePorts& ports_;
  SendCopies& copies_;
  SendingContexts* const contexts_ PARALET_PT_GUARDED_BY(progress_lock);
  PeerEvents& events_;
  const bool follows_traffic_;
  std::size_t pumped_ PARALET_GUARDED_BY(progress_lock) = 0;  ///< index of the next peer in pump's round robin
  Nanos lane_ready_at_ PARALET_GUARDED_BY(progress_lock) = kNever;
};

}  // namespace paralet
