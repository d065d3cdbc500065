// SPDX-License-Identifier: Apache-2.0
// RC QP: messages without loss, bursts, the window, and the life of requests.
#include "rc_qp_link.hpp"

namespace paralet::rc_qp_test {
namespace {

TEST_CASE("a WRITE with immediate data arrives complete and completes once on each side") {
  Link link;
  const Bytes data = test::random_fill(1, 5000);
  Target target(link, 5000);
  link.requester().post(write(data, target));
  link.run();
  CHECK(target.bytes == data);
  check_sent(link, link.sent(), 1);
  CHECK(link.sent()[0].byte_length == 5000);
  REQUIRE(link.received().size() == 1);
  CHECK(link.received()[0].kind == Completion::Kind::kReceivedWriteImm);
  CHECK(link.received()[0].byte_length == 5000);
  CHECK(link.received()[0].imm == 0xA0000001);
  CHECK(link.received()[0].qpn == kResponderQpn);
  const std::vector<std::uint8_t> expected{0x06, 0x07, 0x07, 0x07, 0x09};
  CHECK(link.opcodes() == expected);
  CHECK(link.requester().counters().tx_packets == 5);
  CHECK(link.requester().counters().tx_bytes == 5000);
  CHECK(link.requester().counters().retransmits == 0);
  CHECK(link.responder().counters().rx_packets == 5);
  CHECK(link.responder().counters().rx_bytes == 5000);
  CHECK(link.requester().all_acknowledged());
}

TEST_CASE("lengths around the path MTU, for every path MTU") {
  for (const std::uint32_t mtu : {256U, 512U, 1024U, 2048U, 4096U}) {
    for (const std::uint32_t length : {0U, 1U, 3U, 4U, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu - 1}) {
      CAPTURE(mtu);
      CAPTURE(length);
      Link link({.path_mtu = mtu});
      const Bytes data = test::random_fill(length, length);
      Target target(link, length + 8);
      link.requester().post(write(data, target));
      link.run();
      CHECK(std::equal(data.begin(), data.end(), target.bytes.begin()));
      CHECK(std::all_of(target.bytes.begin() + length, target.bytes.end(),
                        [](std::byte b) { return b == std::byte{0}; }));
      check_sent(link, link.sent(), 1);
      REQUIRE(link.received().size() == 1);
      CHECK(link.received()[0].byte_length == length);
      CHECK(link.opcodes().size() == std::max(1U, (length + mtu - 1) / mtu));
    }
  }
}

TEST_CASE("a WRITE without immediate data consumes no receive buffer and causes no completion at the responder") {
  Link link({.receive_buffers = 0});
  const Bytes data = test::random_fill(1, 3000);
  Target target(link, 3000);
  link.requester().post(write(data, target, 1, WorkKind::kWrite));
  link.run();
  CHECK(target.bytes == data);
  check_sent(link, link.sent(), 1);
  CHECK(link.received().empty());
  const std::vector<std::uint8_t> expected{0x06, 0x07, 0x08};
  CHECK(link.opcodes() == expected);
}

TEST_CASE("SENDs of one and several packets arrive in receive buffers in order") {
  Link link({.path_mtu = 256, .receive_bytes = 1024});
  const std::array<Bytes, 4> messages{test::random_fill(1, 40), test::random_fill(2, 1024), Bytes{},
                                      test::random_fill(3, 257)};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    link.requester().post({.kind = WorkKind::kSend,
                           .cookie = i + 1,
                           .data = messages[i].data(),
                           .length = static_cast<std::uint32_t>(messages[i].size())});
  }
  link.run();
  check_sent(link, link.sent(), messages.size());
  REQUIRE(link.received().size() == messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Completion& c = link.received()[i];
    CHECK(c.kind == Completion::Kind::kReceivedSend);
    CHECK(c.cookie == i);
    REQUIRE(c.byte_length == messages[i].size());
    CHECK(std::equal(messages[i].begin(), messages[i].end(),
                     link.receive_memory().begin() + static_cast<std::ptrdiff_t>(i * 1024)));
  }
  const std::vector<std::uint8_t> expected{0x04, 0x00, 0x01, 0x01, 0x02, 0x04, 0x00, 0x02};
  CHECK(link.opcodes() == expected);
}

TEST_CASE("PSNs wrap around") {
  Link link({.path_mtu = 256, .first_psn = 0xFFFFF0, .remote_first_psn = 0xFFFFFF});
  const Bytes data = test::random_fill(1, 40 * 256);
  Target target(link, data.size());
  for (std::uint64_t i = 1; i <= 3; ++i) link.requester().post(write(data, target, i));
  // The packets before, at and after the wrap-around are lost.
  std::vector<std::size_t> lost{14, 16, 40};
  link.data_fate = [&lost](const wire::Packet&, std::size_t index) {
    return std::ranges::count(lost, index) != 0 ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  link.run();
  CHECK(target.bytes == data);
  check_sent(link, link.sent(), 3);
  CHECK(link.received().size() == 3);
}

TEST_CASE("a full reassembly window across the wrap-around of PSNs") {
  constexpr std::uint32_t kWindow = Reassembly::kWindow;
  for (const std::uint32_t left : {1U, 2U, kWindow / 2, kWindow - 1, kWindow, kWindow + 1}) {
    CAPTURE(left);
    Link link({.path_mtu = 256,
               .first_psn = (0U - left) & wire::kPsnMask,
               .remote_first_psn = wire::kPsnMask,
               .initial_window = kWindow,
               .max_window = kWindow,
               .selective = true});
    const Bytes data = test::random_fill(left, std::size_t{3} * kWindow * 256 + 100);
    Target target(link, data.size());
    link.requester().post(write(data, target));
    // Of each window the oldest packet is lost, and every seventh comes late.
    link.data_fate = [](const wire::Packet&, std::size_t index) {
      if (index % kWindow == 0) return std::vector<Nanos>{};
      return std::vector{index % 7 == 0 ? 3 * kOneWay : kOneWay};
    };
    link.run();
    link.drain();
    CHECK(target.bytes == data);
    check_sent(link, link.sent(), 1);
    CHECK(link.responder().counters().out_of_order > kWindow / 2);
    CHECK(link.reassembly().left == kPeerReassemblyBytes);
  }
}

TEST_CASE("RNR NAKs across the wrap-around of PSNs") {
  for (const bool selective : {false, true}) {
    for (const std::uint32_t left : {1U, 2U, 3U}) {
      CAPTURE(selective);
      CAPTURE(left);
      Link link({.first_psn = (0U - left) & wire::kPsnMask, .receive_buffers = 0, .selective = selective});
      const Bytes data = test::random_fill(left, 60);
      Target target(link, data.size());
      for (std::uint64_t i = 1; i <= 4; ++i) link.requester().post(write(data, target, i));
      for (std::size_t posted = 0; posted < 4; ++posted) {
        const std::uint64_t refused = link.requester().counters().rnr;
        while (link.requester().counters().rnr == refused) link.run(link.now() + kMillisecond);
        link.post_receive();
      }
      link.run();
      check_sent(link, link.sent(), 4);
      CHECK(link.received().size() == 4);
    }
  }
}

/// Packets are serialized as on a link and acknowledged one by one.
Link::Fate serialized(const Link& link, Nanos& busy_until) {
  return [&](const wire::Packet&, std::size_t) {
    busy_until = std::max(busy_until, link.now()) + 10 * kMicrosecond;
    return std::vector{busy_until - link.now() + kOneWay};
  };
}

TEST_CASE("packets held back by the window leave in bursts, without a timer") {
  constexpr std::size_t kPackets = 2000;
  for (const std::uint32_t burst : {1U, 15U}) {
    CAPTURE(burst);
    Link link({.path_mtu = 256, .burst = burst});
    const Bytes data = test::random_fill(1, kPackets * 256);
    Target target(link, data.size());
    Nanos busy_until = 0;
    link.data_fate = serialized(link, busy_until);
    link.requester().post(write(data, target));
    link.run();
    CHECK(target.bytes == data);
    CHECK(link.requester().counters().timeouts == 0);
    CHECK(link.requester().counters().tx_packets == kPackets);
    CHECK(link.bursts().size() < (burst == 1 ? kPackets + 1 : kPackets / 10));
  }
}

TEST_CASE("a window without room for another burst counts as limiting and grows") {
  constexpr std::size_t kPackets = 1000;
  Link link({.path_mtu = 256, .initial_window = 32, .burst = 15});
  const Bytes data = test::random_fill(1, kPackets * 256);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  link.run();
  CHECK(target.bytes == data);
  CHECK(link.requester().control().window() > 64);
}

TEST_CASE("messages around the size of a burst arrive, also with loss") {
  for (const std::size_t packets : {1U, 2U, 14U, 15U, 16U, 31U, 46U}) {
    CAPTURE(packets);
    Link link({.path_mtu = 256, .burst = 15});
    const Bytes data = test::random_fill(packets, packets * 256);
    Target target(link, data.size());
    link.data_fate = [](const wire::Packet&, std::size_t index) {
      return index % 23 == 11 ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    for (std::uint64_t i = 1; i <= 20; ++i) link.requester().post(write(data, target, i));
    link.run();
    CHECK(target.bytes == data);
    check_sent(link, link.sent(), 20);
  }
}

TEST_CASE("an idle requester frees its memory and keeps working; a busy one keeps its memory") {
  Link link({.path_mtu = 256});
  const Bytes data = test::random_fill(1, 100 * 256);
  Target target(link, data.size());
  for (std::uint64_t i = 1; i <= 3; ++i) {
    link.requester().post(write(data, target, i));
    link.run(link.now() + kOneWay);  // some packets are in flight
    link.requester().release_spare();
    link.run();
    link.requester().release_spare();
  }
  CHECK(target.bytes == data);
  check_sent(link, link.sent(), 3);
  CHECK(link.requester().counters().retransmits == 0);
  CHECK(link.requester().round_trip().smallest() == 2 * kOneWay);
}

TEST_CASE("the window limits packets in flight, and its last packet requests an acknowledgement") {
  Link link({.path_mtu = 256});
  const Bytes data = test::random_fill(1, 256 * 1000);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  std::vector<bool> asks;
  while (const auto packet = link.requester().next_packet(link.now())) {
    asks.push_back((packet->header.bytes[8] & std::byte{0x80}) != std::byte{0});
  }
  CHECK(asks.size() == static_cast<std::size_t>(link.requester().control().window()));
  CHECK(asks.back());
}

TEST_CASE("packets that the kernel did not take are created again unchanged") {
  Transfer transfer;
  Requester& qp = transfer.link.requester();
  const Nanos now = transfer.link.now();
  REQUIRE(qp.next_packet(now));
  const Requester::Checkpoint before = qp.checkpoint();
  const auto second = qp.next_packet(now);
  const auto third = qp.next_packet(now);
  REQUIRE(second);
  REQUIRE(third);
  qp.rewind(before);
  CHECK(qp.counters().tx_packets == 1);
  const auto again = qp.next_packet(now);
  REQUIRE(again);
  CHECK((wire::get_u32(again->header.bytes.data() + 8) & wire::kPsnMask) == 1);
  CHECK(again->payload.data() == second->payload.data());
  CHECK(qp.counters().retransmits == 0);
}

TEST_CASE("a rewind to nothing sent leaves no timer behind") {
  Transfer transfer;
  Requester& qp = transfer.link.requester();
  const Requester::Checkpoint before = qp.checkpoint();
  REQUIRE(qp.next_packet(transfer.link.now()));
  CHECK(qp.deadline() != kNever);
  qp.rewind(before);
  CHECK(qp.can_send(transfer.link.now()));
  qp.on_timer(transfer.link.now() + 100 * kSecond);
  CHECK(qp.counters().timeouts == 0);
  transfer.link.run();
  transfer.check();
}

TEST_CASE("a rewind may cross the end of a request") {
  Link link({.path_mtu = 256});
  const Bytes data = test::random_fill(1, 256);
  Target target(link, 256);
  for (std::uint64_t i = 1; i <= 3; ++i) link.requester().post(write(data, target, i));
  const Requester::Checkpoint before = link.requester().checkpoint();
  for (int i = 0; i < 3; ++i) REQUIRE(link.requester().next_packet(link.now()));
  link.requester().rewind(before);
  link.run();
  check_sent(link, link.sent(), 3);
  CHECK(link.received().size() == 3);
  CHECK(link.requester().counters().retransmits == 0);
}

TEST_CASE("failing flushes queued and later requests") {
  Transfer transfer;
  REQUIRE(transfer.link.requester().next_packet(transfer.link.now()));
  transfer.link.requester().fail(Status::kFlushed);
  CHECK(transfer.link.requester().idle());
  CHECK(transfer.link.requester().all_acknowledged());
  transfer.link.requester().fail(Status::kRetryExceeded);  // no effect the second time
  transfer.link.requester().post(write(transfer.data, transfer.target, 4));
  REQUIRE(transfer.link.sent().size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(transfer.link.sent()[i].status == Status::kFlushed);
    CHECK(transfer.link.sent()[i].cookie == i + 1);
  }
  CHECK_FALSE(transfer.link.requester().can_send(transfer.link.now()));
  const Parsed ack(serialize(wire::ack_header(kRequesterQpn, 0, wire::kAckNoCredits, 0)));
  transfer.link.requester().on_acknowledge(ack.packet, transfer.link.now(), kNever);
  CHECK(transfer.link.sent().size() == 4);
}

}  // namespace
}  // namespace paralet::rc_qp_test
