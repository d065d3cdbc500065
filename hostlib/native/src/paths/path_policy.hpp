// SPDX-License-Identifier: Apache-2.0
// Which UDP source port, and so which path, a lane takes. The engine asks a policy when a lane first meets a peer, and
// tells it what happens meanwhile through the hooks below. A hook that a policy does not override does nothing, so the
// engine knows no policy by its type.
//
// All functions but `stop` are called by the holder of the device's progress lock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.hpp"
#include "paths/path_client_counters.hpp"
#include "wire/peer_name.hpp"

namespace paralet {

/// The state of a lane that a policy gets when a flowlet has finished.
struct LaneView {
  PeerName peer;
  unsigned lane = 0;
  std::uint16_t port = 0;
  Nanos smoothed_rtt = 0;
  Nanos peer_rtt = 0;             ///< smallest smoothed round trip of the peer's lanes
  std::uint64_t timeouts = 0;     ///< since the last call of after_flowlet
  std::uint64_t retransmits = 0;  ///< so far
  std::uint64_t packets = 0;      ///< sent so far, those sent again included
};

/// Summary of the lanes to one peer.
struct PeerView {
  bool busy = false;  ///< data is in flight or waits to be sent
  Nanos rtt = 0;      ///< mean of the lanes' smoothed round trips, 0: unknown
  std::uint64_t retransmits = 0;
};

class PathPolicy {
 public:
  virtual ~PathPolicy() = default;
  /// No further news comes. Any thread may call it; it may wait for a thread of the policy's own.
  virtual void stop() {}

  // -- ports ------------------------------------------------------------------------------------------------------
  /// The port a lane starts with.
  virtual std::uint16_t port(PeerName peer, unsigned lane) = 0;
  /// Another port after the last one was not available, nothing when there is no other choice. Calls for one lane give
  /// every port of RoCEv2's range once before any of them again.
  virtual std::optional<std::uint16_t> alternative(PeerName peer, unsigned lane) = 0;
  /// Whether a lane that is to move to `port`, which is not available, may take an `alternative`.
  [[nodiscard]] virtual bool takes_other(PeerName peer, unsigned lane, std::uint16_t port) const {
    static_cast<void>(peer), static_cast<void>(lane), static_cast<void>(port);
    return false;
  }
  /// A lane could not have the port that it was to move to, and stays on its old one.
  virtual void port_refused() {}

  /// QPs to a peer are connected: those of all lanes, later each one that replaces another. `qpns`: the peer's, of lane
  /// `first` and those after it, which probes of their paths carry.
  virtual void connected(PeerName peer, unsigned first, std::span<const std::uint32_t> qpns) {
    static_cast<void>(peer), static_cast<void>(first), static_cast<void>(qpns);
  }

  // -- lanes ------------------------------------------------------------------------------------------------------
  /// Whether `after_flowlet` is called at all: a LaneView costs a look at every lane of the peer. Constant.
  [[nodiscard]] virtual bool watches_lanes() const { return false; }
  /// A flowlet of the lane has finished, or the lane has met timeouts. The port to move to, nothing to stay.
  virtual std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) {
    static_cast<void>(lane), static_cast<void>(now);
    return std::nullopt;
  }
  /// Whether the packets on a path that a lane leaves as dead are sent again at once. A policy that leaves a path at
  /// the first timeout says no, because that may be spurious: then only the oldest packet is sent again. Constant.
  [[nodiscard]] virtual bool resends_at_once() const { return false; }

  // -- news: ports that change without a call of after_flowlet ----------------------------------------------------
  /// Whether take() may find any. Asked in every round, so it should cost no more than one load.
  [[nodiscard]] virtual bool news() const { return false; }
  /// Takes the news. True when lanes may have to move to what `port` now says: those of peers that have `changed`.
  virtual bool take() { return false; }
  [[nodiscard]] virtual bool changed(PeerName peer) const {
    static_cast<void>(peer);
    return false;
  }
  /// For a peer that has `changed`: whether its old path is known to be dead.
  [[nodiscard]] virtual bool cut(PeerName peer) const {
    static_cast<void>(peer);
    return false;
  }

  // -- traffic ----------------------------------------------------------------------------------------------------
  /// Whether the hooks of this group are called at all: for each flowlet and small message. Constant.
  [[nodiscard]] virtual bool follows_traffic() const { return false; }
  /// A message that is longer than a small one (DeviceOptions::mice_bytes) may be sent from now on.
  virtual void started(PeerName peer, std::uint64_t bytes, Nanos now) {
    static_cast<void>(peer), static_cast<void>(bytes), static_cast<void>(now);
  }
  /// Begins a round of may_send calls over all peers.
  virtual void begin_round() {}
  /// Whether flowlets may be sent to this peer now.
  virtual bool may_send(PeerName peer, Nanos now) {
    static_cast<void>(peer), static_cast<void>(now);
    return true;
  }
  /// A flowlet was sent.
  virtual void sent(PeerName peer, std::uint64_t bytes, std::uint32_t path_mtu) {
    static_cast<void>(peer), static_cast<void>(bytes), static_cast<void>(path_mtu);
  }
  /// A flowlet or a small message has arrived at the peer.
  virtual void delivered(PeerName peer, std::uint64_t bytes, Nanos now) {
    static_cast<void>(peer), static_cast<void>(bytes), static_cast<void>(now);
  }
  /// When the first of the peers that could not be sent to in this round may be, kNever when there is none.
  [[nodiscard]] virtual Nanos deadline() const { return kNever; }
  /// Periodic: the state of each peer's lanes, then `tick`.
  virtual void observe(PeerName peer, const PeerView& view) { static_cast<void>(peer), static_cast<void>(view); }
  virtual void tick(Nanos now) { static_cast<void>(now); }
  /// Whether `tick` has to be called soon.
  [[nodiscard]] virtual bool busy() const { return false; }
  /// nullopt for a policy that asks no path service.
  [[nodiscard]] virtual std::optional<PathClientCounters> counters() const { return std::nullopt; }
};

}  // namespace paralet
