// SPDX-License-Identifier: Apache-2.0
// Set-up of QPs. A NIC takes long to create a QP (memory, firmware commands) and to connect it (ibv_modify_qp may
// resolve the peer's link address), so where the back end allows it (Backend::sets_up_concurrently) this happens
// without the progress lock, on a thread of its own. Messages on other QPs go on meanwhile. Frames that a peer sends
// during the set-up wait for its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/worker.hpp"
#include "engine/context.hpp"
#include "engine/handshake.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/progress_lock.hpp"
#include "engine/shard.hpp"
#include "engine/sockets.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

class QpSetUp {
 public:
  QpSetUp(Context& context, ProgressLock& lock, Shard& shard, Sockets& sockets, PathPolicy& policy, PeerEvents& events)
      : context_(context), lock_(lock), shard_(shard), sockets_(sockets), policy_(&policy), events_(events) {}

  // -- all lanes of a peer ----------------------------------------------------------------------------------------
  /// Creates the QPs of a new peer's lanes, and calls `next`. The peer fails when the NIC has no more QPs.
  void create_qps(Peer& peer, std::function<void()> next) PARALET_REQUIRES(progress_lock);
  /// Connects the peer's QPs lane by lane, and calls `next`. The peer fails when a lane's source port cannot be had.
  void connect_qps(Peer& peer, const handshake::Endpoint& remote, std::function<void()> next)
      PARALET_REQUIRES(progress_lock);

  // -- the fresh QP of a lane -------------------------------------------------------------------------------------
  /// Begins a renewal of the lane: creates its fresh QP on the member, and calls `next` with whether the NIC had one.
  /// If it had none, the renewal is over.
  void create_fresh_qp(Peer& peer, unsigned index, std::uint16_t port, unsigned member, std::function<void(bool)> next)
      PARALET_REQUIRES(progress_lock);
  /// Connects the fresh QP of the lane's renewal to the peer's, and calls `next`: with true once it is connected, with
  /// false when that is impossible and a fused peer has another path. The peer fails when it has none.
  void connect_fresh_qp(Peer& peer, unsigned index, const RemoteQp& remote, std::function<void(bool)> next)
      PARALET_REQUIRES(progress_lock);
  /// Keeps a frame about a lane whose fresh QP is being set up. False when there is no set-up.
  bool hold(Peer& peer, unsigned index, const handshake::Frame& frame) PARALET_REQUIRES(progress_lock);

  // -- the end of the device --------------------------------------------------------------------------------------
  /// The caller destroys the thread without the lock, which the end of a job takes.
  std::unique_ptr<Worker> take_thread() PARALET_REQUIRES(progress_lock) { return std::move(thread_); }

 private:
  void set_up(std::function<void(Backend&)> work, std::function<bool()> done) PARALET_REQUIRES(progress_lock);
  /// The next source port to try for a lane whose own is taken: each port of the range once, first those that no
  /// earlier lane has, then one that it shares with an earlier lane. nullopt when there is none.
  std::optional<std::uint16_t> other_port(const Peer& peer, std::size_t index, unsigned& attempts,
                                          std::optional<std::uint16_t>& held, bool& exhausted)
      PARALET_REQUIRES(progress_lock);
  void begin_setup(Peer& peer) PARALET_REQUIRES(progress_lock);
  bool end_setup(Peer& peer) PARALET_REQUIRES(progress_lock);
  void replay(Peer& peer, const std::vector<handshake::Frame>& frames) PARALET_REQUIRES(progress_lock);
  void replay_held(Peer& peer) PARALET_REQUIRES(progress_lock);

  Context& context_;
  ProgressLock& lock_;
  Shard& shard_;
  Sockets& sockets_;
  PathPolicy* const policy_ PARALET_PT_GUARDED_BY(progress_lock);
  PeerEvents& events_;
  /// Creates and connects QPs; nullptr until it is needed.
  std::unique_ptr<Worker> thread_ PARALET_GUARDED_BY(progress_lock);
};

}  // namespace paralet
