// SPDX-License-Identifier: Apache-2.0
// The `controller` policy: elephants are announced to the path service, lanes take the ports that it assigns, and
// everything that it does not speak of, or not in time, takes what the policy behind it says: ECMP. Called only with
// the device's progress lock held; a thread of its own talks to the service.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/pacer.hpp"
#include "path_client/client.hpp"
#include "path_client/elephants.hpp"
#include "path_client/link.hpp"
#include "path_client/options.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

struct ControllerCounters {
  bool connected = false;
  Nanos since = 0;                ///< when that began
  std::uint64_t connections = 0;  ///< with the service, so far
  // Elephants, each counted once.
  std::uint64_t announced = 0;
  std::uint64_t assigned = 0;     ///< of those announced: given ports, in time or later
  std::uint64_t ecmp_starts = 0;  ///< began to leave on random ports: those given came later, or never
  std::uint64_t released = 0;     ///< over
  // What was said.
  std::uint64_t announces = 0;  ///< messages, growth and repetition after a reconnect included
  std::uint64_t assigns = 0;    ///< taken
  std::uint64_t pushes = 0;     ///< of them those that answered no announcement
  std::uint64_t stale = 0;      ///< assignments that came too late
  std::uint64_t nonsense = 0;   ///< what made no sense
  std::uint64_t dropped = 0;    ///< times that the queue to the client had no room
  std::uint64_t reverted = 0;   ///< times that a lane left its assigned port by itself
  std::uint64_t unbound = 0;    ///< moves to ports that another program has
  std::size_t elephants = 0;    ///< open now
};

class ControllerPolicy final : public PathPolicy {
 public:
  /// `wake` makes the data path look, from any thread. Throws DeviceError for options that cannot work.
  ControllerPolicy(const controller::Options& options, PeerName device, unsigned lanes,
                   std::unique_ptr<PathPolicy> fallback, std::function<void()> wake);
  /// Ends the thread. What was assigned stays.
  void stop() { client_.stop(); }

  // -- PathPolicy -------------------------------------------------------------------------------------------------
  /// The assigned port, or the fallback's.
  std::uint16_t port(PeerName peer, unsigned lane) override;
  std::optional<std::uint16_t> alternative(PeerName peer, unsigned lane) override;
  /// A port of the fallback when the lane does badly on its assigned one. It comes back with the next assignment, or
  /// for another try: after a fifth of a second, then twice as long each time, ten seconds at most.
  std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) override;

  // -- what the service has said ----------------------------------------------------------------------------------
  /// Whether take() may find something: one load.
  [[nodiscard]] bool news() const { return link_.news(); }
  /// Takes what the service has said since. True when lanes may have to move: those of peers that are `changed`.
  bool take();
  [[nodiscard]] bool changed(PeerName peer) const;
  /// A lane could not have the port that it was to move to.
  void could_not_bind() { ++unbound_; }
  /// Of one that is `changed`: whether its path before is known to be dead.
  [[nodiscard]] bool cut(PeerName peer) const;

  // -- what leaves ------------------------------------------------------------------------------------------------
  /// A message of an elephant's kind, no mouse, may leave from now on.
  void started(PeerName peer, std::uint64_t bytes, Nanos now);
  void delivered(PeerName peer, std::uint64_t bytes, Nanos now) { elephants_.delivered(peer, bytes, now); }
  /// Before peers are asked in turn.
  void begin_round() { restrained_until_ = kNever; }
  /// Whether flowlets may leave to this peer: not while it waits for its ports, nor above its rate.
  bool may_send(PeerName peer, Nanos now);
  /// A flowlet has left.
  void sent(PeerName peer, std::uint64_t bytes, std::uint32_t path_mtu);
  /// When the first of those that may not send now may.
  [[nodiscard]] Nanos deadline() const { return restrained_until_; }

  // -- now and then -----------------------------------------------------------------------------------------------
  void observe(PeerName peer, const controller::PeerView& view) { elephants_.observe(peer, view); }
  void tick(Nanos now);
  /// Whether tick should come soon.
  [[nodiscard]] bool busy() const { return elephants_.open() > 0; }
  [[nodiscard]] ControllerCounters counters() const;

 private:
  /// A lane that has an assigned port.
  struct LaneState {
    std::uint64_t left_serial = 0;  ///< of the assignment that it last left by itself
    bool away = false;              ///< and has not come back to since
    Nanos away_for = 0;
    Nanos back_at = 0;
    unsigned bad_flowlets = 0;   ///< in a row
    std::uint64_t timeouts = 0;  ///< since a flowlet ended without one
    std::uint64_t packets = 0;   ///< when losses were last weighed
    std::uint64_t retransmits = 0;
  };
  struct PeerState {
    std::vector<LaneState> lanes;
    std::optional<Pacer> pacer;
    double rate_bps = 0;
    Nanos hold_until = 0;  ///< its elephant waits for its ports until then
  };

  [[nodiscard]] const controller::PeerPaths* paths(PeerName peer) const;
  /// An elephant has waited long enough.
  void end_wait(PeerName peer, PeerState& state);
  LaneState& lane_state(PeerName peer, unsigned lane);
  [[nodiscard]] bool has_left(PeerName peer, unsigned lane, std::uint64_t serial) const;
  void limit(PeerState& state, double rate_bps);
  std::optional<std::pair<controller::Reason, double>> fault(const LaneView& view, LaneState& state) const;

  controller::Options options_;
  unsigned lanes_;
  std::unique_ptr<PathPolicy> fallback_;
  controller::Link link_;
  controller::Elephants elephants_;
  std::shared_ptr<const controller::Assignments> assignments_;
  std::uint64_t applied_serial_ = 0;
  bool all_changed_ = false;
  std::uint64_t changed_after_ = 0;
  std::unordered_map<PeerName, PeerState> peers_;  ///< that are restrained, or have lanes with assigned ports
  Nanos restrained_until_ = kNever;
  std::uint64_t reverted_ = 0;
  std::uint64_t unbound_ = 0;
  std::uint64_t ecmp_starts_ = 0;
  controller::Client client_;  // last: it goes first
};

}  // namespace paralet
