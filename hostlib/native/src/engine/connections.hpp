// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "base/ip_address.hpp"
#include "engine/channel.hpp"
#include "engine/closes.hpp"
#include "engine/context.hpp"
#include "engine/control_frames.hpp"
#include "engine/handshake.hpp"
#include "engine/listeners.hpp"
#include "engine/members.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/qp_set_up.hpp"
#include "engine/request.hpp"
#include "engine/shard.hpp"

namespace paralet {

/// Opens connections, and the peers that they need: channels, the exchange of QPs. docs/protocol.md describes the same
/// as a protocol.
class Connections {
 public:
  Connections(Context& context, Shard& shard, Peers& peers, ControlFrames& frames, QpSetUp& set_up,
              Listeners& listeners, Members& members, Closes& closes, PeerEvents& events)
      : context_(context),
        shard_(shard),
        peers_(peers),
        frames_(frames),
        set_up_(set_up),
        listeners_(listeners),
        members_(members),
        closes_(closes),
        events_(events) {}

  /// A new connection to what the handle names, over as many QPs where it needs a new peer.
  std::shared_ptr<Connection> connect(const handshake::Handle& target, unsigned lanes) PARALET_REQUIRES(progress_lock);
  /// Starts a connection that has no peer, for the first time or again.
  void start(const std::shared_ptr<Connection>& connection) PARALET_REQUIRES(progress_lock);
  /// Whether a hello crosses one of this device's own to the same device, and that one decides: its side takes this
  /// set-up back once the other is done (`take_over`), so its hello waits. The hello with more QPs decides, of two with
  /// as many that of the higher GUID.
  [[nodiscard]] bool comes_first(const handshake::Hello& hello) const PARALET_REQUIRES(progress_lock);
  /// Makes an incoming channel, `from` this address, a peer if its hello has a listener's token. nullptr when it is
  /// refused.
  Peer* welcome(std::unique_ptr<Channel>& channel, const IpAddress& from, const handshake::Hello& hello)
      PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Hello& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Welcome& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Refuse& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Connect& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Accept& frame) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Reject& frame) PARALET_REQUIRES(progress_lock);

 private:
  [[nodiscard]] handshake::Endpoint endpoint(const Peer& peer) const PARALET_REQUIRES(progress_lock);
  Peer* start_peer(Connection& connection) PARALET_REQUIRES(progress_lock);
  [[nodiscard]] bool one_lane_per_port() const PARALET_REQUIRES(progress_lock);
  [[nodiscard]] std::size_t lanes_for(const handshake::Endpoint& remote) const PARALET_REQUIRES(progress_lock);
  [[nodiscard]] bool takes_fewer(const Peer& peer) const PARALET_REQUIRES(progress_lock);
  /// Over TCP, answers to pings do it.
  [[nodiscard]] bool offers_signs() const PARALET_REQUIRES(progress_lock) {
    return shard_.backend().transport() == Transport::kRoce;
  }
  [[nodiscard]] std::uint32_t path_mtu_to(std::span<const IpAddress> members) const PARALET_REQUIRES(progress_lock);
  void take_over(Peer& peer) PARALET_REQUIRES(progress_lock);

  /// Whether this side sends and takes eager messages.
  [[nodiscard]] bool eager() const { return context_.options.eager_bytes > 0; }
  void connect_waiting(Peer& peer) PARALET_REQUIRES(progress_lock);
  void send_connect(Peer& peer, const Connection& connection) PARALET_REQUIRES(progress_lock);

  Context& context_;
  Shard& shard_;
  Peers& peers_;
  ControlFrames& frames_;
  QpSetUp& set_up_;
  Listeners& listeners_;
  Members& members_;
  Closes& closes_;
  PeerEvents& events_;
};

}  // namespace paralet
