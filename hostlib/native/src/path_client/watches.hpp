// SPDX-License-Identifier: Apache-2.0
// The ports that the service has this host watch: when each is probed, and what has changed. No system call is made
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "path_client/messages.hpp"

namespace paralet::path_client {

class Watches {
 public:
  static constexpr std::size_t kMostPorts = 4096;  ///< a port counts once for each time to live
  static constexpr unsigned kSilent = 3;  ///< probes in a row that nobody answers, before a port counts as silent

  struct Due {
    PeerName peer;
    std::uint8_t ttl = 1;
    std::uint16_t port = 0;
  };
  /// Watches these ports in place of those of the same peer and time to live before. Returns the probes of the latter
  /// that the caller still has, which concern nobody now. Nothing, and no change, when there would be more than
  /// kMostPorts.
  std::optional<std::vector<Due>> set(const Watch& watch, Nanos now);

  /// A probe that is to leave now. It belongs to the caller until `settled`; the port has no other one meanwhile.
  std::optional<Due> next(Nanos now);
  /// What became of it. A probe that has failed tells nothing.
  void settled(const Due& probe, const ProbedPort& answer);
  /// A port was answered for somebody else: if it is watched, its next probe is a period away.
  void put_off(const Due& probe, Nanos now);
  /// When `next` has something to do; kNever when nothing is watched.
  [[nodiscard]] Nanos deadline() const { return due_.empty() ? kNever : due_.begin()->first; }
  [[nodiscard]] std::size_t size() const { return ports_.size(); }

  /// What has changed since the last call: one entry for each change, at most kMaxProbedPorts in a message.
  std::vector<Moved> take_moved();

 private:
  using Group = std::pair<PeerName, std::uint8_t>;  // the peer and the time to live of a watch
  using Key = std::pair<Group, std::uint16_t>;
  struct Port {
    Nanos period = 0;
    Nanos due_at = 0;
    bool out = false;                 ///< the caller has a probe of it
    std::optional<IpAddress> router;  ///< who answered last, as the service knows; nothing: it is silent
    unsigned unanswered = 0;          ///< in a row
  };

  std::map<Key, Port> ports_;
  std::multimap<Nanos, Key> due_;  ///< of ports without a probe out
  std::vector<std::pair<Group, ProbedPort>> moved_;
};

}  // namespace paralet::path_client
