// SPDX-License-Identifier: Apache-2.0
// Several NICs as one: lanes over all members, a TCP channel over each. A path between members is up while its channel
// is open. Where it falls silent while another delivers, its lanes are renewed over the other (Renewals), and its
// channel is closed. The connecting side opens it again after a while, and then the lanes return. A peer without any
// path is given up after the retry time. docs/protocol.md, section 6.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/work.hpp"
#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "engine/channel.hpp"
#include "engine/context.hpp"
#include "engine/control_frames.hpp"
#include "engine/fusion.hpp"
#include "engine/handshake.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/renewals.hpp"
#include "engine/shard.hpp"
#include "engine/sockets.hpp"

namespace paralet {

/// The members of a fused device, and the paths from them to those of fused peers.
class Members {
 public:
  Members(Context& context, Shard& shard, Peers& peers, Sockets& sockets, ControlFrames& frames, Renewals& renewals,
          PeerEvents& events)
      : context_(context),
        shard_(shard),
        peers_(peers),
        sockets_(sockets),
        frames_(frames),
        renewals_(renewals),
        events_(events) {}

  // -- set-up -----------------------------------------------------------------------------------------------------
  //
  // Over member 0, with lanes on all members. Where a NIC of either side has failed, all lanes start on one member; the
  // connecting side tries one after another. Lanes go to their members later, when these have joined.

  /// The first attempt to set up a peer.
  [[nodiscard]] Fusion::Start first_start() const PARALET_REQUIRES(progress_lock);
  /// The attempt after this one, nullopt when it was the last. `opened`: its channel is not lost.
  [[nodiscard]] std::optional<Fusion::Start> next_start(const Fusion::Start& failed, bool opened) const
      PARALET_REQUIRES(progress_lock);
  /// Why a hello does not fit this device and the start that it asks for; empty: it does.
  [[nodiscard]] std::string mismatch_with(const handshake::Endpoint& remote, const Fusion::Start& start) const
      PARALET_REQUIRES(progress_lock);
  /// This device's members 1, 2, .. as the peer shall know them.
  [[nodiscard]] std::vector<handshake::Endpoint::Member> further_members(const Peer& peer) const
      PARALET_REQUIRES(progress_lock);

  // -- channels ---------------------------------------------------------------------------------------------------
  /// A channel came that shall be a further one of a peer, `from` this address. nullptr where there is no peer with
  /// this token, which the other side learns, or where the channel may not be the peer's.
  Peer* join(std::unique_ptr<Channel>& channel, const IpAddress& from, const handshake::Join& frame)
      PARALET_REQUIRES(progress_lock);
  /// The channel that this side opened over a member is connected.
  void on_connected(Peer& peer, unsigned member) PARALET_REQUIRES(progress_lock);
  /// It could not be opened. Waits longer from attempt to attempt, except while no path is up.
  void on_not_opened(Peer& peer, unsigned member, const std::string& why) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Join& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::MemberDown& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Numbered& frame) PARALET_REQUIRES(progress_lock);

  // -- paths that fail and return ---------------------------------------------------------------------------------
  /// Notes a completion as a sign that the path between two members works.
  static void note(Peer& peer, unsigned lane, const Completion& completion);
  /// Uses the path no longer, tells the peer, and moves lanes to another path. If there is none they stay, and all
  /// paths are tried at once.
  void leave(Peer& peer, unsigned member, const std::string& why) PARALET_REQUIRES(progress_lock) {
    leave(peer, member, why, true);
  }
  /// Periodic: opens channels, and leaves paths whose own port is down or that are silent.
  void watch(Peer& peer, Nanos now) PARALET_REQUIRES(progress_lock);

 private:
  void open_channel(Peer& peer, unsigned member, Nanos now) PARALET_REQUIRES(progress_lock);
  void on_joined(Peer& peer, unsigned member) PARALET_REQUIRES(progress_lock);
  void leave(Peer& peer, unsigned member, const std::string& why, bool tell) PARALET_REQUIRES(progress_lock);
  void leave_silent(Peer& peer, Nanos now) PARALET_REQUIRES(progress_lock);
  void ping_path(Peer& peer, unsigned member) PARALET_REQUIRES(progress_lock);
  bool works_beside(Peer& peer, unsigned suspect, std::span<const Nanos> silent_since) PARALET_REQUIRES(progress_lock);
  void move_lanes(Peer& peer) PARALET_REQUIRES(progress_lock);

  Context& context_;
  Shard& shard_;
  Peers& peers_;
  Sockets& sockets_;
  ControlFrames& frames_;
  Renewals& renewals_;
  PeerEvents& events_;
};

}  // namespace paralet
