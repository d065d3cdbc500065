// SPDX-License-Identifier: Apache-2.0
#include "engine/control_frames.hpp"

#include <variant>

namespace paralet {

void ControlFrames::send(Peer& peer, const handshake::Frame& frame) {
  if (peer.fusion && peer.ready()) {
    send_on_all(peer, frame);
  } else {
    send_on(peer.first_channel(), frame);
  }
}

void ControlFrames::send_on(Channel& channel, const handshake::Frame& frame) {
  channel.send(frame);
  sockets_.watch(channel.fd(), channel.wants_write());
}

void ControlFrames::send_on_all(Peer& peer, const handshake::Frame& frame) {
  const bool fresh = !std::holds_alternative<handshake::Numbered>(frame);
  const handshake::Frame out = fresh ? handshake::Frame(peer.fusion->numbers.add(frame)) : frame;
  for (const auto& channel : peer.channels()) {
    if (channel && !channel->connecting() && !channel->closed()) send_on(*channel, out);
  }
}

void ControlFrames::acknowledge(Peer& peer) {
  FrameNumbers& numbers = peer.fusion->numbers;
  if (peer.ready() && !peer.setting_up && numbers.owes_acknowledgement()) send_on_all(peer, numbers.acknowledgement());
}

}  // namespace paralet
