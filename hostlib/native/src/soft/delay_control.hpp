// SPDX-License-Identifier: Apache-2.0
// Delay-based congestion control of one QP, after Swift (Kumar et al., SIGCOMM 2020, algorithm 1): the window grows
// additively while the round trip is below a target and shrinks in proportion to the excess above it, at most once per
// round trip. Differences from the paper:
// - The window grows exponentially at the start.
// - There is one delay, without a split into fabric and host.
// - The base of the target is the smallest round trip seen on any lane to the peer, up to a bound, not a hop count.
// - A window that the application or the pacer limits does not grow. A small window grows by less than a packet.
// - Below one packet, where many lanes share a slow link, acknowledgements are too rare for additive steps. The window
//   then follows the distance to the target in small proportional steps, and packets are spaced at random. With equal
//   spacing, lanes that started together would meet at the bottleneck again and again.
// - Where the line rate is unknown, as between processes of one machine, delay may come from the scheduler, and a
//   smaller window would not shorten it. Delay then reduces the window only down to a floor. Below the floor only loss
//   counts (Reno). The smallest window is one packet, and the back-off of timeouts spaces retransmissions.
// - With selective repeat a loss costs only the lost packet. Without a line rate the window then shrinks by half the
//   share of packets that were lost since the last decrease, as DCTCP (RFC 8257, section 3.3) does for marks, not by
//   half: a path that loses 1 % at random keeps 200 packets in flight, and 5 % keep 40.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/clock.hpp"
#include "base/random.hpp"

namespace paralet {

struct DelayControlOptions {
  Nanos target_queue = 1 * kMillisecond;  ///< queueing delay above the base round trip that a single flow aims at
  /// Upper bound of the base round trip. Without it, a flow that starts while a queue stands takes the queue for a part
  /// of the path, aims at another queue on top, and starves the flows before it.
  Nanos max_base = kNever;
  double initial_window = 4;  ///< packets
  double max_window = 512;    ///< packets
  double delay_floor = 0;     ///< packets: delay alone makes the window no smaller; 0 where the line rate is known
};

class DelayControl {
 public:
  static constexpr double kMinWindow = 0.05;

  /// `seed`: of the random spacing of packets, so that the QPs of a device space theirs differently.
  explicit DelayControl(const DelayControlOptions& options, std::uint64_t seed = 0)
      : options_(options), size_{.window = options.initial_window}, before_timeout_(size_), random_(seed) {
    options_.target_queue = std::max<Nanos>(1, options.target_queue);  // it divides
  }

  /// `packets` were acknowledged. `rtt` is 0 when the acknowledgement carries no valid sample. `base_rtt` is the
  /// smallest known round trip to the peer. `limited` says that only the window held the sender back.
  void on_ack(Nanos now, unsigned packets, Nanos rtt, Nanos base_rtt, bool limited);
  /// A gap was reported (NAK sequence error): at most one decrease per round trip.
  void on_loss(Nanos now);
  /// Selective repeat found `packets` lost: at most one decrease per round trip.
  void on_losses(Nanos now, std::uint64_t packets);
  /// The retransmission timer expired; `repeated` when it also expired before, without progress in between.
  void on_timeout(Nanos now, bool repeated);
  /// The timeouts since the last progress were spurious: nothing was lost.
  void undo_timeout();

  /// Packets that may be in flight. Below 1: one packet every rtt / window.
  [[nodiscard]] double window() const { return size_.window; }
  /// Mean time between packets while the window is below one packet, else 0.
  [[nodiscard]] Nanos pacing_interval() const;
  /// Draws the time until the next packet: the mean, plus or minus up to half of it.
  Nanos draw_pacing_interval();
  [[nodiscard]] Nanos smoothed_rtt() const { return srtt_; }
  /// When the last valid sample came, 0 before the first.
  [[nodiscard]] Nanos sampled_at() const { return sampled_at_; }
  /// That sample, kNever before the first.
  [[nodiscard]] Nanos last_rtt() const { return previous_rtt_; }
  [[nodiscard]] Nanos min_rtt() const { return min_rtt_; }
  /// RFC 6298 without its one-second floor.
  [[nodiscard]] Nanos timeout(Nanos floor) const;

 private:
  struct Size {
    double window;
    bool starting = true;  ///< exponential growth, as no queue has been seen yet
    double threshold =
        std::numeric_limits<double>::infinity();  ///< window after the last loss: exponential growth ends
  };

  [[nodiscard]] double least_window() const { return options_.delay_floor > 0 ? 1.0 : kMinWindow; }
  void shrink_for_loss(Nanos now);
  bool decrease(Nanos now, double factor, double floor);

  DelayControlOptions options_;
  Size size_;
  Size before_timeout_;
  SplitMix64 random_;
  Nanos srtt_ = 0;
  Nanos rttvar_ = 0;
  Nanos min_rtt_ = kNever;
  Nanos previous_rtt_ = kNever;
  Nanos sampled_at_ = 0;
  Nanos last_decrease_ = -kNever;
  // Since the last decrease.
  std::uint64_t delivered_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace paralet
