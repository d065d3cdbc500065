// SPDX-License-Identifier: Apache-2.0
// RC QP: loss, duplication and reordering, repaired by go-back-N.
#include "rc_qp_link.hpp"

namespace paralet::rc_qp_test {
namespace {

TEST_CASE("the loss of any single packet is repaired") {
  for (std::size_t lost = 0; lost < kTransferPackets; ++lost) {
    CAPTURE(lost);
    Transfer transfer;
    transfer.link.data_fate = [lost](const wire::Packet&, std::size_t index) {
      return index == lost ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    transfer.link.run();
    transfer.check();
    const QpCounters& c = transfer.link.requester().counters();
    CHECK(c.retransmits >= 1);
    // The packets behind a lost one report the gap. Only a lost last packet needs a timeout.
    CHECK(c.naks + c.timeouts == 1);
    if (lost + 1 == kTransferPackets) CHECK(c.timeouts == 1);
  }
}

TEST_CASE("the loss of any single acknowledgement is repaired, usually by the next one") {
  Transfer whole;
  std::size_t acks = 0;
  whole.link.ack_fate = [&acks](const wire::Packet&, std::size_t) {
    ++acks;
    return std::vector{kOneWay};
  };
  whole.link.run();
  REQUIRE(acks > 5);
  std::uint64_t timeouts = 0;
  for (std::size_t lost = 0; lost < acks; ++lost) {
    CAPTURE(lost);
    Transfer transfer;
    transfer.link.ack_fate = [lost](const wire::Packet&, std::size_t index) {
      return index == lost ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    transfer.link.run();
    transfer.check();
    timeouts += transfer.link.requester().counters().timeouts;
  }
  CHECK(timeouts >= 1);  // the last one has no successor
  CHECK(timeouts < acks);
}

TEST_CASE("duplicates are acknowledged and have no other effect") {
  Transfer transfer;
  transfer.link.data_fate = [](const wire::Packet&, std::size_t) {
    return std::vector{kOneWay, kOneWay + 10, 3 * kOneWay};
  };
  transfer.link.ack_fate = [](const wire::Packet&, std::size_t) { return std::vector{kOneWay, 2 * kOneWay}; };
  transfer.link.run();
  transfer.check();
  CHECK(transfer.link.responder().counters().duplicates >= 2 * kTransferPackets);
  CHECK(transfer.link.responder().counters().rx_bytes == 3 * transfer.data.size());
  CHECK(transfer.link.requester().counters().stale_acks > 0);
}

TEST_CASE("a late copy of a WRITE does not overwrite newer data") {
  Link link({.path_mtu = 256});
  const Bytes older = test::random_fill(1, 256);
  const Bytes newer = test::random_fill(2, 256);
  Target target(link, 256);
  link.data_fate = [](const wire::Packet&, std::size_t index) {
    return index == 0 ? std::vector{kOneWay, 100 * kOneWay} : std::vector{kOneWay};
  };
  link.requester().post(write(older, target, 1));
  link.run();
  CHECK(target.bytes == older);
  link.requester().post(write(newer, target, 2));
  link.run();
  link.drain();
  CHECK(target.bytes == newer);
  CHECK(link.received().size() == 2);
  CHECK(link.responder().counters().duplicates == 1);
}

TEST_CASE("reordered packets cost a NAK, not the transfer") {
  Transfer transfer;
  transfer.link.data_fate = [](const wire::Packet&, std::size_t index) {
    return std::vector{index % 7 == 3 ? kOneWay * 2 : kOneWay};
  };
  transfer.link.run();
  transfer.check();
  CHECK(transfer.link.responder().counters().out_of_order > 0);
  CHECK(transfer.link.requester().counters().naks > 0);
}

TEST_CASE("each gap is reported once") {
  Link link({.path_mtu = 256});
  const auto send = [](std::uint32_t psn) {
    return serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, psn, true, 0, 0, 0, 0, 0));
  };
  link.inject(send(0));
  REQUIRE(link.responder().take_acknowledgement());
  link.inject(send(2));
  const auto nak = link.responder().take_acknowledgement();
  REQUIRE(nak);
  const Parsed parsed(serialize(*nak));
  CHECK(parsed.packet.syndrome == code(Syndrome::kNakSequence));
  CHECK(parsed.packet.psn == 1);  // the missing packet
  CHECK(parsed.packet.msn == 1);
  for (std::uint32_t psn = 3; psn < 10; ++psn) {
    link.inject(send(psn));
    CHECK_FALSE(link.responder().take_acknowledgement());
  }
  link.inject(send(1));
  const auto ack = link.responder().take_acknowledgement();
  REQUIRE(ack);
  CHECK(Parsed(serialize(*ack)).packet.syndrome == wire::kAckNoCredits);
  CHECK(Parsed(serialize(*ack)).packet.psn == 1);
  link.inject(send(3));
  const auto again = link.responder().take_acknowledgement();
  REQUIRE(again);
  CHECK(Parsed(serialize(*again)).packet.syndrome == code(Syndrome::kNakSequence));
}

TEST_CASE("a gap is reported again when the retransmission is lost too") {
  Link link({.path_mtu = 256});
  const auto send = [](std::uint32_t psn) {
    return serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, psn, true, 0, 0, 0, 0, 0));
  };
  const auto nak = [&link] {
    const auto out = link.responder().take_acknowledgement();
    return out && Parsed(serialize(*out)).packet.syndrome == code(Syndrome::kNakSequence);
  };
  for (const std::uint32_t psn : {1U, 3U, 2U, 4U, 70U, 71U}) {  // PSN 0 is lost; the order of the others tells nothing
    link.inject(send(psn));
    CHECK(nak() == (psn == 1));
  }
  for (int round = 0; round < 3; ++round) {  // the requester goes back, and PSN 0 is lost again
    for (std::uint32_t psn = 1; psn < 5; ++psn) {
      link.inject(send(psn));
      CHECK(nak() == (psn == 1));
    }
  }
  link.inject(send(0));
  const auto ack = link.responder().take_acknowledgement();
  REQUIRE(ack);
  CHECK(Parsed(serialize(*ack)).packet.syndrome == wire::kAckNoCredits);
}

TEST_CASE("a packet that is lost several times needs no timeout while packets behind it arrive") {
  for (const std::size_t losses : {2U, 3U}) {  // more would leave a window of one packet
    CAPTURE(losses);
    Transfer transfer;
    std::size_t lost = 0;
    std::uint32_t victim = 0;
    transfer.link.data_fate = [&](const wire::Packet& packet, std::size_t index) {
      if (index == 3) victim = packet.psn;
      if (index < 3 || packet.psn != victim || lost == losses) return std::vector{kOneWay};
      ++lost;
      return std::vector<Nanos>{};
    };
    transfer.link.run();
    transfer.check();
    CHECK(lost == losses);
    CHECK(transfer.link.requester().counters().timeouts == 0);
    CHECK(transfer.link.requester().counters().naks == losses);
  }
}

TEST_CASE("acknowledgements coalesce until taken, and are sent for packets that request one") {
  Link link({.path_mtu = 256});
  const auto send = [](std::uint32_t psn, bool ask) {
    return serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, psn, ask, 0, 0, 0, 0, 0));
  };
  link.inject(send(0, false));
  CHECK_FALSE(link.responder().take_acknowledgement());
  link.inject(send(1, true));
  link.inject(send(2, false));
  const auto ack = link.responder().take_acknowledgement();
  REQUIRE(ack);
  const Parsed parsed(serialize(*ack));
  CHECK(parsed.packet.psn == 2);
  CHECK(parsed.packet.msn == 3);
  CHECK_FALSE(link.responder().take_acknowledgement());
}

}  // namespace
}  // namespace paralet::rc_qp_test
