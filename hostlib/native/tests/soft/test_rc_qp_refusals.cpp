// SPDX-License-Identifier: Apache-2.0
// RC QP: receivers without buffers, requests that the responder rejects, and NAKs.
#include "rc_qp_link.hpp"

namespace paralet::rc_qp_test {
namespace {

TEST_CASE("RNR NAKs delay the sender until the receiver has a buffer") {
  Link link({.path_mtu = 256, .receive_buffers = 0});
  const Bytes data = test::random_fill(1, 1000);
  Target target(link, 1000);
  link.requester().post(write(data, target, 1));
  link.requester().post(write(data, target, 2));
  link.run(link.now() + 50 * kMillisecond);
  CHECK(link.sent().empty());
  CHECK(link.received().empty());
  const QpCounters before = link.requester().counters();
  CHECK(before.rnr > 10);
  // One attempt per RNR delay (0.64 ms) and round trip.
  CHECK(before.rnr < 100);
  CHECK(before.timeouts == 0);
  link.post_receive();
  link.post_receive();
  link.run();
  check_sent(link, link.sent(), 2);
  CHECK(link.received().size() == 2);
  CHECK(target.bytes == data);
}

TEST_CASE("RNR retries have no limit") {
  Link link({.path_mtu = 256, .retry_time = kSecond, .receive_buffers = 0});
  const Bytes data = test::random_fill(1, 10);
  Target target(link, 10);
  link.requester().post(write(data, target));
  link.run(link.now() + 20 * kSecond);
  CHECK_FALSE(link.requester().failed());
  link.post_receive();
  link.run();
  check_sent(link, link.sent(), 1);
}

TEST_CASE("a SEND without a receive buffer has no effect") {
  Link link({.receive_buffers = 0});
  const auto send = serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, 0, true, 0, 0, 0, 0, 0));
  link.inject(send);
  const auto nak = link.responder().take_acknowledgement();
  REQUIRE(nak);
  const Parsed parsed(serialize(*nak));
  CHECK((parsed.packet.syndrome & 0xE0) == code(Syndrome::kRnrNak));
  CHECK(wire::rnr_delay_ns(parsed.packet.syndrome & 0x1F) > 0);
  CHECK(parsed.packet.psn == 0);
  link.post_receive();
  link.inject(send);
  CHECK(link.received().size() == 1);
}

TEST_CASE("after RNR, a QP with spaced packets does not set a deadline in the past") {
  Link link({.path_mtu = 256, .retry_time = 1000 * kSecond, .receive_buffers = 0});
  const Bytes data = test::random_fill(1, 256);
  Target target(link, 256);
  link.requester().post(write(data, target, 1));
  link.run(link.now() + 10 * kMillisecond);
  REQUIRE(link.requester().counters().rnr > 0);
  link.post_receive();
  link.run();
  // Two timeouts in a row leave a window below one packet.
  link.requester().post(write(data, target, 2));
  link.data_fate = [](const wire::Packet&, std::size_t) { return std::vector<Nanos>{}; };
  while (link.requester().control().window() >= 1) link.run(link.now() + 100 * kMillisecond);
  link.data_fate = [](const wire::Packet&, std::size_t) { return std::vector{kOneWay}; };
  link.post_receive();
  link.run();
  link.requester().post(write(data, target, 3));
  if (!link.requester().can_send(link.now())) CHECK(link.requester().deadline() > link.now());
}

TEST_CASE("a WRITE outside its region is rejected and writes nothing") {
  struct Case {
    std::uint64_t offset;
    std::uint32_t length;
    bool right_key;
  };
  for (const Case& c : {Case{0, 1001, true}, Case{1000, 1, true}, Case{999, 2, true}, Case{UINT64_MAX, 2, true},
                        Case{UINT64_MAX - 499, 1000, true}, Case{1ULL << 63, 10, true}, Case{0, 10, false}}) {
    CAPTURE(c.offset);
    CAPTURE(c.length);
    Link link({.path_mtu = 256});
    const Bytes data = test::random_fill(1, c.length);
    Target target(link, 1000);
    WorkRequest request = write(data, target, 1);
    request.remote_address = c.offset;
    if (!c.right_key) request.rkey ^= 1;
    link.requester().post(request);
    link.requester().post(write(test::random_fill(2, 0), target, 2));
    link.run();
    CHECK(link.requester().failed());
    REQUIRE(link.sent().size() == 2);
    CHECK(link.sent()[0].status == Status::kRemoteAccess);
    CHECK(link.sent()[1].status == Status::kFlushed);
    CHECK(link.received().empty());
    CHECK(target.bytes == Bytes(1000));
  }
}

TEST_CASE("a region deregistered in the middle of a message is not written any more") {
  Link link({.path_mtu = 256});
  Target target(link, 512);
  const Bytes ones(256, std::byte{1});
  link.inject(
      serialize(wire::data_header(Opcode::kWriteFirst, kResponderQpn, 0, false, 0, 0, target.rkey, 512, 0), ones));
  CHECK(std::equal(ones.begin(), ones.end(), target.bytes.begin()));
  REQUIRE(link.memory().remove(target.rkey));
  link.inject(serialize(wire::data_header(Opcode::kWriteLast, kResponderQpn, 1, true, 0, 0, 0, 0, 0), ones));
  const auto nak = link.responder().take_acknowledgement();
  REQUIRE(nak);
  CHECK(Parsed(serialize(*nak)).packet.syndrome == code(Syndrome::kNakRemoteAccess));
  CHECK(std::equal(target.bytes.begin() + 256, target.bytes.end(), Bytes(256).begin()));
}

TEST_CASE("packets in an impossible order or of wrong sizes are rejected") {
  struct Step {
    Opcode opcode;
    std::size_t bytes;
    std::uint32_t dma_length = 0;
  };
  struct Case {
    const char* what;
    std::vector<Step> steps;  ///< all but the last are valid
  };
  const std::vector<Case> cases{
      {"middle of nothing", {{Opcode::kWriteMiddle, 256}}},
      {"last of nothing", {{Opcode::kSendLast, 10}}},
      {"last with immediate of nothing", {{Opcode::kWriteLastImm, 10}}},
      {"first within a message", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kWriteFirst, 256, 600}}},
      {"only within a message", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kWriteOnly, 10, 10}}},
      {"send within a write", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kSendMiddle, 256}}},
      {"write within a send", {{Opcode::kSendFirst, 256}, {Opcode::kWriteLast, 10}}},
      {"short first", {{Opcode::kWriteFirst, 255, 600}}},
      {"short middle", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kWriteMiddle, 255}}},
      {"empty last", {{Opcode::kWriteFirst, 256, 256 + 1}, {Opcode::kWriteLast, 0}}},
      {"beyond the path MTU", {{Opcode::kWriteOnly, 257, 257}}},
      {"only shorter than it says", {{Opcode::kWriteOnly, 10, 11}}},
      {"only longer than it says", {{Opcode::kWriteOnly, 10, 9}}},
      {"only with bytes but of length 0", {{Opcode::kWriteOnly, 4, 0}}},
      {"only empty but of length 4", {{Opcode::kWriteOnlyImm, 0, 4}}},
      {"first that would be all", {{Opcode::kWriteFirst, 256, 256}}},
      {"last shorter than what is left", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kWriteLast, 100}}},
      {"middle beyond what is left", {{Opcode::kWriteFirst, 256, 300}, {Opcode::kWriteMiddle, 256}}},
      {"send beyond the buffer", {{Opcode::kSendFirst, 256}, {Opcode::kSendMiddle, 256}, {Opcode::kSendLast, 256}}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    Link link({.path_mtu = 256, .receive_bytes = 600});
    Target target(link, 1000);
    for (std::uint32_t psn = 0; psn < c.steps.size(); ++psn) {
      const Step& step = c.steps[psn];
      const auto pad = static_cast<std::uint8_t>((4 - step.bytes % 4) % 4);
      link.inject(
          serialize(wire::data_header(step.opcode, kResponderQpn, psn, true, pad, 0, target.rkey, step.dma_length, 7),
                    Bytes(step.bytes, std::byte{9}), pad));
      const auto answer = link.responder().take_acknowledgement();
      REQUIRE(answer);
      const Parsed parsed(serialize(*answer));
      const bool last = psn + 1 == c.steps.size();
      CHECK(parsed.packet.syndrome == (last ? code(Syndrome::kNakInvalidRequest) : wire::kAckNoCredits));
      CHECK(parsed.packet.psn == psn);
    }
    CHECK(link.received().empty());
  }
}

TEST_CASE("READ, atomics and reserved requests are answered by NAK invalid request, in PSN order") {
  for (const std::uint8_t opcode : {0x0C, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x1C, 0x1D, 0x1F}) {
    CAPTURE(static_cast<int>(opcode));
    Link link({.path_mtu = 256});
    Target target(link, 1000);
    const auto request = [&](std::uint32_t psn) {
      // A READ request looks like a WRITE without payload, an atomic has 12 bytes more.
      Bytes bytes = serialize(
          wire::data_header(Opcode::kWriteOnly, kResponderQpn, psn, true, 0, 0, target.rkey, 100, 0), Bytes(12));
      bytes[0] = static_cast<std::byte>(opcode);
      return bytes;
    };
    link.inject(request(1));  // a missing packet is reported first (section 9.7.4.1.1)
    CHECK(Parsed(serialize(*link.responder().take_acknowledgement())).packet.syndrome == code(Syndrome::kNakSequence));
    link.inject(request(0));
    const auto answer = link.responder().take_acknowledgement();
    REQUIRE(answer);
    const Parsed parsed(serialize(*answer));
    CHECK(parsed.packet.syndrome == code(Syndrome::kNakInvalidRequest));
    CHECK(parsed.packet.psn == 0);
    CHECK(target.bytes == Bytes(1000));
    CHECK(link.received().empty());
  }
}

TEST_CASE("every fatal NAK fails the request it names and flushes the rest") {
  const std::array<std::pair<Syndrome, Status>, 3> cases{{{Syndrome::kNakInvalidRequest, Status::kRemoteInvalid},
                                                          {Syndrome::kNakRemoteAccess, Status::kRemoteAccess},
                                                          {Syndrome::kNakRemoteOperation, Status::kRemoteOperation}}};
  for (const auto& [syndrome, status] : cases) {
    Link link({.path_mtu = 256});
    const Bytes data(300);
    Target target(link, 300);
    for (std::uint64_t i = 1; i <= 3; ++i) link.requester().post(write(data, target, i));
    for (int i = 0; i < 4; ++i) REQUIRE(link.requester().next_packet(kSecond));
    // It rejects the first packet of the second message, and so acknowledges the first message.
    const Parsed nak(serialize(wire::ack_header(kRequesterQpn, 2, code(syndrome), 1)));
    link.requester().on_acknowledge(nak.packet, kSecond + kOneWay, kNever);
    REQUIRE(link.sent().size() == 3);
    CHECK(link.sent()[0].status == Status::kSuccess);
    CHECK(link.sent()[1].status == status);
    CHECK(link.sent()[2].status == Status::kFlushed);
    CHECK(std::string(to_string(status)) != to_string(Status::kFlushed));
  }
}

TEST_CASE("acknowledgements of packets never sent are ignored") {
  Transfer transfer;
  const std::array<std::uint8_t, 3> syndromes{wire::kAckNoCredits, code(Syndrome::kNakSequence),
                                              code(Syndrome::kNakRemoteAccess)};
  for (int i = 0; i < 4; ++i) REQUIRE(transfer.link.requester().next_packet(transfer.link.now()));
  for (const std::uint8_t syndrome : syndromes) {
    for (const std::uint32_t psn : {4U, 100U, 0x7FFFFFU, 0xFFFFFFU}) {
      const Parsed ack(serialize(wire::ack_header(kRequesterQpn, psn, syndrome, 0)));
      transfer.link.requester().on_acknowledge(ack.packet, transfer.link.now(), kNever);
    }
  }
  CHECK(transfer.link.requester().counters().stale_acks == 12);
  CHECK(transfer.link.sent().empty());
  CHECK_FALSE(transfer.link.requester().failed());
}

}  // namespace
}  // namespace paralet::rc_qp_test
