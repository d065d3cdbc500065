// SPDX-License-Identifier: Apache-2.0
// Congestion control of one QP: how many packets may be in flight. A *law* decides it, from what acknowledgements,
// marks and losses tell. Laws (congestion_control.cpp lists them by name):
//
//   delay         delay_control.hpp: Swift's delay targets and DCTCP's marks. The default
//   fixed_window  fixed_window.hpp: a constant window, the baseline that shows what a law gains
//
// To add a law, write a class with this interface in a file of its own and add its name to the list. It then has a
// value of the option `congestion_control`, in every front end and in specs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backend/congestion_laws.hpp"
#include "base/clock.hpp"
#include "soft/round_trip.hpp"

namespace paralet {

/// What a device knows of its paths before it has sent anything, and what its user asks for. Counts are packets.
struct CongestionOptions {
  std::string law = "delay";
  Nanos target_queue = 1 * kMillisecond;  ///< queueing delay above the base round trip that a single flow aims at
  /// Upper bound of the base round trip. Without it, a flow that starts while a queue stands takes the queue for a part
  /// of the path, aims at another queue on top, and starves the flows before it.
  Nanos max_base = kNever;
  double initial_window = 4;
  double max_window = 512;
  double delay_floor = 0;                  ///< delay alone makes the window no smaller; 0 where the line rate is known
  Nanos network_queue = 2 * kMillisecond;  ///< as target_queue, of the network's delay without that of the hosts
  double fixed_window = 64;                ///< for the law fixed_window
};

/// What one acknowledgement tells.
struct Delivery {
  Nanos now;
  unsigned packets;                 ///< that have arrived and were not known to have
  Nanos rtt;                        ///< 0: the acknowledgement carries no valid sample
  Nanos base_rtt;                   ///< the smallest known round trip to the peer, on any lane
  bool limited;                     ///< only the window held the sender back
  std::optional<Nanos> host_delay;  ///< the part of `rtt` that packet and acknowledgement waited in the two hosts
};

/// A law. Its QP tells it what happens; hooks that a law does not need do nothing.
class CongestionControl {
 public:
  virtual ~CongestionControl() = default;
  CongestionControl(const CongestionControl&) = delete;
  CongestionControl& operator=(const CongestionControl&) = delete;

  /// Of `packets` that have arrived, switches marked `marked` (ECN). Comes before on_delivery of the same packets.
  virtual void on_marks(Nanos /*now*/, unsigned /*packets*/, unsigned /*marked*/) {}
  /// Packets have arrived. RoundTrip already has the sample.
  virtual void on_delivery(const Delivery& /*delivery*/) {}
  /// Go-back-N: a gap was reported (NAK sequence error).
  virtual void on_gap(Nanos /*now*/) {}
  /// Selective repeat: `packets` were found lost.
  virtual void on_losses(Nanos /*now*/, std::uint64_t /*packets*/) {}
  /// The retransmission timer expired; `repeated` when it also expired before, without progress in between.
  virtual void on_timeout(Nanos /*now*/, bool /*repeated*/) {}
  /// The timeouts since the last progress were spurious: nothing was lost.
  virtual void undo_timeout() {}
  /// The sender had nothing to send for longer than a timeout, so what the law has learnt may be over.
  virtual void resume() {}
  /// Draws the time from the packet that leaves now to the next, while the window is below one packet.
  virtual Nanos draw_pacing_interval() { return 0; }

  /// Packets that may be in flight. Below 1: one at a time, spaced by draw_pacing_interval. It is read several times
  /// for every packet, so it is a field and not a hook.
  [[nodiscard]] double window() const { return window_; }

 protected:
  explicit CongestionControl(double window) : window_(window) {}
  double window_;  // NOLINT(cppcoreguidelines-non-private-member-variables-in-classes): the laws' result
};

/// The law `options.law`, which is one of congestion_laws(). `options` are those of all QPs of a device, and outlive
/// it, as does the QP's own `round_trip`. `seed`: of what a law draws at random, different for each QP.
std::unique_ptr<CongestionControl> make_congestion_control(const CongestionOptions& options,
                                                           const RoundTrip& round_trip, std::uint64_t seed);

}  // namespace paralet
