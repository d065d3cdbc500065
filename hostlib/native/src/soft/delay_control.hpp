// SPDX-License-Identifier: Apache-2.0
// Delay-based congestion control of one QP, after Swift (Kumar et al., SIGCOMM 2020, algorithm 1): the window grows
// additively while the round trip is below a target and shrinks in proportion to the excess above it, at most once per
// round trip. Differences from the paper: exponential growth at the start, one delay (no split of fabric and host), the
// base of the target is the smallest round trip seen on any lane to the peer, up to a bound, instead of a hop count, a
// window limited by the application or the pacer does not grow, and a small one grows by less than a packet. Below one
// packet, where many lanes share a slow link, each hears back too rarely for additive steps: the window follows the
// distance to the target in small proportional steps, and packets are spaced at random, or lanes that started together
// would meet at the bottleneck again and again. Where the line rate is unknown, as between processes of one machine,
// delay may be a scheduler's and not a queue's, and a smaller window would not shorten it: delay takes the window to a
// floor, below that only loss counts (Reno), and one packet is the least: timeouts that back off space what is lost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/clock.hpp"
#include "base/random.hpp"

namespace paralet {

struct DelayControlOptions {
  Nanos target_queue = 1 * kMillisecond;  ///< queueing delay above the base round trip that a lone full window aims at
  /// What of a measured round trip is believed to be the path's own. Who first measures while a queue stands would else
  /// take that for the path, aim at a queue on top of it, and starve those who came before.
  Nanos max_base = kNever;
  double initial_window = 4;  ///< packets
  double max_window = 512;    ///< packets
  double delay_floor = 0;     ///< packets: delay alone makes the window no smaller; 0 where the line rate is known
  std::uint64_t seed = 0;     ///< of the spacing of packets
};

class DelayControl {
 public:
  static constexpr double kMinWindow = 0.05;

  explicit DelayControl(const DelayControlOptions& options)
      : options_(options), size_{.window = options.initial_window}, before_timeout_(size_), random_(options.seed) {
    options_.target_queue = std::max<Nanos>(1, options.target_queue);  // it divides
  }

  /// Packets acknowledged. `rtt` is 0 when this acknowledgement carries no valid sample; `base_rtt` is the smallest
  /// known round trip to the peer; `limited` tells whether the window, and nothing else, held the sender back.
  void on_ack(Nanos now, unsigned packets, Nanos rtt, Nanos base_rtt, bool limited);
  /// A gap was reported (NAK sequence error): at most one decrease per round trip.
  void on_loss(Nanos now);
  /// Nothing came back within the retransmission timeout; `repeated` when the one before expired too.
  void on_timeout(Nanos now, bool repeated);
  /// The timeout, or the row of them, came too early: nothing was lost.
  void undo_timeout();

  /// Packets that may be in flight; below 1 it means one packet every rtt / window.
  [[nodiscard]] double window() const { return size_.window; }
  /// Mean time between packets while the window is below one packet, else 0.
  [[nodiscard]] Nanos pacing_interval() const;
  /// The time to leave after a packet now: the mean, more or less half of it.
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
    bool starting = true;                                        ///< exponential growth, as no queue has been seen yet
    double threshold = std::numeric_limits<double>::infinity();  ///< what loss left: growth up to it is exponential
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
};

}  // namespace paralet
