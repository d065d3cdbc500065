// SPDX-License-Identifier: Apache-2.0
// RC QP: selective repeat.
#include <bit>

#include "rc_qp_link.hpp"

namespace paralet::rc_qp_test {
namespace {

constexpr LinkOptions kSelective{.path_mtu = 256, .selective = true};

Bytes lone_send(std::uint32_t psn, bool ask = true) {
  return serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, psn, ask, 0, 0, 0, 0, 0));
}

/// The acknowledgement that is due: PSN and bitmap in hexadecimal.
struct Answer {
  explicit Answer(Link& link) {
    const auto ack = link.responder().take_acknowledgement();
    REQUIRE(ack);
    const Parsed parsed(serialize(*ack));
    syndrome = parsed.packet.syndrome;
    psn = parsed.packet.psn;
    bitmap.assign(parsed.packet.payload.begin(), parsed.packet.payload.end());
  }
  std::uint8_t syndrome = 0;
  std::uint32_t psn = 0;
  Bytes bitmap;
};

Bytes bits(std::initializer_list<unsigned> bytes) {
  Bytes out;
  for (const unsigned byte : bytes) out.push_back(static_cast<std::byte>(byte));
  return out;
}

TEST_CASE("only what was lost is sent again") {
  for (std::size_t lost = 0; lost < kTransferPackets; ++lost) {
    CAPTURE(lost);
    Transfer transfer(kSelective);
    transfer.link.data_fate = [lost](const wire::Packet&, std::size_t index) {
      return index == lost ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    transfer.link.run();
    transfer.check();
    const QpCounters& c = transfer.link.requester().counters();
    CHECK(c.naks == 0);
    CHECK(c.retransmits == 1);
    // Only the loss of the last packet, or of all that is in flight, takes a timer.
    if (lost > 0 && lost + 1 < kTransferPackets) CHECK(c.timeouts == 0);
    CHECK(transfer.link.responder().counters().duplicates == 0);
  }
}

TEST_CASE("acknowledgements list the packets that wait for a missing one") {
  Link link(kSelective);
  link.inject(lone_send(0));
  Answer whole(link);
  CHECK(whole.psn == 0);
  CHECK(whole.bitmap.empty());
  link.inject(lone_send(2, false));
  CHECK(link.responder().acknowledgement_urgent());
  CHECK(Answer(link).bitmap == bits({0x80, 0, 0, 0}));
  link.inject(lone_send(2, false));  // a second copy
  CHECK(Answer(link).bitmap == bits({0x80, 0, 0, 0}));
  link.inject(lone_send(5, false));
  link.inject(lone_send(34, false));
  Answer gaps(link);
  CHECK(gaps.syndrome == wire::kAckNoCredits);
  CHECK(gaps.psn == 0);
  CHECK(gaps.bitmap == bits({0x90, 0, 0, 0, 0x80, 0, 0, 0}));
  CHECK(link.received().size() == 1);
  link.inject(lone_send(1, false));
  CHECK(link.responder().acknowledgement_urgent());
  Answer filled(link);
  CHECK(filled.psn == 2);
  CHECK(filled.bitmap == bits({0x40, 0, 0, 0x02}));
  CHECK(link.received().size() == 3);
  link.inject(lone_send(3, false));
  link.inject(lone_send(4, false));
  CHECK(Answer(link).psn == 5);
  CHECK(link.received().size() == 6);
}

TEST_CASE("packets outside the window of 1,024 PSNs are not kept") {
  Link link(kSelective);
  for (const std::uint32_t psn : {1024U, 1025U, 5000U}) {
    link.inject(lone_send(psn));
    CHECK(Answer(link).bitmap.empty());
  }
  link.inject(lone_send(1023));
  const Bytes bitmap = Answer(link).bitmap;
  REQUIRE(bitmap.size() == 128);
  CHECK(bitmap.back() == std::byte{0x02});
  CHECK(std::all_of(bitmap.begin(), bitmap.end() - 1, [](std::byte b) { return b == std::byte{0}; }));
}

TEST_CASE("packets without memory to wait in are lost, and memory is given back") {
  LinkOptions options = kSelective;
  constexpr std::size_t kBytes = 8192 + 1000;  // the table of a QP and three packets with their bookkeeping
  options.reassembly_bytes = kBytes;
  {
    Link link(options);
    for (std::uint32_t psn = 1; psn < 100; ++psn) link.inject(lone_send(psn));
    CHECK(link.reassembly().left < 300);
    const Bytes few = Answer(link).bitmap;
    CHECK(few.size() == 4);
    link.inject(lone_send(0));
    CHECK(link.reassembly().left == kBytes);
  }
  Transfer transfer(options);
  transfer.link.data_fate = [](const wire::Packet&, std::size_t index) {
    return index % 8 == 3 ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  transfer.link.run();
  transfer.check();
  CHECK(transfer.link.reassembly().left == kBytes);
}

TEST_CASE("a peer takes at most its part of the memory for waiting packets") {
  ReassemblyMemory whole{.left = 100'000};
  ReassemblyMemory greedy{.left = 40'000, .whole = &whole};
  ReassemblyMemory modest{.left = 40'000, .whole = &whole};
  ReassemblyMemory late{.left = 40'000, .whole = &whole};
  const Parsed packet(lone_send(0));
  const auto fill = [&](Reassembly& early) {
    std::uint32_t kept = 0;
    wire::Packet waiting = packet.packet;
    for (waiting.psn = 1; waiting.psn < Reassembly::kWindow; ++waiting.psn) early.keep(waiting.psn, waiting);
    for (const std::byte byte : early.bitmap(0))
      kept += static_cast<std::uint32_t>(std::popcount(std::to_integer<unsigned>(byte)));
    return kept;
  };
  Reassembly last(&late);
  {
    Reassembly first(&greedy);
    Reassembly second(&greedy);
    Reassembly third(&modest);
    const std::uint32_t alone = fill(first);
    CHECK(alone > 10);
    CHECK(fill(second) == 0);
    CHECK(fill(third) == alone);
    CHECK(whole.left == 100'000 - (40'000 - greedy.left) - (40'000 - modest.left));
    CHECK(fill(last) < alone);  // the device's memory ends before the peer's part
  }
  last.clear();
  for (const ReassemblyMemory* part : {&greedy, &modest, &late}) CHECK(part->left == 40'000);
  CHECK(whole.left == 100'000);
}

TEST_CASE("memory is written in PSN order, and a late copy never") {
  Link link(kSelective);
  Target target(link, 3 * 256);
  const auto packet = [&](Opcode opcode, std::uint32_t psn, unsigned value) {
    return serialize(wire::data_header(opcode, kResponderQpn, psn, false, 0, 0, target.rkey, 3 * 256, 7),
                     Bytes(256, static_cast<std::byte>(value)));
  };
  link.inject(packet(Opcode::kWriteLastImm, 2, 3));
  link.inject(packet(Opcode::kWriteMiddle, 1, 2));
  link.inject(packet(Opcode::kWriteMiddle, 1, 9));  // the first copy counts
  CHECK(target.bytes == Bytes(3 * 256));
  CHECK(link.received().empty());
  link.inject(packet(Opcode::kWriteFirst, 0, 1));
  REQUIRE(link.received().size() == 1);
  CHECK(link.received()[0].byte_length == 3 * 256);
  for (std::size_t i = 0; i < 3; ++i) CHECK(target.bytes[i * 256] == static_cast<std::byte>(i + 1));
  const Bytes whole = target.bytes;
  for (std::uint32_t psn = 0; psn < 3; ++psn) link.inject(packet(Opcode::kWriteMiddle, psn, 9));
  CHECK(target.bytes == whole);
  CHECK(link.received().size() == 1);
  CHECK(link.responder().counters().duplicates == 3);
}

/// A WRITE of four packets of 256 bytes, to be injected one by one.
struct FourPackets {
  Link link{kSelective};
  Target target{link, std::size_t{4} * 256};

  [[nodiscard]] Bytes packet(Opcode opcode, std::uint32_t psn, unsigned value, std::size_t bytes = 256) const {
    return serialize(wire::data_header(opcode, kResponderQpn, psn, false, 0, 0, target.rkey, 4 * 256, 7),
                     Bytes(bytes, static_cast<std::byte>(value)));
  }
  [[nodiscard]] Bytes placed() const {
    return {target.bytes[0], target.bytes[256], target.bytes[512], target.bytes[768]};
  }
};

TEST_CASE("payloads of early packets of a WRITE in progress wait where they belong") {
  FourPackets write;
  write.link.inject(write.packet(Opcode::kWriteFirst, 0, 1));
  write.link.inject(write.packet(Opcode::kWriteLastImm, 3, 4));
  CHECK(write.placed() == bits({1, 0, 0, 4}));
  const std::size_t left = write.link.reassembly().left;
  write.link.inject(write.packet(Opcode::kWriteMiddle, 2, 3));
  CHECK(left - write.link.reassembly().left < 256);             // no room for a payload is taken
  write.link.inject(write.packet(Opcode::kWriteMiddle, 2, 9));  // the first copy counts
  CHECK(write.placed() == bits({1, 0, 3, 4}));
  CHECK(write.link.received().empty());
  write.link.inject(write.packet(Opcode::kWriteMiddle, 1, 2));
  CHECK(write.placed() == bits({1, 2, 3, 4}));
  REQUIRE(write.link.received().size() == 1);
  CHECK(write.link.reassembly().left == kPeerReassemblyBytes);
}

TEST_CASE("early packets that cannot belong to the WRITE in progress are not placed") {
  FourPackets write;
  write.link.inject(write.packet(Opcode::kWriteFirst, 0, 1));
  const auto early = [&](Opcode opcode, std::uint32_t psn, std::size_t bytes) {
    write.link.inject(write.packet(opcode, psn, 9, bytes));
    CHECK(write.placed() == bits({1, 0, 0, 0}));
  };
  SUBCASE("of another WRITE") { early(Opcode::kWriteFirst, 2, 256); }
  SUBCASE("of a SEND") { early(Opcode::kSendMiddle, 2, 256); }
  SUBCASE("behind the end") { early(Opcode::kWriteMiddle, 4, 256); }
  SUBCASE("too short") { early(Opcode::kWriteMiddle, 2, 252); }
  SUBCASE("the last before the end") { early(Opcode::kWriteLast, 2, 256); }
  SUBCASE("another at the end") { early(Opcode::kWriteMiddle, 3, 256); }
  SUBCASE("without the region") {
    REQUIRE(write.link.memory().remove(write.target.rkey));
    early(Opcode::kWriteMiddle, 2, 256);
  }
  SUBCASE("when the owner has its memory back") {
    write.link.memory().retire(write.target.rkey);
    early(Opcode::kWriteMiddle, 2, 256);
  }
}

TEST_CASE("an early payload that was placed ahead overwrites none of its run") {
  FourPackets write;
  write.link.inject(write.packet(Opcode::kWriteFirst, 0, 1));
  // Direct placement took packets 2 and 3 for 1 and 2. Packet 3 has not been looked at yet.
  const Parsed second(write.packet(Opcode::kWriteMiddle, 2, 3));
  const Parsed third(write.packet(Opcode::kWriteLast, 3, 4));
  std::ranges::copy(second.packet.payload, write.target.bytes.begin() + 256);
  std::ranges::copy(third.packet.payload, write.target.bytes.begin() + 512);
  for (const auto& [parsed, index] : {std::pair{&second, 1}, std::pair{&third, 2}}) {
    wire::Packet packet = parsed->packet;
    packet.payload = std::span(write.target.bytes).subspan(std::size_t{256} * index, 256);
    write.link.responder().on_request(packet);
    CHECK(write.placed() == bits({1, 3, 4, 0}));
  }
  write.link.inject(write.packet(Opcode::kWriteMiddle, 1, 2));
  CHECK(write.placed() == bits({1, 2, 3, 4}));
}

TEST_CASE("a region that is deregistered while packets wait is not written") {
  Link link(kSelective);
  Target target(link, 512);
  link.inject(serialize(wire::data_header(Opcode::kWriteLast, kResponderQpn, 1, false, 0, 0, 0, 0, 0),
                        Bytes(256, std::byte{9})));
  REQUIRE(link.memory().remove(target.rkey));
  link.inject(serialize(wire::data_header(Opcode::kWriteFirst, kResponderQpn, 0, false, 0, 0, target.rkey, 512, 0),
                        Bytes(256, std::byte{9})));
  CHECK(Answer(link).syndrome == code(Syndrome::kNakRemoteAccess));
  CHECK(target.bytes == Bytes(512));
}

TEST_CASE("payloads are not placed ahead while packets wait") {
  Link link(kSelective);
  Target target(link, 4 * 256);
  const auto packet = [&](Opcode opcode, std::uint32_t psn) {
    return serialize(wire::data_header(opcode, kResponderQpn, psn, false, 0, 0, target.rkey, 4 * 256, 0), Bytes(256));
  };
  link.inject(packet(Opcode::kWriteFirst, 0));
  CHECK(link.responder().placement_target().size() == 512);
  link.inject(packet(Opcode::kWriteMiddle, 2));
  CHECK(link.responder().placement_target().empty());
  link.inject(packet(Opcode::kWriteMiddle, 1));
  CHECK(link.responder().placement_target().empty());  // only the last is missing
}

TEST_CASE("a stopped QP reports only what arrived in order") {
  Link link(kSelective);
  link.inject(lone_send(0));
  link.inject(lone_send(2));
  CHECK(link.responder().stop() == 1);
  CHECK(link.reassembly().left == kPeerReassemblyBytes);
  link.inject(lone_send(1));
  CHECK(link.received().size() == 1);
}

TEST_CASE("a packet that finds no receive buffer is sent again, and those behind it are not") {
  LinkOptions options = kSelective;
  options.receive_buffers = 1;
  options.initial_window = 8;
  Link link(options);
  Target target(link, 256);
  const Bytes data = test::random_fill(1, 256);
  for (std::uint64_t i = 1; i <= 4; ++i) link.requester().post(write(data, target, i));
  SUBCASE("in order") {}
  SUBCASE("out of order: the packet waited before it was refused") {
    link.data_fate = [](const wire::Packet&, std::size_t index) { return std::vector{kOneWay * (index == 0 ? 3 : 1)}; };
  }
  bool posted = false;
  link.ack_fate = [&](const wire::Packet& packet, std::size_t) {
    if ((packet.syndrome & 0xE0) == code(Syndrome::kRnrNak) && !std::exchange(posted, true)) {
      for (int i = 0; i < 3; ++i) link.post_receive();
    }
    return std::vector{kOneWay};
  };
  link.run();
  check_sent(link, link.sent(), 4);
  CHECK(posted);
  CHECK(link.received().size() == 4);
  CHECK(link.requester().counters().rnr >= 1);
  CHECK(link.requester().counters().timeouts == 0);
  CHECK(target.bytes == data);
}

TEST_CASE("reordering costs no retransmission once it has been measured") {
  LinkOptions options = kSelective;
  options.initial_window = 64;
  Link link(options);
  const Bytes data = test::random_fill(3, 256 * 2000);
  Target target(link, data.size());
  SplitMix64 random(5);
  link.data_fate = [&](const wire::Packet&, std::size_t) {
    return std::vector{random.uniform() < 0.2 ? kOneWay + static_cast<Nanos>(random.below(2 * kOneWay)) : kOneWay};
  };
  for (std::uint64_t i = 1; i <= 10; ++i) link.requester().post(write(data, target, i));
  link.run();
  link.drain();
  check_sent(link, link.sent(), 10);
  CHECK(target.bytes == data);
  const QpCounters& c = link.requester().counters();
  CHECK(link.responder().counters().out_of_order > 2000);
  CHECK(c.retransmits * 50 < c.tx_packets);
}

TEST_CASE("where packets get lost, a late last packet is asked for by a probe long before the timeout") {
  for (const bool known : {false, true}) {  // whether the QP has measured a round trip
    LinkOptions options = kSelective;
    options.probe_after = kMillisecond;
    Link link(options);
    link.requester().expect_loss();
    Target target(link, 256);
    const Bytes data = test::random_fill(1, 256);
    if (known) {
      link.requester().post(write(data, target, 1));
      link.run();
    }
    const Nanos start = link.now();
    std::size_t copies = 0;
    link.data_fate = [&](const wire::Packet&, std::size_t) {
      return ++copies <= 2 ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    link.requester().post(write(data, target, known ? 2 : 1));
    link.run();
    CHECK(copies == 3);
    CHECK(link.requester().counters().timeouts == 0);
    CHECK(link.now() - start < link.min_timeout());
  }
}

TEST_CASE("a QP that has measured no round trip asks for a lost first packet by a probe") {
  LinkOptions options = kSelective;
  options.probe_after = 5 * kMillisecond;
  Link link(options);
  Target target(link, 256);
  const Bytes data = test::random_fill(1, 256);
  const Nanos start = link.now();
  link.data_fate = [&](const wire::Packet&, std::size_t index) {
    return index == 0 ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  link.requester().post(write(data, target, 1));
  link.run();
  CHECK(target.bytes == data);
  CHECK(link.now() - start < 2 * options.probe_after);
}

TEST_CASE("a bitmap that lists packets which were lost delays them, and all arrive") {
  LinkOptions options = kSelective;
  options.initial_window = 32;
  options.probe_after = kMillisecond;
  Transfer transfer(options);
  transfer.link.data_fate = [](const wire::Packet&, std::size_t index) {
    return index < 20 && index % 3 == 0 ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  transfer.link.run(transfer.link.now() + 1);  // the first packets have left
  const Parsed lie(
      serialize(wire::ack_header(kRequesterQpn, wire::kPsnMask, wire::kAckNoCredits, 0), Bytes(8, std::byte{0xFF})));
  transfer.link.requester().on_acknowledge(lie.packet, transfer.link.now(), kOneWay);
  transfer.link.run();
  transfer.check();
}

TEST_CASE("acknowledgements of the past and of the future, and bitmaps of any content, break nothing") {
  SplitMix64 random(11);
  for (int round = 0; round < 200; ++round) {
    LinkOptions options = kSelective;
    options.initial_window = 32;
    Link link(options);
    const Bytes data = test::random_fill(3, 256 * 40);
    Target target(link, data.size());
    for (std::uint64_t i = 1; i <= 3; ++i) link.requester().post(write(data, target, i));
    std::size_t sent = 0;
    while (link.requester().next_packet(link.now())) ++sent;
    for (int i = 0; i < 50; ++i) {
      const auto psn = static_cast<std::uint32_t>(random.below(40)) - 4;
      const Bytes bitmap = test::random_fill(random, random.below(300));
      const Parsed ack(
          serialize(wire::ack_header(kRequesterQpn, psn & wire::kPsnMask, wire::kAckNoCredits, 0), bitmap));
      link.requester().on_acknowledge(ack.packet, link.now() + i * kMicrosecond, kOneWay);
      while (link.requester().next_packet(link.now() + i * kMicrosecond)) ++sent;
      link.requester().on_timer(link.now() + i * kMicrosecond);
    }
    CHECK(link.sent().size() <= 3);
  }
}

}  // namespace
}  // namespace paralet::rc_qp_test
