// SPDX-License-Identifier: Apache-2.0
// For whom probes are that the prober has: asks and watches of the service. No system call is made here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "path_client/messages.hpp"
#include "prober/observation.hpp"

namespace paralet::path_client {

class ProbeOwners {
 public:
  /// Whom a probe is for: an ask, or without a number a watch.
  struct Owner {
    std::optional<std::uint64_t> ask;
    PeerName peer;
    std::uint32_t qpn = 0;  ///< that the probe carries
    bool once = false;      ///< see `prober::Probe`
    bool first = false;     ///< the same
    Nanos since = 0;        ///< from when on it has wanted the probe
  };
  using Owned = std::pair<prober::Probe, Owner>;

  /// The probe that this owner wants.
  prober::Probe add(const Owner& owner, std::size_t target, std::uint16_t port, std::uint8_t ttl);
  /// An ask, or without a number the watch, wants its probe no more. Returns that probe, if there is one.
  std::optional<prober::Probe> remove(std::optional<std::uint64_t> ask, std::size_t target, std::uint16_t port,
                                      std::uint8_t ttl);
  /// A probe was settled. Returns for whom it was, if anybody wants it still.
  std::optional<Owner> settled(const prober::Probe& probe);
  /// A probe that left at `sent_at` was answered. Returns all others that wanted to know the same by then: the answer
  /// is theirs too, and their probes, which wait, need not leave.
  std::vector<Owned> served(const prober::Probe& probe, Nanos sent_at);

 private:
  using Key = std::tuple<std::size_t, std::uint16_t, std::uint8_t>;  // target, source port, time to live
  using Owners = std::multimap<Key, Owner>;                          // the oldest of a key first

  static prober::Probe probe_of(const Owners::value_type& entry);

  Owners owners_;
};

}  // namespace paralet::path_client
