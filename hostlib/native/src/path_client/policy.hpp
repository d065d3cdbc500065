// SPDX-License-Identifier: Apache-2.0
// The `controller` policy: announces elephants to the path service and gives lanes the ports that the service assigns.
// All other traffic uses the fallback policy, ECMP. Used by the thread that holds the device's progress lock; the path
// client has a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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

class ControllerPolicy final : public PathPolicy {
 public:
  /// `wake` makes the data path look for updates; any thread may call it. Throws DeviceError for invalid options.
  ControllerPolicy(const path_client::Options& options, PeerName device, bool over_tcp, unsigned lanes,
                   std::unique_ptr<PathPolicy> fallback, std::function<void()> wake);
  /// Ends the client's thread. Assignments stay.
  void stop() override { client_.stop(); }

  // -- ports ------------------------------------------------------------------------------------------------------
  /// The assigned port, or that of the fallback policy.
  std::uint16_t port(PeerName peer, unsigned lane) override;
  std::optional<std::uint16_t> alternative(PeerName peer, unsigned lane) override;
  /// False for an assigned port: the planner knows nothing of another.
  [[nodiscard]] bool takes_other(PeerName peer, unsigned lane, std::uint16_t port) const override;
  void port_refused() override { ++unbound_; }
  void connected(PeerName peer, unsigned first, std::span<const std::uint32_t> qpns) override {
    const path_client::LanesConnected lanes{.peer = peer, .first = first, .qpns = {qpns.begin(), qpns.end()}};
    static_cast<void>(mailbox_.post(lanes));
  }
  [[nodiscard]] bool watches_lanes() const override { return true; }
  /// A port of the fallback policy when the lane's assigned path is bad. The lane returns with the next assignment, or
  /// to try again: after 0.2 seconds, then twice as long each time, up to 10 seconds.
  std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) override;
  /// It leaves a path at a second timeout without a finished flowlet between, or because the service says so.
  [[nodiscard]] bool resends_at_once() const override { return true; }

  // -- assignments ------------------------------------------------------------------------------------------------
  [[nodiscard]] bool news() const override { return mailbox_.has_update(); }
  /// Takes the newest assignments.
  bool take() override;
  [[nodiscard]] bool changed(PeerName peer) const override;
  [[nodiscard]] bool cut(PeerName peer) const override;

  // -- sending ----------------------------------------------------------------------------------------------------
  [[nodiscard]] bool follows_traffic() const override { return true; }
  void started(PeerName peer, std::uint64_t bytes, Nanos now) override;
  void delivered(PeerName peer, std::uint64_t bytes, Nanos now) override { elephants_.delivered(peer, bytes, now); }
  void begin_round() override { blocked_until_ = kNever; }
  /// Not while the peer's elephant waits for ports, nor above its rate.
  bool may_send(PeerName peer, Nanos now) override;
  void sent(PeerName peer, std::uint64_t bytes, std::uint32_t path_mtu) override;
  [[nodiscard]] Nanos deadline() const override { return blocked_until_; }

  // -- periodic work ----------------------------------------------------------------------------------------------
  void observe(PeerName peer, const PeerView& view) override { elephants_.observe(peer, view); }
  void tick(Nanos now) override;
  /// While an elephant is open.
  [[nodiscard]] bool busy() const override { return elephants_.open() > 0; }
  [[nodiscard]] std::optional<PathClientCounters> counters() const override;

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
