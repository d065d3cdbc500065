// SPDX-License-Identifier: Apache-2.0
// RC QP: congestion marks of switches (ECN), and their count in acknowledgements.
#include "rc_qp_link.hpp"
#include "soft/delay_control.hpp"

namespace paralet::rc_qp_test {
namespace {

LinkOptions counting(bool selective) { return {.path_mtu = 256, .selective = selective, .mark_counts = true}; }

Bytes send_only(std::uint32_t psn) {
  return serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, psn, true, 0, 0, 0, 0, 0));
}

TEST_CASE("an acknowledgement counts the marked packets, before its bitmap") {
  Link link(counting(true));
  const auto answer = [&] { return test::to_hex(serialize(*link.responder().take_acknowledgement())); };
  link.inject(send_only(0));
  CHECK(answer() ==
        "1140ffff00000011"
        "00000000"
        "1f000001"
        "00000000"
        "00000000");
  link.inject(send_only(2), true);  // early
  link.inject(send_only(2), true);  // a copy
  CHECK(answer() ==
        "1140ffff00000011"
        "00000000"
        "1f000001"
        "00000002"
        "80000000"
        "00000000");
  CHECK(link.responder().counters().rx_marked == 2);
}

TEST_CASE("a NAK has no count, nor has an acknowledgement to a peer that did not agree to it") {
  Link gap(counting(false));
  gap.inject(send_only(1), true);
  const auto nak = gap.responder().take_acknowledgement();
  REQUIRE(nak);
  CHECK(nak->header.length == wire::kBthBytes + wire::kAethBytes);
  Link plain({.path_mtu = 256});
  plain.inject(send_only(0), true);
  const auto ack = plain.responder().take_acknowledgement();
  REQUIRE(ack);
  CHECK(ack->header.length == wire::kBthBytes + wire::kAethBytes);
  CHECK(ack->payload.empty());
  CHECK(plain.responder().counters().rx_marked == 1);
}

TEST_CASE("the requester hears of every marked packet, though acknowledgements are lost") {
  for (const bool selective : {false, true}) {
    CAPTURE(selective);
    Transfer transfer(counting(selective));
    transfer.link.marked = [](std::size_t index) { return index % 5 == 0; };
    transfer.link.ack_fate = [](const wire::Packet&, std::size_t index) {
      return index % 3 == 1 ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    transfer.link.run();
    transfer.check();
    const std::uint64_t marked = transfer.link.responder().counters().rx_marked;
    CHECK(marked >= kTransferPackets / 5);
    // Marks of copies that were sent again for lost acknowledgements may come after the last acknowledgement.
    CHECK(transfer.link.requester().counters().tx_marked <= marked);
    CHECK(transfer.link.requester().counters().tx_marked + 2 >= kTransferPackets / 5);
  }
}

TEST_CASE("marks make the window small, and with it the number of packets in flight") {
  for (const bool selective : {false, true}) {
    CAPTURE(selective);
    LinkOptions options = counting(selective);
    options.delay_floor = 65;
    Transfer unmarked(options);
    unmarked.link.run();
    unmarked.check();
    Transfer transfer(options);
    transfer.link.marked = [](std::size_t) { return true; };
    transfer.link.run();
    transfer.check();
    CHECK(unmarked.link.requester().control().window() >= 64);
    CHECK(transfer.link.requester().control().window() < 2);
    CHECK(transfer.link.requester().counters().retransmits == 0);
    CHECK(transfer.link.requester().counters().tx_marked == kTransferPackets);
  }
}

TEST_CASE("below one packet, a short packet takes its part of a full packet's time") {
  const auto duration = [](std::uint32_t bytes) {
    LinkOptions options = counting(true);
    options.path_mtu = options.receive_bytes = 4096;
    options.initial_window = DelayControl::kMinWindow;
    Link link(options);
    link.marked = [](std::size_t) { return true; };
    const Bytes data = test::random_fill(1, bytes);
    for (std::uint64_t i = 0; i < 20; ++i) {
      link.requester().post({.kind = WorkKind::kSend, .cookie = i, .data = data.data(), .length = bytes});
    }
    const Nanos begin = link.now();
    link.run();
    CHECK(link.requester().counters().tx_marked == 20);
    return link.now() - begin;
  };
  CHECK(duration(4096) >= 19 * 10 * 2 * kOneWay);  // a packet every round trip / window, or half of that
  CHECK(duration(64) < duration(4096) / 10);
}

TEST_CASE("a lane that was idle for longer than a timeout starts anew, however small marks made its window") {
  for (const bool selective : {false, true}) {
    CAPTURE(selective);
    Transfer transfer(counting(selective));
    transfer.link.marked = [](std::size_t) { return true; };
    transfer.link.run();
    Requester& requester = transfer.link.requester();
    REQUIRE(requester.control().window() < 1);
    REQUIRE(requester.idle());
    const Bytes data = test::random_fill(2, 256);
    Target target(transfer.link, data.size());
    requester.post(write(data, target, 7));
    REQUIRE(requester.next_packet(transfer.link.now() + requester.round_trip().timeout(kSecond) + 1));
    CHECK(requester.control().window() == 4);  // the initial window
  }
}

TEST_CASE("below one packet, a lane says when its next packet may leave, and waiting for that is no sign of idleness") {
  for (const bool selective : {false, true}) {
    CAPTURE(selective);
    Transfer transfer(counting(selective));
    transfer.link.marked = [](std::size_t) { return true; };
    transfer.link.run();
    Requester& requester = transfer.link.requester();
    const Bytes data = test::random_fill(2, 256);
    Target target(transfer.link, data.size());
    Nanos now = transfer.link.now();
    unsigned waited = 0;  // for longer than a timeout
    for (std::uint32_t i = 0; i < 100; ++i) {
      REQUIRE(requester.control().window() < 1);  // not the initial one
      REQUIRE(requester.idle());
      const Nanos ready_at = requester.ready_at();
      if (ready_at - now > requester.round_trip().timeout(transfer.link.min_timeout())) ++waited;
      requester.post(write(data, target, i));
      CHECK(requester.ready_at() == kNever);  // a packet waits
      CHECK_FALSE(requester.can_send(ready_at - 1));
      now = std::max(now, ready_at);
      REQUIRE(requester.next_packet(now));
      CHECK(requester.ready_at() == kNever);  // an acknowledgement comes first
      wire::Header ack = wire::ack_header(kRequesterQpn, kTransferPackets + i, 0x1F, 0);
      wire::append_word(ack, kTransferPackets + 1 + i);  // this one was marked, too
      const Parsed parsed(serialize(ack));
      requester.on_acknowledge(parsed.packet, now += 2 * kOneWay, kNever);
    }
    CHECK(waited > 0);
  }
}

TEST_CASE("a wrong count is limited to the acknowledged packets, and the next count corrects it") {
  for (const bool selective : {false, true}) {
    CAPTURE(selective);
    Link link(counting(selective));
    const Bytes data = test::random_fill(1, 256);
    Target target(link, data.size());
    Requester& requester = link.requester();
    Nanos now = kSecond;
    const auto acknowledged = [&](std::uint32_t psn, std::uint32_t count) {
      const std::uint64_t before = requester.counters().tx_marked;
      requester.post(write(data, target, psn + 1));
      while (!requester.can_send(now)) {  // spaced
        REQUIRE(requester.deadline() > now);
        now = requester.deadline();
      }
      REQUIRE(requester.next_packet(now));
      wire::Header ack = wire::ack_header(kRequesterQpn, psn, 0x1F, 0);
      wire::append_word(ack, count);
      const Parsed parsed(serialize(ack));
      requester.on_acknowledge(parsed.packet, now += kOneWay, kNever);
      REQUIRE(requester.all_acknowledged());
      return requester.counters().tx_marked - before;
    };
    CHECK(acknowledged(0, 0) == 0);
    CHECK(acknowledged(1, 1) == 1);
    CHECK(acknowledged(2, 0x7FFFFFFF) == 1);  // forged: far too many
    CHECK(acknowledged(3, 1) == 0);           // the honest count again, which seems to have shrunk
    CHECK(acknowledged(4, 1) == 0);
    CHECK(acknowledged(5, 2) == 1);
    CHECK(acknowledged(6, 0x80000003) == 0);  // forged: less
    CHECK(acknowledged(7, 0) <= 1);
    CHECK(acknowledged(8, 0) == 0);
    CHECK(acknowledged(9, 0xFFFFFFFF) == 0);
    CHECK(acknowledged(10, 1) == 1);  // the count wraps
  }
}

TEST_CASE("an acknowledgement says how long the newest packet has waited, behind the count") {
  LinkOptions options = counting(true);
  options.host_delays = true;
  Link link(options);
  const auto payload = [&](Nanos now) {
    const Bytes bytes = serialize(*link.responder().take_acknowledgement(now));
    return test::to_hex(std::span(bytes).subspan(wire::kBthBytes + wire::kAethBytes)).substr(0, 16);
  };
  const auto arrives = [&](std::uint32_t psn, Nanos when) {
    const Parsed parsed(send_only(psn));
    link.responder().on_request(parsed.packet, true, when);
  };
  arrives(0, kSecond);
  CHECK(payload(kSecond + 0x123456) == "0000000100123456");
  arrives(2, 2 * kSecond);
  arrives(0, 3 * kSecond);  // a copy does not count
  CHECK(payload(3 * kSecond) == "000000033b9aca00");
  arrives(1, 4 * kSecond);
  CHECK(payload(4 * kSecond - 1) == "0000000400000000");  // clocks that disagree
  arrives(3, 5 * kSecond);
  CHECK(payload(15 * kSecond) == "00000005ffffffff");
}

TEST_CASE("delay in the responder and in the requester's socket is not the network's") {
  for (const bool reported : {false, true}) {
    CAPTURE(reported);
    LinkOptions options = counting(true);
    options.host_delays = true;
    options.initial_window = 64;
    options.max_window = 64;
    options.delay_floor = 65;
    Link link(options);
    const Bytes data = test::random_fill(1, 256);
    Target target(link, data.size());
    Requester& requester = link.requester();
    Nanos now = kSecond;
    for (std::uint32_t psn = 0; psn < 50; ++psn) {
      requester.post(write(data, target, psn + 1));
      while (!requester.can_send(now)) now = std::max(now + 1, requester.deadline());
      REQUIRE(requester.next_packet(now));
      // 100 us in the first half; then 10 ms, of which 4 in the responder and 5.9 in the requester's socket.
      const bool slow = psn >= 25;
      wire::Header ack = wire::ack_header(kRequesterQpn, psn, 0x1F, 0);
      wire::append_word(ack, 0);
      wire::append_word(ack, slow && reported ? 4'000'000 : 0);
      const Parsed parsed(serialize(ack));
      now += slow ? 10 * kMillisecond : 100 * kMicrosecond;
      requester.on_acknowledge(parsed.packet, now, kNever, slow && reported ? 5'900 * kMicrosecond : 0);
      REQUIRE(requester.all_acknowledged());
    }
    if (reported) {
      CHECK(requester.control().window() == 64);
    } else {
      CHECK(requester.control().window() < 8);
    }
  }
}

TEST_CASE("an acknowledgement that is too short for a count acknowledges") {
  Link link(counting(true));
  const Bytes data = test::random_fill(1, 256);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  REQUIRE(link.requester().next_packet(kSecond));
  const Parsed parsed(serialize(wire::ack_header(kRequesterQpn, 0, 0x1F, 0)));
  link.requester().on_acknowledge(parsed.packet, kSecond + kOneWay, kNever);
  CHECK(link.requester().all_acknowledged());
  CHECK(link.requester().counters().tx_marked == 0);
}

}  // namespace
}  // namespace paralet::rc_qp_test
