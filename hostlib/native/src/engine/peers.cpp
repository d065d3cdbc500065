// SPDX-License-Identifier: Apache-2.0
#include "engine/peers.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"

namespace paralet {

Peer& Peers::add(const IpAddress& address, const handshake::Guid& device, std::size_t lanes,
                 std::unique_ptr<Channel> channel) {
  Peer& peer = *all.emplace_back(std::make_unique<Peer>());
  peer.address = address;
  peer.device = device;
  peer.channel = std::move(channel);
  peer.lanes.resize(lanes);
  peer.idle_since = now();
  return peer;
}

bool Peers::serves(const Peer& peer, const handshake::Guid& device, const IpAddress& address, std::size_t lanes,
                   const handshake::Guid& own) {
  // Compare the address too: a peer may claim any GUID.
  if (peer.dead() || peer.device != device || peer.address != address) return false;
  // Its hello may have come from another member than 0, whose address it only claimed.
  if (peer.fusion && !peer.initiator && !peer.fusion->address_proven()) return false;
  // A peer that the other side opened can be used too, unless it is the accepting half of this device's connection to
  // itself.
  return (peer.lanes.size() >= lanes || peer.fewer_lanes) && (peer.initiator || device != own);
}

Peer* Peers::find(const handshake::Handle& target, unsigned lanes, const handshake::Guid& own) const {
  for (const auto& peer : all) {
    if (serves(*peer, target.device, target.address, lanes, own)) return peer.get();
  }
  return nullptr;
}

std::shared_ptr<Connection> Peers::connection(const Peer& peer, std::uint32_t id) const {
  const auto found = connections.find(id);
  return found != connections.end() && found->second->peer == &peer ? found->second : nullptr;
}

bool Peers::awaits(std::uint32_t rkey) const {
  return std::ranges::any_of(all, [rkey](const auto& peer) { return !peer->dead() && peer->slots.awaits(rkey); });
}

}  // namespace paralet
