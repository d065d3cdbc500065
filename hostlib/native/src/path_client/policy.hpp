// SPDX-License-Identifier: Apache-2.0
// The `controller` policy: announces elephants to the path service and gives lanes the ports that the service assigns.
// All other traffic uses the fallback policy, ECMP. Used by the thread that holds the device's progress lock; the path
// client has a thread of its own.
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
#include "path_client/mailbox.hpp"
#include "path_client/options.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

struct PathClientCounters {
  bool connected = false;
  Nanos since = 0;                ///< when `connected` changed last
  std::uint64_t connections = 0;  ///< with the service, so far
  // Elephants, each counted once.
  std::uint64_t announced = 0;
  std::uint64_t assigned = 0;     ///< of those announced: got ports, in time or later
  std::uint64_t ecmp_starts = 0;  ///< started on ECMP: their ports came later, or never
  std::uint64_t released = 0;     ///< ended
  // Messages.
  std::uint64_t announces = 0;  ///< announcements sent, growth and repetition after a reconnect included
  std::uint64_t assigns = 0;    ///< assignments accepted
  std::uint64_t pushes = 0;     ///< of these, those that answered no announcement
  std::uint64_t stale = 0;      ///< assignments that came too late
  std::uint64_t invalid = 0;    ///< invalid messages
  std::uint64_t dropped = 0;    ///< events lost because the queue to the client was full
  std::uint64_t reverted = 0;   ///< times that a lane left its assigned port because the path was bad
  std::uint64_t unbound = 0;    ///< moves to ports that another program holds
  std::size_t elephants = 0;    ///< open now
};

class ControllerPolicy final : public PathPolicy {
 public:
  /// `wake` makes the data path look for updates; any thread may call it. Throws DeviceError for invalid options.
  ControllerPolicy(const path_client::Options& options, PeerName device, unsigned lanes,
                   std::unique_ptr<PathPolicy> fallback, std::function<void()> wake);
  /// Ends the client's thread. Assignments stay.
  void stop() { client_.stop(); }

  // -- PathPolicy -------------------------------------------------------------------------------------------------
  /// The assigned port, or that of the fallback policy.
  std::uint16_t port(PeerName peer, unsigned lane) override;
  std::optional<std::uint16_t> alternative(PeerName peer, unsigned lane) override;
  /// False for an assigned port: the planner knows nothing of another.
  [[nodiscard]] bool takes_other(PeerName peer, unsigned lane, std::uint16_t port) const override;
  /// A port of the fallback policy when the lane's assigned path is bad. The lane returns with the next assignment, or
  /// to try again: after 0.2 seconds, then twice as long each time, up to 10 seconds.
  std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) override;

  // -- assignments ------------------------------------------------------------------------------------------------
  /// Whether take() may find a new table: one load.
  [[nodiscard]] bool news() const { return mailbox_.has_update(); }
  /// Takes the newest assignments. True when lanes may have to move: those of peers for which `changed` is true.
  bool take();
  [[nodiscard]] bool changed(PeerName peer) const;
  /// A lane could not bind its assigned port.
  void could_not_bind() { ++unbound_; }
  /// For a peer that is `changed`: whether its old path is known to be dead.
  [[nodiscard]] bool cut(PeerName peer) const;

  // -- sending ----------------------------------------------------------------------------------------------------
  /// A message that may belong to an elephant (no mouse) may be sent from now on.
  void started(PeerName peer, std::uint64_t bytes, Nanos now);
  void delivered(PeerName peer, std::uint64_t bytes, Nanos now) { elephants_.delivered(peer, bytes, now); }
  /// Begins a round of may_send calls over all peers.
  void begin_round() { blocked_until_ = kNever; }
  /// Whether flowlets may be sent to this peer: not while its elephant waits for ports, nor above its rate.
  bool may_send(PeerName peer, Nanos now);
  /// A flowlet was sent.
  void sent(PeerName peer, std::uint64_t bytes, std::uint32_t path_mtu);
  /// When the first of the peers that were blocked in this round may send, kNever when there is none.
  [[nodiscard]] Nanos deadline() const { return blocked_until_; }

  // -- periodic work ----------------------------------------------------------------------------------------------
  void observe(PeerName peer, const path_client::PeerView& view) { elephants_.observe(peer, view); }
  void tick(Nanos now);
  /// Whether tick has to be called soon.
  [[nodiscard]] bool busy() const { return elephants_.open() > 0; }
  [[nodiscard]] PathClientCounters counters() const;

 private:
  /// A lane that has an assigned port.
  struct LaneState {
    std::uint64_t left_serial = 0;  ///< serial of the assignment that it left last
    bool away = false;              ///< it left and has not returned
    Nanos away_for = 0;             ///< duration of this absence
    Nanos back_at = 0;
    unsigned bad_flowlets = 0;   ///< in a row
    std::uint64_t timeouts = 0;  ///< since the last flowlet that ended without one
    std::uint64_t packets = 0;   ///< counter at the last measurement of loss
    std::uint64_t retransmits = 0;
  };
  struct PeerState {
    std::vector<LaneState> lanes;
    std::optional<Pacer> pacer;
    double rate_bps = 0;
    Nanos hold_until = 0;  ///< until when its elephant waits for ports, 0: it does not
  };

  [[nodiscard]] const path_client::PeerPaths* paths(PeerName peer) const;
  /// Ends the wait of an elephant for its ports.
  void end_wait(PeerName peer, PeerState& state);
  LaneState& lane_state(PeerName peer, unsigned lane);
  [[nodiscard]] bool has_left(PeerName peer, unsigned lane, std::uint64_t serial) const;
  void limit(PeerState& state, double rate_bps);
  std::optional<std::pair<path_client::Reason, double>> fault(const LaneView& view, LaneState& state) const;

  path_client::Options options_;
  unsigned lanes_;
  std::unique_ptr<PathPolicy> fallback_;
  path_client::Mailbox mailbox_;
  path_client::Elephants elephants_;
  std::shared_ptr<const path_client::Assignments> assignments_;
  std::uint64_t applied_serial_ = 0;
  bool all_changed_ = false;
  std::uint64_t changed_after_ = 0;
  std::unordered_map<PeerName, PeerState> peers_;  ///< with a hold, a rate limit, or lanes with assigned ports
  Nanos blocked_until_ = kNever;
  std::uint64_t reverted_ = 0;
  std::uint64_t unbound_ = 0;
  std::uint64_t ecmp_starts_ = 0;
  path_client::Client client_;  // last, so that it is destroyed first
};

}  // namespace paralet
