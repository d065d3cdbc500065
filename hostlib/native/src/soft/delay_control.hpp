// SPDX-License-Identifier: Apache-2.0
// The law delay: congestion control by delay and by the marks of switches (ECN).
//
// Delay, after Swift (Kumar et al., SIGCOMM 2020, algorithm 1): the window grows additively while the round trip is
// below a target and shrinks in proportion to the excess above it, at most once per round trip. Differences from the
// paper:
// - The window grows exponentially at the start.
// - Hosts and network have one target, and the network another.
// - The base of the target is the smallest round trip seen on any lane to the peer, up to a bound, not a hop count.
// - A window that the application or the pacer limits does not grow. A small window grows by less than a packet.
// - Below one packet, where many lanes share a slow link, acknowledgements are too rare for additive steps. The window
//   then follows the distance to the target in small proportional steps, and packets are spaced at random. With equal
//   spacing, lanes that started together would meet at the bottleneck again and again. After a timeout, steps are half
//   a packet until the window is half of what it was, or one packet, and a packet finds a queue.
// - Where the line rate is unknown, as between processes of one machine, delay may come from the scheduler, and a
//   smaller window would not shorten it. Delay then reduces the window only down to a floor. Below the floor only loss
//   (Reno) and the network's own delay count. Loss takes it to one packet, and the back-off of timeouts spaces
//   retransmissions.
// - Where both ends say how long packets waited in them, the rest of the round trip is the network's. It has a target
//   of its own, shorter than what schedulers add, and reduces windows with and without a line rate, also below one
//   packet (Swift, section 3.5, splits delay in the same way).
// - With selective repeat a loss costs only the lost packet. Without a line rate the window then shrinks by half the
//   share of packets that were lost since the last decrease, as DCTCP (RFC 8257, section 3.3) does for marks, not by
//   half: a path that loses 1 % at random keeps 200 packets in flight, and 5 % keep 40.
//
// Marks, after DCTCP (RFC 8257, section 3.3): a window with a mark shrinks by half the average share of marked packets,
// at most once per round trip, whatever the delay. A mark comes from a switch's queue and never from a scheduler, so
// marks also take the window below the floor and below one packet where the line rate is unknown. From there it grows
// by one packet per round trip, as it does above the floor.
#pragma once

#include <cstdint>
#include <limits>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "soft/congestion_control.hpp"
#include "soft/marked_share.hpp"

namespace paralet {

class DelayControl final : public CongestionControl {
 public:
  static constexpr double kMinWindow = 0.05;

  /// `seed`: of the random spacing of packets, so that the QPs of a device space theirs differently.
  DelayControl(const CongestionOptions& options, const RoundTrip& round_trip, std::uint64_t seed)
      : CongestionControl(options.initial_window),
        options_(&options),
        round_trip_(&round_trip),
        before_timeout_{options.initial_window, {}},
        random_(seed) {}

  void on_marks(Nanos now, unsigned packets, unsigned marked) override;
  void on_delivery(const Delivery& delivery) override;
  /// At most one decrease per round trip.
  void on_gap(Nanos now) override;
  /// At most one decrease per round trip.
  void on_losses(Nanos now, std::uint64_t packets) override;
  void on_timeout(Nanos now, bool repeated) override;
  void undo_timeout() override;
  /// Starts again from the initial window (RFC 5681, section 4.1, restarts then, too).
  void resume() override;
  /// The mean, plus or minus up to half of it.
  Nanos draw_pacing_interval() override;

  /// The average share of packets that switches mark, 0 to 1; 1 before the first acknowledgement.
  [[nodiscard]] double marked_share() const { return marked_share_.value(); }
  /// Mean time between packets while the window is below one packet, else 0.
  [[nodiscard]] Nanos pacing_interval() const;

 private:
  enum class Cause : std::uint8_t { kOther, kMark, kNetworkDelay };
  /// How the window grows.
  struct Growth {
    double threshold =
        std::numeric_limits<double>::infinity();  ///< window after the last loss or mark: exponential growth ends
    Cause cause = Cause::kOther;                  ///< of the last decrease that sets `threshold`
    bool starting = true;                         ///< exponential growth, as no queue has been seen yet
  };
  struct Size {
    double window;
    Growth growth;
  };
  struct Queue;
  [[nodiscard]] Queue queue(Nanos base, Nanos target, Nanos rtt, Nanos previous) const;

  [[nodiscard]] double least_window() const;
  void shrink_for_loss(Nanos now, double factor);
  bool decrease(Nanos now, double factor, double floor);

  const CongestionOptions* options_;
  const RoundTrip* round_trip_;
  Growth growth_;
  Size before_timeout_;
  SplitMix64 random_;
  Nanos previous_rtt_ = kNever;
  Nanos previous_network_rtt_ = kNever;
  Nanos last_decrease_ = -kNever;
  Nanos timed_out_at_ = kNever;  ///< last timeout, kNever once a packet sent after it has found a queue
  MarkedShare marked_share_;
  // Since the last decrease.
  std::uint64_t delivered_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace paralet
