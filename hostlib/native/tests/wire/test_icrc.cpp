// SPDX-License-Identifier: Apache-2.0
// The vectors are whole IPv4 and IPv6 packets whose ICRC was computed elsewhere: by zlib's crc32 over eight bytes of
// ones and the packet with the variant fields masked, and confirmed by Scapy's RoCE layer.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>

#include "bytes.hpp"
#include "wire/icrc.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

using test::Bytes;
using test::from_hex;

constexpr std::uint16_t kMaxId = 63;

struct Vector {
  const char* name;
  const char* packet;
};
constexpr std::array<Vector, 8> kVectors{{
    {"ACKNOWLEDGE",
     "45020030000040003f1127b90a0000020a000001"
     "c12312b7001cd49f"
     "1100ffff0000123400fffffe1f000007e6bd36d6"},
    {"WRITE ONLY with immediate, 5 bytes and 3 of padding, identification 5",
     "45020048000540003f11269a0a0000010a000104"
     "ffff12b700348929"
     "0b30ffff00abcdef800102031122334455667788deadbeef000000050007000168656c6c6f00000097ca0540"},
    {"SEND ONLY, identification 63",
     "45020054003f40003f11abf4c0a80709c0a8070a"
     "c00012b700409bbe"
     "0400ffff0000000280000000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425"
     "2627afae5daf"},
    {"WRITE MIDDLE to another port, identification 17",
     "4502012c001140003f113cab7f0000017f000002"
     "d00dc3500118a2ff"
     "0700ffff0000ff00007fffff38b4e652e44da7f2370d9e260e27136550a4a3a6d07f5c0c332f8b1224083fd22b902f8911e8"
     "1818f8c99d5d5d9831957504d90e945de2e8f54ee781cc75f636d85099095aa300165a67036f9b540d6b8f0be21124179c3d"
     "d9f73817ce6e118d264aad6cb6dd210faf94acd3cf92c190237cb11f5d108cf25930263938b370a1b5769fa0f1483f95a90d"
     "9df2f130d60fcf04bd93f50ae69514da8c659ce2b10cccdaebf990d19838b0d7ec0b3e97818ecb96c4dbadbe172296d5234a"
     "42b24c6ba4e6ed24ec636a8ac0a1271e5866279238aaf84e58056d8f2fa8edd094ba97ae8b15442ee2db611a91bfe3946973"
     "3a9247d58fa3c55018300372555fd235f118fe84ff88"},
    {"WRITE ONLY of nothing",
     "4502003c000040003f1123a80a0102030a030201"
     "c0de12b7002876c5"
     "0a00ffff0003133780000001000000000000000000000000000000002b59e4bb"},
    {"IPv6: ACKNOWLEDGE",
     "60000000001c113ffd000000000000000000000000000002fd000000000000000000000000000001"
     "c12312b7001ca380"
     "1140ffff0000123400fffffe1f00000762dfe7fd"},
    {"IPv6: SEND ONLY, with traffic class and flow label",
     "668abcde0040114020010db800010000000000000000000920010db8000200030004000500060007"
     "c00012b700403c1e"
     "0440ffff00000002800000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425"
     "262728053479e5"},
    {"IPv6: WRITE ONLY with immediate to another port, 5 bytes and 3 of padding, hop limit 1",
     "6020000100381101fd00000100020003000000000000000afd00000100020004000000000000000b"
     "ffffc3500038c35a"
     "0b70ffff00abcdef80000001000102031122334455667788deadbeef000000050007000168656c6c6f00000070e7bee5"},
}};

IpAddress ipv6_at(const std::byte* place) {
  IpAddress::Bytes bytes{};
  std::memcpy(bytes.data(), place, bytes.size());
  return IpAddress(bytes);
}

/// The address with one bit changed.
IpAddress flipped(const IpAddress& address, unsigned bit) {
  IpAddress::Bytes bytes = address.bytes();
  bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ (1U << bit % 8));
  return IpAddress(bytes);
}

struct Captured {
  explicit Captured(const Vector& vector) {
    const Bytes packet = from_hex(vector.packet);
    const bool ipv4 = (packet[0] >> 4) == std::byte{4};
    const std::byte* udp = packet.data() + (ipv4 ? 20 : 40);
    flow = {.src_address = ipv4 ? IpAddress(wire::get_u32(packet.data() + 12)) : ipv6_at(packet.data() + 8),
            .dst_address = ipv4 ? IpAddress(wire::get_u32(packet.data() + 16)) : ipv6_at(packet.data() + 24),
            .src_port = wire::get_u16(udp),
            .dst_port = wire::get_u16(udp + 2)};
    if (ipv4) ip_id = wire::get_u16(packet.data() + 4);
    datagram.assign(packet.begin() + (ipv4 ? 28 : 48), packet.end());
  }
  [[nodiscard]] std::uint32_t stored() const {  // little-endian, as the specification stores it
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      value |= std::to_integer<std::uint32_t>(datagram[datagram.size() - 4 + i]) << (8 * i);
    }
    return value;
  }
  void seal(std::uint16_t id) {
    const std::uint32_t crc = icrc(flow, id, std::span(datagram).first(datagram.size() - 4), {});
    for (std::size_t i = 0; i < 4; ++i) datagram[datagram.size() - 4 + i] = static_cast<std::byte>(crc >> (8 * i));
  }

  UdpFlow flow;
  std::uint16_t ip_id = 0;
  Bytes datagram;
};

TEST_CASE("known packets have the expected ICRC") {
  for (const Vector& vector : kVectors) {
    CAPTURE(vector.name);
    const Captured packet(vector);
    const std::span covered = std::span(packet.datagram).first(packet.datagram.size() - 4);
    CHECK(icrc(packet.flow, packet.ip_id, covered, {}) == packet.stored());
  }
}

TEST_CASE("header, payload and padding may come in pieces") {
  const Captured packet(kVectors[1]);
  const std::span<const std::byte> all(packet.datagram);
  CHECK(icrc(packet.flow, packet.ip_id, all.first(32), all.subspan(32, 5), 3) == packet.stored());
  CHECK(icrc(packet.flow, packet.ip_id, all.first(12), all.subspan(12, 28)) == packet.stored());
}

TEST_CASE("known packets pass with any likely identification") {
  IcrcVerifier verifier;
  for (const Vector& vector : kVectors) {
    CAPTURE(vector.name);
    const Captured packet(vector);
    for (const std::uint16_t likely : {0, 1, 5, 17, 63, 1000, 65535}) {
      CHECK(verifier.verify(packet.flow, packet.datagram, likely, kMaxId));
    }
  }
}

TEST_CASE("identifications up to the limit are recovered, larger ones rejected") {
  IcrcVerifier verifier;
  for (const Vector& vector : kVectors) {
    CAPTURE(vector.name);
    Captured packet(vector);
    if (!packet.flow.dst_address.is_ipv4()) continue;
    for (unsigned id = 0; id <= kMaxId; ++id) {
      packet.seal(static_cast<std::uint16_t>(id));
      CHECK(verifier.verify(packet.flow, packet.datagram, 0, kMaxId));
      CHECK(verifier.verify(packet.flow, packet.datagram, static_cast<std::uint16_t>(id), kMaxId));
    }
    for (const std::uint16_t id : {64, 65, 100, 4096, 0x8000, 65535}) {
      packet.seal(id);
      CHECK_FALSE(verifier.verify(packet.flow, packet.datagram, 0, kMaxId));
      CHECK(
          verifier.verify(packet.flow, packet.datagram, id, kMaxId));  // the expected identification needs no recovery
      CHECK(verifier.verify(packet.flow, packet.datagram, 0, 65535));
    }
  }
}

TEST_CASE("every flipped bit is detected, except in the byte that the ICRC masks") {
  constexpr std::size_t kResv8a = 4;
  IcrcVerifier verifier;
  for (const Vector& vector : kVectors) {
    CAPTURE(vector.name);
    Captured packet(vector);
    for (std::size_t bit = 0; bit < packet.datagram.size() * 8; ++bit) {
      CAPTURE(bit);
      packet.datagram[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      REQUIRE(verifier.verify(packet.flow, packet.datagram, packet.ip_id, kMaxId) == (bit / 8 == kResv8a));
      packet.datagram[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
  }
}

TEST_CASE("addresses and ports are covered") {
  IcrcVerifier verifier;
  for (const Vector& vector : {kVectors[2], kVectors[6]}) {
    CAPTURE(vector.name);
    const Captured packet(vector);
    for (unsigned bit = packet.flow.dst_address.is_ipv4() ? 96 : 0; bit < 128; ++bit) {
      UdpFlow flow = packet.flow;
      flow.src_address = flipped(flow.src_address, bit);
      CHECK_FALSE(verifier.verify(flow, packet.datagram, packet.ip_id, kMaxId));
      flow = packet.flow;
      flow.dst_address = flipped(flow.dst_address, bit);
      CHECK_FALSE(verifier.verify(flow, packet.datagram, packet.ip_id, kMaxId));
    }
    for (unsigned bit = 0; bit < 16; ++bit) {
      UdpFlow flow = packet.flow;
      flow.src_port = static_cast<std::uint16_t>(flow.src_port ^ (1U << bit));
      CHECK_FALSE(verifier.verify(flow, packet.datagram, packet.ip_id, kMaxId));
      flow = packet.flow;
      flow.dst_port = static_cast<std::uint16_t>(flow.dst_port ^ (1U << bit));
      CHECK_FALSE(verifier.verify(flow, packet.datagram, packet.ip_id, kMaxId));
    }
  }
}

TEST_CASE("one verifier handles packets of all lengths in any order") {
  IcrcVerifier verifier;  // more lengths than its cache of 64 entries
  SplitMix64 random(3);
  const UdpFlow flow{.src_address = 0x0A000001, .dst_address = 0x0A000002, .src_port = 0xC001, .dst_port = 4791};
  for (int i = 0; i < 2000; ++i) {
    Captured packet(kVectors[0]);
    packet.flow = flow;
    packet.datagram = test::random_fill(random, 16 + random.below(4200));
    const auto id = static_cast<std::uint16_t>(random.below(64));
    packet.seal(id);
    REQUIRE(verifier.verify(flow, packet.datagram, static_cast<std::uint16_t>(random.below(64)), kMaxId));
    packet.datagram[20 % packet.datagram.size()] ^= std::byte{0x10};
    REQUIRE_FALSE(verifier.verify(flow, packet.datagram, id, kMaxId));
  }
}

}  // namespace
}  // namespace paralet
