// SPDX-License-Identifier: Apache-2.0
// Laws of congestion control: their list, and the law fixed_window.
#include <algorithm>
#include <set>

#include "rc_qp_link.hpp"
#include "soft/congestion_control.hpp"
#include "soft/delay_control.hpp"

namespace paralet::rc_qp_test {
namespace {

TEST_CASE("every law has a name of its own, and delay is the default") {
  const auto& laws = congestion_laws();
  CHECK(laws.front() == "delay");
  CHECK(CongestionOptions{}.law == "delay");
  CHECK(std::set(laws.begin(), laws.end()).size() == laws.size());
  const RoundTrip round_trip;
  for (const std::string& name : laws) {
    CongestionOptions options{.law = name, .initial_window = 4, .fixed_window = 7};
    const auto law = make_congestion_control(options, round_trip, 1);
    CHECK(law->window() == (name == "fixed_window" ? 7 : 4));
  }
}

TEST_CASE("a fixed window stays, whatever happens") {
  const CongestionOptions options{.law = "fixed_window", .fixed_window = 7};
  RoundTrip round_trip;
  const auto law = make_congestion_control(options, round_trip, 1);
  round_trip.sample(kSecond, kSecond);
  law->on_marks(kSecond, 7, 7);
  law->on_delivery({.now = kSecond, .packets = 7, .rtt = kSecond, .base_rtt = kMillisecond, .limited = true});
  law->on_gap(2 * kSecond);
  law->on_losses(3 * kSecond, 7);
  for (const bool repeated : {false, true}) law->on_timeout(4 * kSecond, repeated);
  law->resume();
  CHECK(law->window() == 7);
}

TEST_CASE("every law carries messages over a path that loses and delays packets, with both kinds of recovery") {
  for (const std::string& law : congestion_laws()) {
    for (const bool selective : {false, true}) {
      CAPTURE(law);
      CAPTURE(selective);
      Transfer transfer({.path_mtu = 256, .law = law.c_str(), .probe_after = 2 * kMillisecond, .selective = selective});
      transfer.link.data_fate = [](const wire::Packet&, std::size_t index) {
        if (index % 7 == 3) return std::vector<Nanos>();
        return std::vector{index % 5 == 1 ? 3 * kOneWay : kOneWay};
      };
      transfer.link.run();
      transfer.check();
      CHECK(transfer.link.requester().counters().retransmits > 0);
    }
  }
}

TEST_CASE("round trips are smoothed as in RFC 6298") {
  RoundTrip round_trip;
  CHECK(round_trip.smallest() == kNever);
  CHECK(round_trip.timeout(0) == 400 * kMillisecond);
  round_trip.sample(1, 8 * kMillisecond);
  CHECK(round_trip.smoothed() == 8 * kMillisecond);
  CHECK(round_trip.timeout(0) == 24 * kMillisecond);  // R + 4 R / 2
  round_trip.sample(2, 16 * kMillisecond);
  CHECK(round_trip.smoothed() == 9 * kMillisecond);            // 7/8 of 8 and 1/8 of 16
  CHECK(round_trip.timeout(0) == (9 + 4 * 5) * kMillisecond);  // variation: 3/4 of 4 and 1/4 of 8
  CHECK(round_trip.smallest() == 8 * kMillisecond);
  CHECK(round_trip.last() == 16 * kMillisecond);
  CHECK(round_trip.sampled_at() == 2);
}

}  // namespace
}  // namespace paralet::rc_qp_test
