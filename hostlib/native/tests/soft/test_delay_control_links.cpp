// SPDX-License-Identifier: Apache-2.0
// Congestion control against a bottleneck simulated packet by packet: one first-in-first-out link, acknowledgements
// that take the rest of the round trip, no loss, simulated time.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

#include "control.hpp"

namespace paralet {
namespace {

using test::Control;

constexpr double kPacketBytes = 4200;

struct Bottleneck {
  double rate_bps;
  Nanos base_rtt;  ///< without queue and serialization
  Nanos target_queue;
  unsigned flows;
  Nanos start_gap = 0;      ///< time from one flow's start to the next one's
  Nanos max_base = kNever;  ///< if set, every flow uses only its own measurement of the base round trip
  double mark_above = std::numeric_limits<double>::infinity();  ///< packets in the queue from which on it marks
  bool rate_known = true;                                       ///< by the flows
  Nanos jitter = 0;                                             ///< acknowledgements take up to so much longer
  Nanos outage_at = kNever;                                     ///< every flow has two timeouts and finds a loss
};

struct Outcome {
  double utilization;    ///< of the second half of the time
  double fairness;       ///< Jain's index of the flows' shares in that half
  double queue_seconds;  ///< largest queueing delay in that half
};

class Simulation {
 public:
  explicit Simulation(const Bottleneck& link)
      : link_(link), packet_time_(from_seconds(8 * kPacketBytes / link.rate_bps)) {
    options_.target_queue = link.target_queue;
    options_.max_base = link.max_base;
    if (!link.rate_known) options_.delay_floor = 65;
    flows_.reserve(link.flows);
    for (unsigned seed = 0; seed < link.flows; ++seed) flows_.emplace_back(options_, seed);
  }

  Outcome run(Nanos duration) {
    const Nanos half = duration / 2;
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      events_.push({static_cast<Nanos>(i) * link_.start_gap, i, 0, false, false});
    }
    while (!events_.empty() && events_.top().when < duration) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.when;
      if (now_ >= link_.outage_at) {
        link_.outage_at = kNever;
        outage();
      }
      if (event.acknowledged) acknowledge(event);
      try_send(event.flow);
    }
    double total = 0;
    double squares = 0;
    for (const Flow& flow : flows_) {
      total += flow.delivered;
      squares += flow.delivered * flow.delivered;
    }
    return {.utilization = total * 8 * kPacketBytes / (link_.rate_bps * to_seconds(duration - half)),
            .fairness = total * total / (static_cast<double>(flows_.size()) * squares),
            .queue_seconds = to_seconds(worst_queue_)};
  }

  void measure_from(Nanos when) { measure_from_ = when; }

 private:
  struct Flow {
    Flow(const CongestionOptions& options, std::uint64_t seed) : control(options, seed) {}
    Control control;
    unsigned in_flight = 0;
    Nanos pace_until = 0;
    Nanos answered = 0;  ///< when the last acknowledgement arrives
    double delivered = 0;
  };
  struct Event {
    Nanos when;
    std::size_t flow;
    Nanos sent;
    bool acknowledged;
    bool marked;
    bool operator>(const Event& other) const { return when > other.when; }
  };

  // As in Requester::can_send and next_packet.
  void try_send(std::size_t index) {
    Flow& flow = flows_[index];
    for (;;) {
      const double window = flow.control.window();
      if (window >= 1.0 ? flow.in_flight + 1 > window : flow.in_flight > 0) return;
      if (window < 1.0) {
        if (now_ < flow.pace_until) {
          events_.push({flow.pace_until, index, 0, false, false});
          return;
        }
        flow.pace_until = now_ + flow.control.draw_pacing_interval();
      }
      ++flow.in_flight;
      const Nanos starts = std::max(now_, busy_until_);
      if (now_ >= measure_from_) worst_queue_ = std::max(worst_queue_, starts - now_);
      busy_until_ = starts + packet_time_;
      const bool marked = static_cast<double>(starts - now_) > link_.mark_above * static_cast<double>(packet_time_);
      const auto late = static_cast<Nanos>(random_.uniform() * static_cast<double>(link_.jitter));
      flow.answered = std::max(flow.answered, busy_until_ + link_.base_rtt + late);
      events_.push({flow.answered, index, now_, true, marked});
    }
  }

  void outage() {
    for (Flow& flow : flows_) {
      flow.control.on_timeout(now_, false);
      flow.control.on_timeout(now_, true);
      flow.control.on_gap(now_ + 200 * kMillisecond);  // no part of the same event
    }
  }

  void acknowledge(const Event& event) {
    Flow& flow = flows_[event.flow];
    const bool limited = flow.in_flight + 1.0 > flow.control.window();
    const Nanos rtt = now_ - event.sent;
    flow.control.on_marks(now_, 1, event.marked ? 1 : 0);
    flow.control.on_ack(now_, 1, rtt, link_.max_base == kNever ? base_rtt_ : kNever, limited && !event.marked);
    base_rtt_ = std::min(base_rtt_, rtt);
    --flow.in_flight;
    if (now_ >= measure_from_) ++flow.delivered;
  }

  Bottleneck link_;
  CongestionOptions options_;
  Nanos packet_time_;
  std::vector<Flow> flows_;
  SplitMix64 random_{1};
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Nanos now_ = 0;
  Nanos busy_until_ = 0;
  Nanos base_rtt_ = kNever;
  Nanos measure_from_ = 0;
  Nanos worst_queue_ = 0;
};

Outcome simulate(const Bottleneck& link, Nanos duration = 8 * kSecond) {
  Simulation simulation(link);
  simulation.measure_from(duration / 2);
  return simulation.run(duration);
}

TEST_CASE("with a target queue of 0 the window stays finite") {
  CongestionOptions options;
  options.target_queue = 0;
  options.initial_window = 0.5;
  Control control(options);
  constexpr Nanos kRtt = 100 * kMicrosecond;
  control.on_gap(0);
  for (Nanos t = kRtt; t < 100 * kRtt; t += kRtt) {
    control.on_ack(t, 1, kRtt, kRtt, true);
    REQUIRE(control.window() >= DelayControl::kMinWindow);
    REQUIRE(control.pacing_interval() >= 0);
  }
}

TEST_CASE("a bottleneck is filled by one flow and by many, from 10 Mbit/s to 1 Gbit/s, at several round trips") {
  for (const double rate : {10e6, 100e6, 1000e6}) {
    for (const Nanos base_rtt : {50 * kMicrosecond, 1 * kMillisecond, 10 * kMillisecond}) {
      for (const unsigned flows : {1U, 2U, 8U, 64U}) {
        CAPTURE(rate);
        CAPTURE(to_seconds(base_rtt));
        CAPTURE(flows);
        // As in target_queue: a dozen packets at line rate, at least 2 ms.
        const Nanos target = std::max(2 * kMillisecond, from_seconds(12 * 8 * kPacketBytes / rate));
        const Outcome outcome =
            simulate({.rate_bps = rate, .base_rtt = base_rtt, .target_queue = target, .flows = flows});
        CHECK(outcome.utilization >= 0.9);
        CHECK(outcome.utilization <= 1.001);
        CHECK(outcome.fairness >= 0.6);
        // The part that flow scaling adds to the target of small windows, and one packet of every flow.
        const double packets = flows * 8 * kPacketBytes / rate;
        CHECK(outcome.queue_seconds <= 3 * to_seconds(target) + to_seconds(base_rtt) + packets);
      }
    }
  }
}

TEST_CASE("more flows than packets in flight space their packets and still fill the link") {
  // 8 devices of 8 lanes without a line rate, so that the target is 2 ms of queue: 6 packets at 100 Mbit/s.
  for (const unsigned flows : {16U, 64U, 256U}) {
    CAPTURE(flows);
    const Outcome outcome =
        simulate({.rate_bps = 100e6, .base_rtt = 200 * kMicrosecond, .target_queue = 2 * kMillisecond, .flows = flows});
    CHECK(outcome.utilization >= 0.9);
  }
}

TEST_CASE("later flows get the same share as earlier ones") {
  for (const unsigned flows : {2U, 8U, 16U, 32U, 64U}) {
    for (const Nanos start_gap : {Nanos{0}, 10 * kMillisecond, 100 * kMillisecond}) {
      CAPTURE(flows);
      CAPTURE(to_seconds(start_gap));
      const Nanos target = from_seconds(12 * 8 * kPacketBytes / 100e6);
      const Outcome outcome = simulate({.rate_bps = 100e6,
                                        .base_rtt = 300 * kMicrosecond,
                                        .target_queue = target,
                                        .flows = flows,
                                        .start_gap = start_gap,
                                        .max_base = target / 32},
                                       20 * kSecond);
      CHECK(outcome.utilization >= 0.97);
      CHECK(outcome.fairness >= 0.95);
    }
  }
}

TEST_CASE("after an outage flows fill the link again, also where it marks") {
  for (const double mark_above : {std::numeric_limits<double>::infinity(), 5.0}) {
    for (const double rate : {20e6, 100e6, 1e9}) {
      for (const unsigned flows : {1U, 2U}) {
        CAPTURE(mark_above);
        CAPTURE(rate);
        CAPTURE(flows);
        const Nanos target = std::max(2 * kMillisecond, from_seconds(12 * 8 * kPacketBytes / rate));
        const Outcome outcome = simulate({.rate_bps = rate,
                                          .base_rtt = 300 * kMicrosecond,
                                          .target_queue = target,
                                          .flows = flows,
                                          .max_base = target / 32,
                                          .mark_above = mark_above,
                                          .jitter = 100 * kMicrosecond,
                                          .outage_at = 2 * kSecond},
                                         4 * kSecond);
        CHECK(outcome.utilization >= 0.95);  // of the two seconds after it
      }
    }
  }
}

TEST_CASE("marks keep the queue of a link near where it marks, with and without a known rate") {
  for (const bool rate_known : {false, true}) {
    for (const unsigned flows : {1U, 2U, 8U, 32U, 128U}) {
      CAPTURE(rate_known);
      CAPTURE(flows);
      constexpr double kRate = 1e9;
      constexpr double kMarkAbove = 10;
      const Bottleneck link{.rate_bps = kRate,
                            .base_rtt = 200 * kMicrosecond,
                            .target_queue = 20 * kMillisecond,  // delay alone would allow a far longer queue
                            .flows = flows,
                            .mark_above = kMarkAbove,
                            .rate_known = rate_known};
      const Outcome outcome = simulate(link);
      CHECK(outcome.utilization >= 0.9);
      CHECK(outcome.fairness >= 0.8);
      // Every flow may add a few packets within the round trip that a mark takes.
      CHECK(outcome.queue_seconds <= (kMarkAbove + 3 * flows) * 8 * kPacketBytes / kRate);
    }
  }
}

TEST_CASE("few and many flows share a link that marks evenly, also those that start late") {
  for (const bool rate_known : {false, true}) {
    for (const unsigned flows : {2U, 8U, 32U}) {
      for (const Nanos start_gap : {Nanos{0}, 50 * kMillisecond}) {
        CAPTURE(rate_known);
        CAPTURE(flows);
        CAPTURE(start_gap);
        const Outcome outcome = simulate({.rate_bps = 100e6,
                                          .base_rtt = 200 * kMicrosecond,
                                          .target_queue = 4 * kMillisecond,
                                          .flows = flows,
                                          .start_gap = start_gap,
                                          .mark_above = 10,
                                          .rate_known = rate_known,
                                          .jitter = 300 * kMicrosecond});
        CHECK(outcome.utilization >= 0.97);
        CHECK(outcome.fairness >= (flows < 32 ? 0.95 : 0.85));
      }
    }
  }
}

}  // namespace
}  // namespace paralet
