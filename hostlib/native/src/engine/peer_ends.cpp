// SPDX-License-Identifier: Apache-2.0
#include "engine/peer_ends.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace paralet {

void PeerEnds::fail(Peer& peer, Failure failure, const std::string& error) {
  if (peer.dead()) return;
  const bool was_ready = peer.ready();
  std::optional<Fusion::Start> next;
  if (peer.fusion && peer.initiator && !was_ready && failure != Failure::kClosed) {
    const auto& channel = peer.channels()[peer.fusion->start.member];
    next = members_.next_start(peer.fusion->start, !channel || !channel->lost());
  }
  peer.state = Peer::State::kDead;
  // Tell the peer, so that its requests fail at once. If the frame is lost, they time out.
  for (const auto& channel : peer.channels()) {
    if (channel && failure != Failure::kClosed) channel->send(handshake::Refuse{error});
  }
  for (auto& channel : peer.channels()) channel.reset();
  peer.sending.clear();
  // QPs first, so that nothing accesses memory any more; then the requests, whose memory returns to the caller.
  shard_.drop_qps(peer);
  contexts_->drop(peer.lanes);
  advertisements_.drop(peer);
  std::vector<std::shared_ptr<Connection>> again;
  for (const auto& [id, connection] : std::map(peers_.connections.begin(), peers_.connections.end())) {
    if (connection->peer != &peer) continue;
    const bool connecting = connection->state == Connection::State::kConnecting;
    const bool dropped = was_ready && !connection->retried;  // it was idle, and our connect was on its way
    if (connecting && (dropped || next)) {
      connection->retried = connection->retried || dropped;
      connection->start = next;
      connection->peer = nullptr;
      again.push_back(connection);
      continue;
    }
    closes_.abandon(*connection, failure, error);
  }
  context_.next_housekeeping = 0;
  for (const auto& connection : again) connections_.start(connection);
}

void PeerEnds::fail_unreachable(Peer& peer, Failure failure, const std::string& why) {
  if (const std::string trouble = shard_.backend().port_trouble(now()); !trouble.empty()) {
    fail(peer, Failure::kDevice, trouble + ", and " + why);
  } else {
    fail(peer, failure, why);
  }
}

void PeerEnds::fail_all(Failure failure, const std::string& error) {
  for (std::size_t i = 0; i < peers_.all.size(); ++i) fail(*peers_.all[i], failure, error);
}

void PeerEnds::reap(Nanos t) {
  for (const auto& peer : peers_.all) {
    if (!peer->dead() && !peer->setting_up && peer->connections == 0 &&
        t - peer->idle_since > context_.options.idle_peer) {
      fail(*peer, Failure::kClosed, "idle");
    }
  }
  std::erase_if(peers_.all, [](const auto& peer) { return peer->dead() && peer->setups == 0; });
}

}  // namespace paralet
