// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/handshake.hpp"
#include "engine/peer.hpp"
#include "engine/sockets.hpp"

namespace paralet {

/// Sends control frames to peers: over the peer's channel, or between fused devices, numbered, over every channel that
/// is open.
class ControlFrames {
 public:
  explicit ControlFrames(Sockets& sockets) : sockets_(sockets) {}

  void send(Peer& peer, const handshake::Frame& frame);
  /// Over one channel, also before the peer is ready.
  void send_on(Channel& channel, const handshake::Frame& frame);
  /// Between fused devices that are ready.
  void send_on_all(Peer& peer, const handshake::Frame& frame);
  /// Tells a fused peer which frames have been taken, where nothing else has.
  void acknowledge(Peer& peer);

 private:
  Sockets& sockets_;
};

}  // namespace paralet
