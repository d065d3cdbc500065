// SPDX-License-Identifier: Apache-2.0
// Golden bytes follow the figures of the IBTA specification, volume 1, section 9.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>

#include "bytes.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

using test::Bytes;
using test::from_hex;
using test::to_hex;
using wire::Opcode;
using wire::ParseError;

constexpr std::uint32_t kQpn = 0xABCDEF;
constexpr std::uint32_t kPsn = 0x010203;
constexpr std::uint64_t kAddress = 0x1122334455667788;
constexpr std::uint32_t kRkey = 0xDEADBEEF;
constexpr std::uint32_t kLength = 0x00012345;
constexpr std::uint32_t kImm = 0xCAFE0007;

struct Golden {
  Opcode opcode;
  const char* header;
};
// BTH: opcode, SE|M|pad|version (M is 1), P_Key, reserved, QPN, A|reserved, PSN. Then RETH (address, rkey, length),
// then ImmDt.
constexpr std::array<Golden, 12> kGolden{{
    {Opcode::kSendFirst, "00 60 ffff 00abcdef 80010203"},
    {Opcode::kSendMiddle, "01 60 ffff 00abcdef 80010203"},
    {Opcode::kSendLast, "02 60 ffff 00abcdef 80010203"},
    {Opcode::kSendLastImm, "03 60 ffff 00abcdef 80010203 cafe0007"},
    {Opcode::kSendOnly, "04 60 ffff 00abcdef 80010203"},
    {Opcode::kSendOnlyImm, "05 60 ffff 00abcdef 80010203 cafe0007"},
    {Opcode::kWriteFirst, "06 60 ffff 00abcdef 80010203 1122334455667788 deadbeef 00012345"},
    {Opcode::kWriteMiddle, "07 60 ffff 00abcdef 80010203"},
    {Opcode::kWriteLast, "08 60 ffff 00abcdef 80010203"},
    {Opcode::kWriteLastImm, "09 60 ffff 00abcdef 80010203 cafe0007"},
    {Opcode::kWriteOnly, "0a 60 ffff 00abcdef 80010203 1122334455667788 deadbeef 00012345"},
    {Opcode::kWriteOnlyImm, "0b 60 ffff 00abcdef 80010203 1122334455667788 deadbeef 00012345 cafe0007"},
}};

Bytes header_of(Opcode opcode, std::uint8_t pad = 2, bool ack_request = true) {
  const wire::Header header = wire::data_header(opcode, kQpn, kPsn, ack_request, pad, kAddress, kRkey, kLength, kImm);
  return {header.bytes.begin(), header.bytes.begin() + header.length};
}

/// A datagram on the wire: header, payload, padding, ICRC.
Bytes datagram_of(Opcode opcode, const Bytes& payload) {
  const auto pad = static_cast<std::uint8_t>((4 - payload.size() % 4) % 4);
  Bytes out = header_of(opcode, pad);
  out.insert(out.end(), payload.begin(), payload.end());
  out.resize(out.size() + pad + wire::kIcrcBytes);
  return out;
}

TEST_CASE("data headers match the bytes of the specification") {
  for (const Golden& golden : kGolden) {
    CAPTURE(static_cast<int>(golden.opcode));
    CHECK(to_hex(header_of(golden.opcode)) == to_hex(from_hex(golden.header)));
  }
  CHECK(to_hex(header_of(Opcode::kSendMiddle, 0, false)) == "0140ffff00abcdef00010203");
}

TEST_CASE("values wider than 24 bits are masked and do not touch neighbouring fields") {
  const wire::Header header = wire::data_header(Opcode::kSendOnly, 0xFF000001, 0xFF000002, false, 7, 0, 0, 0, 0);
  CHECK(to_hex({header.bytes.data(), header.length}) == "0470ffff0000000100000002");
}

TEST_CASE("acknowledgements match the bytes of the specification") {
  const wire::Header ack = wire::ack_header(kQpn, kPsn, 0x1F, 0xFF000007);
  CHECK(to_hex({ack.bytes.data(), ack.length}) ==
        "1140ffff00abcdef00010203"
        "1f000007");
  const wire::Header nak =
      wire::ack_header(1, 0xFFFFFF, static_cast<std::uint8_t>(wire::Syndrome::kNakRemoteAccess), 0);
  CHECK(to_hex({nak.bytes.data(), nak.length}) ==
        "1140ffff0000000100ffffff"
        "62000000");
  wire::Header counting = wire::ack_header(kQpn, kPsn, 0x1F, 7);
  wire::append_word(counting, 0x01020304);
  CHECK(to_hex({counting.bytes.data(), counting.length}) ==
        "1140ffff00abcdef00010203"
        "1f000007"
        "01020304");
}

TEST_CASE("a serialized packet parses to the same values, for any payload length") {
  for (const Golden& golden : kGolden) {
    for (std::size_t bytes = 0; bytes <= 9; ++bytes) {
      CAPTURE(static_cast<int>(golden.opcode));
      CAPTURE(bytes);
      const Bytes payload = test::random_fill(bytes, bytes);
      const Bytes datagram = datagram_of(golden.opcode, payload);
      wire::Packet packet;
      REQUIRE(wire::parse(datagram, packet) == ParseError::kNone);
      const auto kind = *wire::traits(static_cast<std::uint8_t>(golden.opcode));
      CHECK(packet.opcode == static_cast<std::uint8_t>(golden.opcode));
      CHECK(packet.ack_request);
      CHECK(packet.dest_qpn == kQpn);
      CHECK(packet.psn == kPsn);
      CHECK(std::ranges::equal(packet.payload, payload));
      CHECK(packet.remote_address == (kind.write && kind.first ? kAddress : 0));
      CHECK(packet.rkey == (kind.write && kind.first ? kRkey : 0));
      CHECK(packet.dma_length == (kind.write && kind.first ? kLength : 0));
      CHECK(packet.imm == (kind.imm ? kImm : 0));
    }
  }
}

TEST_CASE("a serialized acknowledgement parses to the same values") {
  const wire::Header header = wire::ack_header(kQpn, kPsn, 0x60, 0x654321);
  Bytes datagram(header.bytes.begin(), header.bytes.begin() + header.length);
  datagram.resize(datagram.size() + wire::kIcrcBytes);
  wire::Packet packet;
  REQUIRE(wire::parse(datagram, packet) == ParseError::kNone);
  CHECK(packet.dest_qpn == kQpn);
  CHECK(packet.psn == kPsn);
  CHECK(packet.syndrome == 0x60);
  CHECK(packet.msn == 0x654321);
  CHECK_FALSE(packet.ack_request);
}

TEST_CASE("PSN and MSN of an acknowledgement have 24 bits") {
  const wire::Header header = wire::ack_header(kQpn, 0x1000003, 0x1F, 0x1000002);
  Bytes datagram(header.bytes.begin(), header.bytes.begin() + header.length);
  datagram.resize(datagram.size() + wire::kIcrcBytes);
  wire::Packet packet;
  REQUIRE(wire::parse(datagram, packet) == ParseError::kNone);
  CHECK(packet.psn == 3);
  CHECK(packet.syndrome == 0x1F);
  CHECK(packet.msn == 2);
}

TEST_CASE("a datagram truncated in its headers is rejected") {
  for (const Golden& golden : kGolden) {
    const Bytes whole = datagram_of(golden.opcode, from_hex("01020304 05"));  // five bytes and three of padding
    const std::size_t least = header_of(golden.opcode).size() + wire::kIcrcBytes + 3;
    for (std::size_t length = 0; length < least; ++length) {
      CAPTURE(static_cast<int>(golden.opcode));
      CAPTURE(length);
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));  // its end, for ASan
      wire::Packet packet;
      CHECK(wire::parse(cut, packet) == ParseError::kTruncated);
    }
  }
  const wire::Header ack = wire::ack_header(kQpn, kPsn, 0, 0);
  for (std::size_t length = 0; length < std::size_t{ack.length} + wire::kIcrcBytes; ++length) {
    Bytes cut(ack.bytes.begin(), ack.bytes.begin() + static_cast<std::ptrdiff_t>(length));
    wire::Packet packet;
    CHECK(wire::parse(cut, packet) == ParseError::kTruncated);
  }
}

TEST_CASE("unsupported requests parse as such, all other opcodes are rejected") {
  unsigned known = 0;
  unsigned refused = 0;
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    Bytes datagram = datagram_of(Opcode::kWriteOnlyImm, Bytes(64));
    datagram[0] = static_cast<std::byte>(opcode);
    wire::Packet packet;
    const ParseError error = wire::parse(datagram, packet);
    if (const auto kind = wire::traits(static_cast<std::uint8_t>(opcode))) {
      ++(kind->refused ? refused : known);
      CHECK(error == ParseError::kNone);
    } else {
      CHECK(error == ParseError::kOpcode);
    }
  }
  CHECK(known == kGolden.size() + 1);  // and ACKNOWLEDGE
  CHECK(refused == 14);                // READ, atomics, SEND with invalidate, and reserved opcodes
  for (const std::uint8_t response : {0x0D, 0x0E, 0x0F, 0x10, 0x12}) CHECK_FALSE(wire::traits(response));
  for (const std::uint8_t other : {0x20, 0x24, 0x64, 0x81, 0xC0, 0xFF})
    CHECK_FALSE(wire::traits(other));  // UC, UD, CNP
}

TEST_CASE("another version or partition is rejected, the membership bit is ignored") {
  wire::Packet packet;
  for (unsigned version = 1; version < 16; ++version) {
    Bytes datagram = datagram_of(Opcode::kSendOnly, {});
    datagram[1] |= static_cast<std::byte>(version);
    CHECK(wire::parse(datagram, packet) == ParseError::kVersion);
  }
  Bytes datagram = datagram_of(Opcode::kSendOnly, {});
  wire::put_u16(datagram.data() + 2, 0x7FFF);
  CHECK(wire::parse(datagram, packet) == ParseError::kNone);
  for (const std::uint16_t pkey : {0x0000, 0x8001, 0xFFFE, 0xBFFF}) {
    wire::put_u16(datagram.data() + 2, pkey);
    CHECK(wire::parse(datagram, packet) == ParseError::kPartition);
  }
}

TEST_CASE("MigReq may be 0 or 1") {
  for (const Golden& golden : kGolden) {
    Bytes datagram = datagram_of(golden.opcode, {});
    CHECK((datagram[1] & std::byte{0x40}) == std::byte{0x40});
    wire::Packet packet;
    CHECK(wire::parse(datagram, packet) == ParseError::kNone);
    datagram[1] &= ~std::byte{0x40};
    CHECK(wire::parse(datagram, packet) == ParseError::kNone);
  }
}

TEST_CASE("a congestion notification packet is told from a malformed one") {
  wire::Packet packet;
  Bytes cnp = from_hex("81 40 ffff 00abcdef 00000000");
  for (std::size_t length = cnp.size() + 4; length < 64; ++length) {
    cnp.resize(length);
    CHECK(wire::parse(cnp, packet) == (length == 32 ? ParseError::kCnp : ParseError::kOpcode));
  }
}

TEST_CASE("random bytes are rejected or parsed within their bounds") {
  SplitMix64 random(1);
  unsigned accepted = 0;
  for (int i = 0; i < 50'000; ++i) {
    Bytes datagram = test::random_fill(random, random.below(96));
    if (datagram.size() > 3 && (i % 2) == 0) {  // let half of them pass the first checks
      datagram[0] = static_cast<std::byte>(random.below(0x12));
      datagram[1] &= std::byte{0xF0};
      wire::put_u16(datagram.data() + 2, wire::kDefaultPkey);
    }
    wire::Packet packet;
    if (wire::parse(datagram, packet) != ParseError::kNone) continue;
    ++accepted;
    REQUIRE(packet.payload.data() >= datagram.data());
    REQUIRE(packet.payload.data() + packet.payload.size() <= datagram.data() + datagram.size() - wire::kIcrcBytes);
    REQUIRE(packet.psn <= wire::kPsnMask);
    REQUIRE(packet.dest_qpn <= wire::kPsnMask);
  }
  CHECK(accepted > 1000);
}

TEST_CASE("RNR timer codes match table 47") {
  CHECK(wire::rnr_delay_ns(0) == 655'360'000);
  CHECK(wire::rnr_delay_ns(1) == 10'000);
  CHECK(wire::rnr_delay_ns(12) == 640'000);
  CHECK(wire::rnr_delay_ns(31) == 491'520'000);
  for (std::uint8_t code = 2; code < 32; ++code) CHECK(wire::rnr_delay_ns(code) > wire::rnr_delay_ns(code - 1));
  CHECK(wire::rnr_delay_ns(0x20 | 12) == wire::rnr_delay_ns(12));  // five bits
}

TEST_CASE("the largest path MTU for an MTU") {
  const std::pair<std::uint32_t, std::uint32_t> cases[] = {{65536, 4096}, {9000, 4096}, {4096, 2048}, {1500, 1024},
                                                           {576, 512},    {575, 256},   {68, 256}};
  for (const auto& link : cases) {
    CAPTURE(link.first);
    CHECK(wire::largest_path_mtu(link.first) == link.second);
    CHECK(wire::largest_path_mtu(link.first + 20, true) == link.second);
  }
}

}  // namespace
}  // namespace paralet
