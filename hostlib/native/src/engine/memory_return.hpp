// SPDX-License-Identifier: Apache-2.0
// The return of memory to the caller: by deregistration, or by a close that waits. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ip_address.hpp"
#include "engine/context.hpp"
#include "engine/parts.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/poller.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"
#include "engine/shard.hpp"

namespace paralet {

class MemoryReturn {
 public:
  MemoryReturn(Context& context, ProgressLock& lock, Shard& shard, Parts& parts, PeerEvents& events, Poller& poller)
      : context_(context), lock_(lock), shard_(shard), parts_(parts), events_(events), poller_(poller) {}

  /// Device::deregister_memory.
  std::vector<IpAddress> deregister(std::uint32_t rkey);
  /// Waits until the engine no longer uses the memory of `requests`, all of this connection, which is closing, and
  /// until the peer has acknowledged the connection's copies. With `closed`, also until it is closed. False: the peer
  /// was given up (Device::close_and_wait).
  bool wait(const std::shared_ptr<Connection>& connection, const std::vector<std::shared_ptr<Request>>& requests,
            bool closed);
  /// Device::give_up.
  void give_up(Connection& connection);

 private:
  /// Unfinished requests of one connection that use a region; without a connection: fences.
  struct User {
    std::shared_ptr<Connection> connection;
    std::vector<std::shared_ptr<Request>> requests;
  };

  /// What else to wait for.
  struct Until {
    bool copies_acknowledged = false;
    bool closed = false;
  };

  bool wait_for_release(const User& user, const Until& until);
  [[nodiscard]] std::vector<User> users_of(std::uint32_t rkey) const PARALET_REQUIRES(progress_lock);
  [[nodiscard]] std::uint64_t signs_of_life(const Peer& peer) const PARALET_REQUIRES(progress_lock);
  [[nodiscard]] std::vector<std::uint32_t> start_giving_up(Connection& connection) PARALET_REQUIRES(progress_lock);

  Context& context_;
  ProgressLock& lock_;
  Shard& shard_;
  Parts& parts_;
  PeerEvents& events_;
  Poller& poller_;
};

}  // namespace paralet
