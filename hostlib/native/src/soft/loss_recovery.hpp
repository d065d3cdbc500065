// SPDX-License-Identifier: Apache-2.0
// How a requester finds lost packets and what it sends again. Two strategies:
//
//   go-back-N         go_back_n.hpp: the recovery of RoCE NICs. The responder takes packets in order only
//   selective repeat  selective_repeat.hpp: between peers that can do it. Only what is missing is sent again
//
// Both work on the requester's Flight and tell its congestion control what was lost. One of them is chosen when the
// queue pair connects, because the responder must work in the same way (responder.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/clock.hpp"
#include "soft/congestion_control.hpp"
#include "soft/flight.hpp"
#include "soft/rc_qp_options.hpp"
#include "soft/round_trip.hpp"

namespace paralet {

/// What an acknowledgement says beside its PSN, and when and to which path.
struct AckNews {
  Nanos now;
  Nanos base_rtt;
  std::uint32_t marks;              ///< the peer's count of marked packets
  std::optional<Nanos> host_delay;  ///< of the acknowledgement and of the packet that it answers
  std::span<const std::byte> bitmap;
};

/// What a requester and its loss recovery both work on.
struct RequesterState {
  explicit RequesterState(RcQpShared& qp)
      : shared(qp), control(make_congestion_control(qp.device.congestion, round_trip, qp.options.qpn)) {}

  RcQpShared& shared;
  Flight flight;
  RoundTrip round_trip;
  std::unique_ptr<CongestionControl> control;
};

class LossRecovery {
 public:
  /// Packets that an acknowledgement has told of for the first time.
  struct Delivered {
    unsigned packets = 0;
    Nanos rtt = 0;         ///< 0: no valid sample
    bool limited = false;  ///< only the window held the sender back
  };

  /// `requester` outlives it.
  explicit LossRecovery(RequesterState& requester) : in_(requester) {}
  virtual ~LossRecovery() = default;
  LossRecovery(const LossRecovery&) = delete;
  LossRecovery& operator=(const LossRecovery&) = delete;

  /// All packets before position `end` have arrived, and those of the bitmap. Nothing when that is no news.
  virtual std::optional<Delivered> acknowledge(std::uint64_t end, const AckNews& news) = 0;
  /// The news are in the flight: looks for losses that they show.
  virtual void find_losses(Nanos /*now*/) {}
  /// All packets in flight are sent again.
  virtual void repeat_all() = 0;
  /// The responder had no receive for the oldest packet (RNR NAK).
  virtual void receiver_not_ready() = 0;
  /// The path has changed, so what was known of the old one is void.
  virtual void forget_path() {}
  /// How long the timer waits for news, before back-off and bounds.
  [[nodiscard]] virtual Nanos patience() const = 0;
  /// How many times that wait is doubled.
  [[nodiscard]] virtual unsigned doublings() const = 0;
  /// The timer has expired after `silence`. Whether that is a mere probe, long before a timeout.
  virtual bool expires_early(Nanos silence) = 0;
  /// Sends a packet again, whose answer tells what has arrived.
  virtual void probe(Nanos now) = 0;

 protected:
  RequesterState& in_;  // NOLINT(cppcoreguidelines-non-private-member-variables-in-classes)
};

}  // namespace paralet
