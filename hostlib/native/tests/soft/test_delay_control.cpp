// SPDX-License-Identifier: Apache-2.0
// The rules of congestion control by delay, one by one.
#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <deque>

#include "control.hpp"

namespace paralet {
namespace {

using test::Control;

// -- rules one by one --------------------------------------------------------------------------------------------

constexpr Nanos kBase = 1 * kMillisecond;
constexpr Nanos kTarget = 1 * kMillisecond;

/// With options that stay as long as the tests run.
Control with(const CongestionOptions& options) {
  static std::deque<CongestionOptions> kept;
  return Control(kept.emplace_back(options));
}

Control control(double initial_window = 4, double max_window = 512) {
  return with({.target_queue = kTarget, .initial_window = initial_window, .max_window = max_window});
}

/// A control that has left exponential growth, with its window.
Control settled(double window) {
  Control out = control(2 * window);
  out.on_ack(kSecond, 1, kBase, kBase, false);
  out.on_gap(2 * kSecond);
  CHECK(out.window() == doctest::Approx(window));
  return out;
}

TEST_CASE("the window doubles per round trip until there is a queue") {
  Control c = control(4);
  Nanos now = 0;
  for (double expected = 8; expected <= 64; expected *= 2) {
    now += kBase;
    c.on_ack(now, static_cast<unsigned>(c.window()), kBase, kBase, true);
    CHECK(c.window() == doctest::Approx(expected));
  }
  // Three quarters of the target: the queue is not empty.
  for (int i = 0; i < 2; ++i) c.on_ack(now += kBase, 1, kBase + kTarget * 3 / 4, kBase, false);
  const double before = c.window();
  c.on_ack(now + kBase, 8, kBase, kBase, true);
  CHECK(c.window() == doctest::Approx(before + 8 / before));  // additive from now on
}

TEST_CASE("below the target the window grows by one packet per round trip") {
  Control c = settled(10);
  const double before = c.window();
  for (int i = 0; i < 10; ++i) c.on_ack(3 * kSecond + i, 1, kBase, kBase, true);
  CHECK(c.window() == doctest::Approx(before + 1).epsilon(0.01));
}

TEST_CASE("the window of a sender that it does not limit does not grow") {
  Control c = settled(10);
  for (int i = 0; i < 100; ++i) c.on_ack(3 * kSecond + i, 1, kBase, kBase, false);
  CHECK(c.window() == doctest::Approx(10));
}

TEST_CASE("acknowledgements without a sample change nothing") {
  Control c = settled(10);
  c.on_ack(3 * kSecond, 100, 0, kBase, true);
  CHECK(c.window() == doctest::Approx(10));
  CHECK(c.smoothed_rtt() == kBase);
}

TEST_CASE("the window shrinks at most once per round trip, for any combination of reasons") {
  Control c = settled(64);
  Nanos now = 3 * kSecond;
  c.on_gap(now);
  CHECK(c.window() == doctest::Approx(32));
  for (int i = 1; i < 20; ++i) {
    c.on_gap(now + i);
    c.on_ack(now + i, 1, 10 * kBase, kBase, false);
    c.on_timeout(now + i, false);
  }
  CHECK(c.window() == doctest::Approx(32));
  now += 2 * c.smoothed_rtt();
  c.on_gap(now);
  CHECK(c.window() == doctest::Approx(16));
}

TEST_CASE("the decrease is proportional to the excess delay, and at most one half") {
  Control slightly = settled(16);
  slightly.on_ack(3 * kSecond - 1, 1, 2'500'000, kBase, false);  // a single sample is ignored
  // The target of a window of 16 is 1 + 1/4 target queues above the base: 2.25 ms.
  slightly.on_ack(3 * kSecond, 1, 2'500'000, kBase, true);
  CHECK(slightly.window() == doctest::Approx(16 * (1 - 0.8 * 0.25 / 2.5)));
  Control badly = settled(16);
  badly.on_ack(3 * kSecond - 1, 1, 1000 * kBase, kBase, false);
  badly.on_ack(3 * kSecond, 1, 1000 * kBase, kBase, true);
  CHECK(badly.window() == doctest::Approx(8));
}

TEST_CASE("one late sample is ignored, two in a row are a queue") {
  Control c = settled(16);
  for (int i = 0; i < 10; ++i) {
    c.on_ack(3 * kSecond + i * kSecond, 1, i % 2 == 0 ? 10 * kBase : kBase, kBase, false);
    CHECK(c.window() == doctest::Approx(16));
  }
  for (int i = 0; i < 2; ++i) c.on_ack(20 * kSecond, 1, 10 * kBase, kBase, false);
  CHECK(c.window() < 16);
}

TEST_CASE("the window stays within its limits") {
  Control up = control(4, 100);
  for (int i = 1; i < 100; ++i) up.on_ack(i * kBase, 50, kBase, kBase, true);
  CHECK(up.window() == doctest::Approx(100));
  Control down = settled(4);
  for (int i = 1; i < 100; ++i) down.on_timeout(3 * kSecond + i * kSecond, i > 1);
  CHECK(down.window() == doctest::Approx(DelayControl::kMinWindow));
}

TEST_CASE("below one packet, packets are spaced by the target round trip plus or minus one half") {
  Control c = settled(1);
  CHECK(c.pacing_interval() == 0);
  CHECK(c.draw_pacing_interval() == 0);
  c.on_gap(4 * kSecond);
  CHECK(c.window() == doctest::Approx(0.5));
  const Nanos mean = c.pacing_interval();
  CHECK(mean == 2 * (kBase + 2 * kTarget));
  double sum = 0;
  for (int i = 0; i < 1000; ++i) {
    const Nanos drawn = c.draw_pacing_interval();
    CHECK(drawn >= mean / 2);
    CHECK(drawn <= mean * 3 / 2);
    sum += static_cast<double>(drawn);
  }
  CHECK(sum / 1000 == doctest::Approx(mean).epsilon(0.05));
}

TEST_CASE("below one packet, the window follows the distance to the target in steps of at most a tenth") {
  const auto step = [](Nanos rtt) {
    Control c = settled(0.5);
    c.on_ack(3 * kSecond, 1, rtt, kBase, true);
    return c.window() / 0.5;
  };
  const auto target = static_cast<Nanos>(static_cast<double>(kTarget) * (1 + 1 / std::sqrt(0.5)));
  CHECK(step(kBase) == doctest::Approx(1.1));
  CHECK(step(kBase + target / 2) == doctest::Approx(1.05));
  CHECK(step(kBase + target) == doctest::Approx(1.0));
  CHECK(step(kBase + target * 3 / 2) == doctest::Approx(0.95));
  CHECK(step(100 * kBase) == doctest::Approx(0.9));
}

TEST_CASE("after a timeout, small windows grow by half a packet until a packet sent later finds a queue") {
  Control c = settled(0.4);
  c.on_timeout(3 * kSecond, false);
  CHECK(c.window() == doctest::Approx(0.2));
  c.on_ack(3 * kSecond + kBase, 1, 50 * kTarget, kBase, true);  // sent before the timeout
  CHECK(c.window() < 0.2);
  const double before = c.window();
  c.on_ack(3 * kSecond + 2 * kBase, 1, kBase / 2, kBase, true);
  CHECK(c.window() == doctest::Approx(before + 0.5));
  c.on_ack(4 * kSecond, 1, kBase / 2 + kTarget, kBase, true);
  const double filled = c.window();
  c.on_ack(5 * kSecond, 1, kBase / 2, kBase, true);
  CHECK(c.window() == doctest::Approx(1.1 * filled));
}

TEST_CASE("after repeated timeouts the window doubles from its minimum") {
  Control c = settled(64);
  for (int i = 0; i < 10; ++i) c.on_timeout(3 * kSecond + i * kSecond, i > 0);
  CHECK(c.window() == doctest::Approx(DelayControl::kMinWindow));
  CHECK(c.pacing_interval() == doctest::Approx(c.smoothed_rtt() / DelayControl::kMinWindow));
  for (int i = 0; i < 5; ++i) c.on_ack(20 * kSecond + i, 1, kBase, kBase, true);
  CHECK(c.window() == doctest::Approx(32 * DelayControl::kMinWindow));
}

TEST_CASE(
    "after an outage the window returns to half of what it was, at most a packet, also where others fill a queue") {
  const auto after = [](double before) {
    Control c = settled(before);
    for (int i = 0; i < 10; ++i) c.on_timeout(3 * kSecond + i * kSecond, i > 0);
    for (int i = 0; i < 3; ++i) c.on_ack(20 * kSecond + i * kSecond, 1, kBase + kTarget, kBase, true);
    return c.window();
  };
  CHECK(after(4) > 1);
  CHECK(after(0.8) > 0.4);
  CHECK(after(0.1) < 0.1);  // one of many lanes, which fill the queue together
}

TEST_CASE("a second timeout in a row reduces the window to at most half a packet") {
  Control c = settled(64);
  c.on_timeout(3 * kSecond, false);
  CHECK(c.window() == doctest::Approx(32));
  c.on_timeout(4 * kSecond, true);
  CHECK(c.window() == doctest::Approx(0.5));
}

TEST_CASE("the retransmission timeout follows the round trip and its variance") {
  Control c = control();
  const Nanos floor = 5 * kMillisecond;
  const Nanos unknown = c.timeout(floor);
  CHECK(unknown >= 100 * kMillisecond);
  CHECK(c.timeout(2 * unknown) == 2 * unknown);
  c.on_ack(0, 1, 8 * kMillisecond, kBase, false);
  CHECK(c.timeout(floor) == 8 * kMillisecond + 4 * 4 * kMillisecond);  // RFC 6298: R + 4 R/2 at first
  for (int i = 0; i < 200; ++i) c.on_ack(i, 1, 8 * kMillisecond, kBase, false);
  CHECK(c.timeout(floor) == doctest::Approx(8 * kMillisecond).epsilon(0.01));
  CHECK(c.timeout(50 * kMillisecond) == 50 * kMillisecond);
  CHECK(c.min_rtt() == 8 * kMillisecond);
}

// -- scheduling delay without a line rate -------------------------------------------------------------------------

TEST_CASE("without a line rate, delay alone reduces the window only to its floor") {
  CongestionOptions options;
  options.target_queue = 2 * kMillisecond;
  options.max_window = 128;
  options.delay_floor = 32;
  Control control(options);
  Nanos t = kSecond;
  const auto round = [&](Nanos rtt) {
    const double before = control.window();
    control.on_ack(t += rtt, static_cast<unsigned>(std::max(1.0, before)), rtt, 20 * kMicrosecond, true);
  };
  for (int i = 0; i < 100; ++i) round(20 * kMicrosecond);
  CHECK(control.window() == 128);
  for (int i = 0; i < 100; ++i) round(60 * kMillisecond);
  CHECK(control.window() == 32);
  // Loss reduces it further, and growth afterwards ignores the delay.
  for (int i = 0; i < 4; ++i) control.on_gap(t += kSecond);
  CHECK(control.window() == 2);
  for (int i = 0; i < 60; ++i) round(60 * kMillisecond);
  CHECK(control.window() >= 32);
  // Packets are not spaced, because the spacing needs a line rate.
  for (int i = 0; i < 10; ++i) control.on_timeout(t += kSecond, i > 0);
  CHECK(control.window() == 1);
  CHECK(control.pacing_interval() == 0);
}

TEST_CASE("without a line rate, the window grows to the size of a message that got through") {
  CongestionOptions options;
  options.initial_window = 1;
  options.max_window = 128;
  options.delay_floor = 65;
  Control control(options);
  Nanos t = kSecond;
  // A message of 65 packets. The last acknowledgements come when the window is no longer full.
  const auto acknowledge = [&](unsigned packets, bool limited) {
    control.on_ack(t += 20 * kMicrosecond, packets, 20 * kMicrosecond, 20 * kMicrosecond, limited);
  };
  for (const unsigned packets : {1U, 2U, 4U, 8U, 16U, 16U}) acknowledge(packets, true);
  CHECK(control.window() == 48);
  acknowledge(16, false);
  acknowledge(2, false);
  CHECK(control.window() >= 65);
  // Acknowledgements without a sample, as of retransmitted packets, count for growth too.
  Control unmeasured(options);
  for (unsigned packets = 1; packets < 64; packets *= 2) unmeasured.on_ack(t, packets, 0, kNever, true);
  CHECK(unmeasured.window() == 64);
  // Above the floor only a full window grows.
  acknowledge(64, false);
  CHECK(control.window() <= 66);
  // A loss ends the doubling.
  control.on_gap(t += kSecond);
  const double after = control.window();
  acknowledge(16, false);
  CHECK(control.window() == after);
}

TEST_CASE("a round trip with marks reduces the window once, by half the average share of marked packets") {
  Control c = settled(64);
  Nanos now = 3 * kSecond;
  c.on_marks(now, 10, 0);
  CHECK(c.window() == doctest::Approx(64));
  CHECK(c.marked_share() == doctest::Approx(15.0 / 16));
  c.on_marks(now + 1, 10, 1);
  CHECK(c.window() == doctest::Approx(64 * (1 - 15.0 / 32)));
  const double once = c.window();
  for (Nanos t = 2; t < 20; ++t) c.on_marks(now + t, 10, 10);
  CHECK(c.window() == doctest::Approx(once));
  now += 2 * c.smoothed_rtt();
  c.on_marks(now, 10, 10);
  const double share = c.marked_share();
  CHECK(c.window() == doctest::Approx(once * (1 - share / 2)));
  // One decrease per round trip, whatever the reasons.
  c.on_gap(now + 1);
  c.on_ack(now + 2, 1, 10 * kBase, kBase, false);
  CHECK(c.window() == doctest::Approx(once * (1 - share / 2)));
}

TEST_CASE("rare marks cost little, and marks on everything take the window to its minimum") {
  Control rare = settled(100);
  Nanos now = 3 * kSecond;
  for (int i = 0; i < 200; ++i) rare.on_marks(now += 2 * kBase, 100, 0);
  for (int i = 0; i < 100; ++i) rare.on_marks(now += 2 * kBase, 100, 1);
  const double before = rare.window();
  rare.on_marks(now += 2 * kBase, 100, 1);
  CHECK(rare.window() / before == doctest::Approx(0.995).epsilon(0.001));
  Control all = settled(100);
  for (int i = 0; i < 200; ++i) all.on_marks(now += 2 * kBase, 100, 100);
  CHECK(all.window() == doctest::Approx(DelayControl::kMinWindow));
  // It recovers when they end.
  for (int i = 0; i < 2000; ++i) all.on_ack(now += kBase, 1, kBase, kBase, true);
  CHECK(all.window() > 10);
}

TEST_CASE("without a line rate, marks reduce the window below the floor and below one packet, which is then spaced") {
  CongestionOptions options;
  options.initial_window = 4;
  options.delay_floor = 65;
  Control c(options);
  Nanos now = kSecond;
  constexpr Nanos kRtt = 100 * kMicrosecond;
  const auto round = [&](unsigned marked) {
    const auto packets = static_cast<unsigned>(std::ceil(c.window()));
    now += 2 * kRtt;
    c.on_marks(now, packets, std::min(marked, packets));
    c.on_ack(now, packets, kRtt, kRtt, marked == 0);
  };
  for (int i = 0; i < 12; ++i) round(0);
  CHECK(c.window() == 512);
  for (int i = 0; i < 10; ++i) round(UINT_MAX);
  CHECK(c.window() < 65);
  // From there it grows by one packet per round trip, not back to the floor at once.
  const double before = c.window();
  round(0);
  CHECK(c.window() > before + 0.9);
  CHECK(c.window() < before + 1.2);
  for (int i = 0; i < 10; ++i) round(UINT_MAX);
  CHECK(c.window() < 1);
  CHECK(c.pacing_interval() == doctest::Approx(kRtt / c.window()));
  // A timeout does not make it larger.
  const double small = c.window();
  c.on_timeout(now += kSecond, false);
  c.on_timeout(now += kSecond, true);
  CHECK(c.window() <= small);
}

TEST_CASE("without a line rate, a queue in the network takes the window below the floor, and a slow host does not") {
  CongestionOptions options;
  options.initial_window = 128;
  options.max_window = 128;
  options.delay_floor = 65;
  options.network_queue = 1 * kMillisecond;
  Control c(options);
  Nanos now = kSecond;
  constexpr Nanos kRtt = 100 * kMicrosecond;
  const auto round = [&](Nanos in_network, Nanos in_hosts) {
    now += 2 * (kRtt + in_network + in_hosts);
    c.on_ack(now, static_cast<unsigned>(std::ceil(c.window())), kRtt + in_network + in_hosts, kRtt, true, in_hosts);
  };
  for (int i = 0; i < 10; ++i) round(0, 0);
  for (int i = 0; i < 20; ++i) round(0, 20 * kMillisecond);
  CHECK(c.window() == 65);
  for (int i = 0; i < 40; ++i) round(20 * kMillisecond, 0);
  CHECK(c.window() < 1);
  const Nanos spaced = c.pacing_interval();
  CHECK(spaced > kRtt);
  // When the queue has gone it grows, although hosts are slow, and by about a packet per round trip.
  for (int i = 0; i < 40; ++i) round(0, 20 * kMillisecond);
  const double before = c.window();
  CHECK(before > 1);
  round(0, 20 * kMillisecond);
  CHECK(c.window() > before);
  CHECK(c.window() <= before + 1.01);
}

TEST_CASE("with a line rate, the network's target holds beside that of hosts and network together") {
  const auto after = [](Nanos network_queue, Nanos in_network) {
    Control c = with({.target_queue = 2 * kMillisecond, .initial_window = 64, .network_queue = network_queue});
    Nanos now = kSecond;
    for (int i = 0; i < 40; ++i) {
      const Nanos queued = i < 5 ? 0 : in_network;
      c.on_ack(now += 10 * kMillisecond, 1, kBase + queued, kBase, false, Nanos{0});
    }
    return c.window();
  };
  CHECK(after(2 * kMillisecond, 1 * kMillisecond) == doctest::Approx(64));
  CHECK(after(200 * kMicrosecond, 1 * kMillisecond) < 64);
}

TEST_CASE("undoing a spurious timeout restores the window") {
  Control control = with({.initial_window = 40});
  control.on_timeout(kSecond, false);
  CHECK(control.window() == 20);
  control.on_timeout(2 * kSecond, true);
  control.on_timeout(3 * kSecond, true);
  CHECK(control.window() < 1);
  control.undo_timeout();
  CHECK(control.window() == 40);
}

}  // namespace
}  // namespace paralet
