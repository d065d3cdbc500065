// SPDX-License-Identifier: Apache-2.0
// RC QP: timeouts, early probes, the retry time and round-trip samples.
#include "rc_qp_link.hpp"

namespace paralet::rc_qp_test {
namespace {

/// A QP with early probes that has measured its path.
struct EarlyProbe {
  explicit EarlyProbe(std::size_t packets)
      : link({.path_mtu = 256, .initial_window = 64, .probe_after = kMillisecond}),
        data(test::random_fill(7, packets * 256)),
        target(link, data.size()) {
    link.requester().post(write(data, target));
    link.run();
    link.requester().post(write(data, target, 2));
    packets_before = link.requester().counters().tx_packets;
    window_before = link.requester().control().window();
  }
  void check() {
    check_sent(link, link.sent(), 2);
    CHECK(target.bytes == data);
    CHECK(link.requester().counters().timeouts == 0);
  }
  Link link;
  Bytes data;
  Target target;
  std::uint64_t packets_before;
  double window_before;
};

TEST_CASE("acknowledgements lost at the end cost one probe, but no timeout and no window") {
  EarlyProbe early(40);
  const Nanos begin = early.link.now();
  const Nanos deaf = begin + 2 * kOneWay;
  early.link.ack_fate = [&](const wire::Packet&, std::size_t) {
    return early.link.now() < deaf ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  early.link.run();
  early.check();
  CHECK(early.link.now() - begin < 5 * kMillisecond);  // the timeout's floor
  CHECK(early.link.requester().counters().retransmits == 1);
  CHECK(early.link.requester().control().window() >= early.window_before);
}

TEST_CASE("an early probe finds a lost last packet and a lost NAK") {
  for (const std::size_t first_lost : {0, 17, 39}) {
    CAPTURE(first_lost);
    EarlyProbe early(40);
    const std::uint64_t before = early.packets_before;
    early.link.data_fate = [&](const wire::Packet&, std::size_t index) {
      return index >= before + first_lost && index < before + 40 ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    early.link.run();
    early.check();
  }
  EarlyProbe early(40);
  early.link.data_fate = [&](const wire::Packet&, std::size_t index) {
    return index == early.packets_before + 5 ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  bool refused = false;
  early.link.ack_fate = [&](const wire::Packet& packet, std::size_t) {
    const bool lost = !refused && packet.syndrome == code(Syndrome::kNakSequence);
    refused = refused || lost;
    return lost ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  early.link.run();
  early.check();
  CHECK(refused);
  CHECK(early.link.requester().control().window() < early.window_before);  // packets were lost
}

TEST_CASE("after one unanswered probe the QP waits for the timeout") {
  EarlyProbe early(1);
  std::vector<Nanos> tries;
  const Nanos heals = early.link.now() + 30 * kMillisecond;
  early.link.data_fate = [&](const wire::Packet&, std::size_t) {
    tries.push_back(early.link.now());
    return early.link.now() < heals ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  early.link.run();
  check_sent(early.link, early.link.sent(), 2);
  REQUIRE(tries.size() >= 4);
  CHECK(tries[1] - tries[0] < 2 * kMillisecond);
  for (std::size_t i = 2; i < tries.size(); ++i) CHECK(tries[i] - tries[i - 1] >= 5 * kMillisecond);
  CHECK(early.link.requester().counters().timeouts == tries.size() - 2);
}

TEST_CASE("without any answer the QP fails after the retry time, and all queued requests fail") {
  LinkOptions options{.path_mtu = 256};
  options.retry_time = 3 * kSecond;
  Transfer transfer(options);
  transfer.link.data_fate = [](const wire::Packet&, std::size_t) { return std::vector<Nanos>{}; };
  const Nanos start = transfer.link.now();
  transfer.link.run();
  CHECK(transfer.link.requester().failed());
  const double waited = to_seconds(transfer.link.now() - start);
  CHECK(waited >= 3);
  CHECK(waited <= 3.001);
  REQUIRE(transfer.link.sent().size() == 3);
  CHECK(transfer.link.sent()[0].status == Status::kRetryExceeded);
  CHECK(transfer.link.sent()[1].status == Status::kFlushed);
  CHECK(transfer.link.sent()[2].status == Status::kFlushed);
  CHECK(transfer.link.requester().deadline() == kNever);
  CHECK_FALSE(transfer.link.requester().next_packet(transfer.link.now()));
}

TEST_CASE("NAK-only peers do not extend the retry time") {
  Link link({.path_mtu = 256, .retry_time = 3 * kSecond});
  const Bytes data = test::random_fill(1, 1000);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  const Nanos start = link.now();
  Requester& requester = link.requester();
  Nanos now = start;
  while (!requester.failed() && now < start + 10 * kSecond) {
    now += 10 * kMillisecond;
    while (requester.next_packet(now)) {
    }
    wire::Packet nak;
    nak.psn = requester.options().first_psn;
    nak.syndrome = static_cast<std::uint8_t>(wire::Syndrome::kNakSequence);
    requester.on_acknowledge(nak, now, kNever);
    requester.on_timer(now);
  }
  CHECK(requester.failed());
  CHECK(to_seconds(now - start) == doctest::Approx(3).epsilon(0.02));
}

TEST_CASE("timeouts back off") {
  Transfer transfer({.path_mtu = 256, .retry_time = 1000 * kSecond});
  std::vector<Nanos> first_packets;
  transfer.link.data_fate = [&](const wire::Packet& packet, std::size_t) {
    if (packet.psn == 0) first_packets.push_back(transfer.link.now());
    return std::vector<Nanos>{};
  };
  transfer.link.run(300 * kSecond);
  REQUIRE(first_packets.size() >= 5);
  for (std::size_t i = 2; i < std::min<std::size_t>(first_packets.size(), 6); ++i) {
    const double before = to_seconds(first_packets[i - 1] - first_packets[i - 2]);
    CHECK(to_seconds(first_packets[i] - first_packets[i - 1]) ==
          doctest::Approx(std::min(2 * before, 1.0)).epsilon(0.05));
  }
}

TEST_CASE("a QP survives any silence shorter than the retry time") {
  Transfer transfer({.path_mtu = 256, .retry_time = 10 * kSecond});
  const Nanos heals = transfer.link.now() + 5 * kSecond;
  transfer.link.data_fate = [&](const wire::Packet&, std::size_t index) {
    return index >= 10 && transfer.link.now() < heals ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  transfer.link.run();
  transfer.check();
}

TEST_CASE("many timeouts fit into the retry time despite back-off") {
  for (const Nanos retry_time : {10 * kSecond, 60 * kSecond}) {
    CAPTURE(retry_time);
    Link link({.retry_time = retry_time});
    const Bytes data = test::random_fill(1, 100);
    Target target(link, data.size());
    std::vector<Nanos> tries;
    link.data_fate = [&](const wire::Packet&, std::size_t) {
      tries.push_back(link.now());
      return std::vector<Nanos>{};
    };
    link.requester().post(write(data, target));
    link.run();
    CHECK(link.sent().at(0).status == Status::kRetryExceeded);
    REQUIRE(tries.size() >= 16);
    CHECK(tries.back() - tries[tries.size() - 2] <= kSecond);
  }
}

TEST_CASE("any acknowledged packet of a batch gives a round-trip sample") {
  // A receiver of a whole batch acknowledges its last packet, which may not have requested it.
  constexpr std::uint32_t kPackets = 64;
  const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
  for (std::uint32_t acknowledged = 0; acknowledged < kPackets; ++acknowledged) {
    CAPTURE(acknowledged);
    Link link({.path_mtu = 256, .initial_window = kPackets});
    Target target(link, data.size());
    link.requester().post(write(data, target));
    for (std::uint32_t i = 0; i < kPackets; ++i) REQUIRE(link.requester().next_packet(kSecond + i));
    const Parsed ack(serialize(wire::ack_header(kRequesterQpn, acknowledged, wire::kAckNoCredits, 0)));
    link.requester().on_acknowledge(ack.packet, kSecond + kMillisecond, kNever);
    CHECK(link.requester().round_trip().smallest() == kMillisecond - acknowledged);
  }
}

TEST_CASE("a retransmitted packet gives no round-trip sample") {
  Link link({.path_mtu = 256});
  const Bytes data = test::random_fill(1, 256);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  REQUIRE(link.requester().next_packet(kSecond));
  link.requester().on_timer(10 * kSecond - 1);
  REQUIRE(link.requester().counters().timeouts == 1);
  REQUIRE(link.requester().next_packet(10 * kSecond));
  const Parsed ack(serialize(wire::ack_header(kRequesterQpn, 0, wire::kAckNoCredits, 0)));
  link.requester().on_acknowledge(ack.packet, 10 * kSecond + 1, kNever);
  CHECK(link.sent().size() == 1);
  CHECK(link.requester().round_trip().smallest() == kNever);
}

TEST_CASE("a slow peer costs one retransmission, but neither window nor rate") {
  constexpr std::uint64_t kPackets = 300;
  Link link({.path_mtu = 256, .initial_window = 64});
  const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  // All acknowledgements of the first window are late, as when the peer's process did not run.
  const Nanos wakes = link.now() + 700 * kMillisecond;
  link.data_fate = [&](const wire::Packet&, std::size_t) { return std::vector{std::max(kOneWay, wakes - link.now())}; };
  link.run();
  check_sent(link, link.sent(), 1);
  CHECK(target.bytes == data);
  const QpCounters& c = link.requester().counters();
  CHECK(c.timeouts >= 1);
  CHECK(c.retransmits == c.timeouts);
  CHECK(c.naks == 0);
  CHECK(link.requester().control().window() >= 64);
}

TEST_CASE("lost acknowledgements do not distort the round trip") {
  constexpr std::uint64_t kPackets = 64;
  Link link({.path_mtu = 256, .initial_window = kPackets});
  const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  link.run();
  const Nanos usual = link.requester().round_trip().smoothed();
  REQUIRE(usual > 0);
  // The return path is dead for a while: the answer to a probe acknowledges packets that arrived long ago.
  const Nanos heals = link.now() + 700 * kMillisecond;
  link.ack_fate = [&](const wire::Packet&, std::size_t) {
    return link.now() < heals ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  link.requester().post(write(data, target, 1));
  link.run();
  CHECK(link.requester().counters().timeouts >= 1);
  CHECK(link.requester().round_trip().smoothed() <= 2 * usual);
}

TEST_CASE("after a spurious timeout sending continues behind several requests, with correct sizes") {
  Link link({.path_mtu = 256, .initial_window = 64});
  const Bytes data = test::random_fill(1, 700);
  Target target(link, data.size());
  for (std::uint32_t i = 0; i < 100; ++i) link.requester().post(write(data, target, i));
  const Nanos wakes = link.now() + 700 * kMillisecond;
  link.data_fate = [&](const wire::Packet&, std::size_t) { return std::vector{std::max(kOneWay, wakes - link.now())}; };
  link.run();
  CHECK(link.sent().size() == 100);
  CHECK(link.requester().counters().timeouts >= 1);
}

TEST_CASE("after a justified timeout lost packets are sent again and the window is smaller") {
  constexpr std::uint64_t kPackets = 64;
  for (const std::size_t lost_from : {0, 1, 40, 63}) {
    CAPTURE(lost_from);
    Link link({.path_mtu = 256, .initial_window = kPackets});
    const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
    Target target(link, data.size());
    link.requester().post(write(data, target));
    link.data_fate = [&](const wire::Packet&, std::size_t index) {
      return index >= lost_from && index < kPackets ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    link.run();
    check_sent(link, link.sent(), 1);
    CHECK(target.bytes == data);
    // The first packet of the window may have arrived without having requested an acknowledgement. It is sent again.
    CHECK(link.requester().counters().retransmits >= kPackets - lost_from);
    CHECK(link.requester().counters().retransmits <= kPackets - lost_from + 1);
    CHECK(link.requester().control().window() < kPackets);
  }
}

TEST_CASE("a path change retransmits packets in flight at once, and they are delivered once") {
  constexpr std::uint64_t kPackets = 32;
  for (const std::uint64_t arrived : {0U, 5U, 32U}) {
    CAPTURE(arrived);
    Link link({.path_mtu = 256, .initial_window = kPackets});
    const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
    Target target(link, data.size());
    link.requester().post(write(data, target));
    link.data_fate = [&](const wire::Packet&, std::size_t index) {
      return index >= arrived && index < kPackets ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    link.run(link.now() + 3 * kOneWay);  // what arrived is acknowledged, long before any timeout
    CHECK(link.requester().counters().timeouts == 0);
    const bool all = link.requester().all_acknowledged();
    link.requester().on_path_changed(link.now());
    link.run(link.now() + 3 * kOneWay);
    check_sent(link, link.sent(), 1);
    CHECK(target.bytes == data);
    CHECK(link.requester().counters().timeouts == 0);
    CHECK((link.requester().counters().retransmits == 0) == all);
  }
}

}  // namespace
}  // namespace paralet::rc_qp_test
