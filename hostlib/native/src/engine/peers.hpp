// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/ip_address.hpp"
#include "engine/handshake.hpp"
#include "engine/peer.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"

namespace paralet {

/// The peers of a device, and its connections. Data: the parts around it act on them.
struct Peers {
  Peer& add(const IpAddress& address, const handshake::Guid& device, std::size_t lanes,
            std::unique_ptr<Channel> channel) PARALET_REQUIRES(progress_lock);
  /// Whether connections to this device at this address, over as many lanes, can use the peer. `own`: this device.
  [[nodiscard]] static bool serves(const Peer& peer, const handshake::Guid& device, const IpAddress& address,
                                   std::size_t lanes, const handshake::Guid& own) PARALET_REQUIRES(progress_lock);
  /// The peer that a handle names and that has as many lanes; nullptr when there is none.
  [[nodiscard]] Peer* find(const handshake::Handle& target, unsigned lanes, const handshake::Guid& own) const
      PARALET_REQUIRES(progress_lock);
  /// nullptr for a name that is not known, or no longer: Close and Closed may cross.
  [[nodiscard]] std::shared_ptr<Connection> connection(const Peer& peer, std::uint32_t id) const
      PARALET_REQUIRES(progress_lock);
  /// Whether a receive of any peer with this registration is open.
  [[nodiscard]] bool awaits(std::uint32_t rkey) const PARALET_REQUIRES(progress_lock);

  std::vector<std::unique_ptr<Peer>> all PARALET_GUARDED_BY(progress_lock);
  /// By this side's name for them.
  std::unordered_map<std::uint32_t, std::shared_ptr<Connection>> connections PARALET_GUARDED_BY(progress_lock);
  /// The next name of a connection or listener.
  std::uint32_t next_id PARALET_GUARDED_BY(progress_lock) = 1;
};

}  // namespace paralet
