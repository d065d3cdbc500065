// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "bytes.hpp"
#include "engine/handshake.hpp"
#include "wire/wire.hpp"

namespace paralet::handshake {
namespace {

using test::Bytes;
using test::to_hex;

template <std::size_t N>
std::array<std::byte, N> counting(std::uint8_t first) {
  std::array<std::byte, N> out{};
  for (std::byte& b : out) b = static_cast<std::byte>(first++);
  return out;
}

Bytes counting_bytes(std::uint8_t count) {
  Bytes out;
  for (std::uint8_t i = 1; i <= count; ++i) out.push_back(static_cast<std::byte>(i));
  return out;
}

Endpoint endpoint(std::size_t qps) {
  Endpoint out{.device = counting<16>(0x10), .address = 0x0A000102, .udp_port = 4791, .path_mtu = 4096, .qps = {}};
  for (std::uint32_t i = 0; i < qps; ++i) out.qps.push_back({.qpn = 0x100 + i, .first_psn = 0xFFFFFF - i});
  return out;
}

Endpoint ipv6_endpoint(std::size_t qps) {
  Endpoint out = endpoint(qps);
  out.address = *parse_address("2001:db8::1");
  return out;
}

Endpoint fused_endpoint(const IpAddress& address) {
  Endpoint out = endpoint(2);
  out.address = address;
  out.qps[1].qpn |= 1U << 24;
  out.join = counting<16>(0xA0);
  out.further = {{.address = 0x0A000202, .udp_port = 4792, .max_ip_id = 64, .ece = {4, 5, 6}}};
  return out;
}

std::vector<Frame> frames() {
  return {Hello{.listener = 7, .token = counting<16>(0x80), .endpoint = fused_endpoint(0x0A000102)},
          Welcome{fused_endpoint(*parse_address("2001:db8::1"))},
          Join{.token = counting<16>(0x60), .member = 3},
          MemberDown{2},
          Hello{.listener = 7, .token = counting<16>(0x80), .endpoint = ipv6_endpoint(3)},
          Hello{.listener = 7, .token = counting<16>(0x80), .endpoint = endpoint(3)},
          Welcome{endpoint(3)},
          Refuse{"no such listener"},
          Connect{.connection = 1, .listener = 2, .token = counting<16>(0x40)},
          Accept{.connection = 0x01020304, .peer_connection = 0x05060708},
          Reject{.connection = 9, .reason = "gone"},
          Close{0xFFFFFFFF},
          Closed{3},
          Overrun{.connection = 4, .slot = 0xFFFE, .message_bytes = 0x0102030405060708},
          NewQp{.lane = 5, .qp = {.qpn = 0x123456, .first_psn = 0xABCDEF}, .ece = {1, 2, 3}, .path_mtu = {}},
          QpReady{6},
          QpDrained{0xFFFF},
          QpStopped{.lane = 8, .arrived = 0x01020304},
          SignOfLife{true},
          SignOfLife{false}};
}

Bytes body_of(const Frame& frame) {
  const auto bytes = encode(frame);
  return {bytes.begin() + 4, bytes.end()};
}

TEST_CASE("frames have the bytes that docs/protocol.md describes") {
  CHECK(to_hex(encode(Accept{.connection = 0x01020304, .peer_connection = 0x05060708})) ==
        "00000009"
        "05"
        "01020304"
        "05060708");
  CHECK(to_hex(encode(Close{0xFFFFFFFF})) ==
        "00000005"
        "07"
        "ffffffff");
  CHECK(to_hex(encode(Overrun{.connection = 4, .slot = 0xFFFE, .message_bytes = 0x0102030405060708})) ==
        "0000000f"
        "09"
        "00000004"
        "fffe"
        "0102030405060708");
  CHECK(to_hex(encode(
            NewQp{.lane = 5, .qp = {.qpn = 0x123456, .first_psn = 0xABCDEF}, .ece = {1, 2, 3}, .path_mtu = {}})) ==
        "00000017"
        "0a"
        "0005"
        "00123456"
        "00abcdef"
        "00000001"
        "00000002"
        "00000003");
  CHECK(to_hex(encode(
            NewQp{.lane = 5, .qp = {.qpn = 0x123456, .first_psn = 0xABCDEF}, .ece = {1, 2, 3}, .path_mtu = 1024})) ==
        "0000001b"
        "0a"
        "0005"
        "00123456"
        "00abcdef"
        "00000001"
        "00000002"
        "00000003"
        "00000400");
  CHECK(to_hex(encode(QpReady{6})) ==
        "00000003"
        "0b"
        "0006");
  CHECK(to_hex(encode(QpDrained{7})) ==
        "00000003"
        "0c"
        "0007");
  CHECK(to_hex(encode(SignOfLife{.wants_answer = true})) ==
        "00000002"
        "11"
        "01");
  CHECK(to_hex(encode(SignOfLife{.wants_answer = false})) ==
        "00000002"
        "11"
        "00");
  CHECK(to_hex(encode(Reject{.connection = 9, .reason = "gone"})) ==
        "0000000b"
        "06"
        "00000009"
        "0004"
        "676f6e65");
  CHECK(to_hex(encode(Hello{.listener = 7, .token = counting<16>(0x80), .endpoint = endpoint(1)})) ==
        "0000003f"
        "01"
        "504c4831"
        "0001"
        "00000007"
        "808182838485868788898a8b8c8d8e8f"
        "101112131415161718191a1b1c1d1e1f"
        "0a000102"
        "12b7"
        "00001000"
        "0001"
        "00000100"
        "00ffffff");
}

TEST_CASE("an IPv6 address ends the endpoint, behind the optional fields") {
  CHECK(to_hex(encode(Welcome{ipv6_endpoint(1)})) ==
        "00000045"
        "02"
        "0001"
        "101112131415161718191a1b1c1d1e1f"
        "00000000"
        "12b7"
        "00001000"
        "0001"
        "00000100"
        "00ffffff"
        "003f"
        "000000000000000000000000"
        "20010db8000000000000000000000001");
  const auto decoded = decode(body_of(Welcome{ipv6_endpoint(1)}));
  REQUIRE(decoded);
  CHECK(std::get<Welcome>(*decoded).endpoint.address == ipv6_endpoint(1).address);
  Bytes mapped = body_of(Welcome{ipv6_endpoint(1)});
  const auto ipv4 = IpAddress(0x0A000102).bytes();
  std::memcpy(mapped.data() + mapped.size() - ipv4.size(), ipv4.data(), ipv4.size());
  CHECK_FALSE(decode(mapped));  // an IPv4 address has its own field
  Bytes both = body_of(Welcome{ipv6_endpoint(1)});
  wire::put_u32(both.data() + 1 + 2 + 16, 0x0A000102);
  CHECK_FALSE(decode(both));
}

TEST_CASE("a handle has an IPv4 address in version 1, an IPv6 address in version 2") {
  Handle handle{.address = 0x0A000102,
                .tcp_port = 0x1234,
                .device = counting<16>(0x10),
                .listener = 7,
                .token = counting<16>(0x80)};
  CHECK(to_hex(encode(handle))
            .starts_with("504c4554"
                         "0001"
                         "1234"
                         "0a000102"
                         "101112131415161718191a1b1c1d1e1f"
                         "00000007"
                         "808182838485868788898a8b8c8d8e8f"
                         "0000"));
  CHECK(decode_handle(encode(handle))->address == handle.address);
  handle.address = *parse_address("2001:db8::1");
  const auto bytes = encode(handle);
  CHECK(
      to_hex(bytes).starts_with("504c4554"
                                "0002"
                                "1234"
                                "00000000"
                                "101112131415161718191a1b1c1d1e1f"
                                "00000007"
                                "808182838485868788898a8b8c8d8e8f"
                                "20010db8000000000000000000000001"
                                "0000"));
  const auto decoded = decode_handle(bytes);
  REQUIRE(decoded);
  CHECK(decoded->address == handle.address);
  CHECK(decoded->tcp_port == 0x1234);
  CHECK(decoded->listener == 7);
  CHECK(decoded->token == handle.token);
  auto other = bytes;
  other[11] = std::byte{1};  // in the IPv4 address
  CHECK_FALSE(decode_handle(other));
  other = bytes;
  other[5] = std::byte{3};  // version
  CHECK_FALSE(decode_handle(other));
  other = bytes;
  const auto ipv4 = IpAddress(0x0A000102).bytes();
  std::memcpy(other.data() + 48, ipv4.data(), ipv4.size());
  CHECK_FALSE(decode_handle(other));
}

TEST_CASE("encoded frames decode to the same frame") {
  for (const Frame& frame : frames()) {
    CAPTURE(frame.index());
    const Bytes body = body_of(frame);
    CHECK(wire::get_u32(encode(frame).data()) == body.size());
    const auto decoded = decode(body);
    REQUIRE(decoded);
    CHECK(decoded->index() == frame.index());
    CHECK(to_hex(encode(*decoded)) == to_hex(encode(frame)));
  }
}

TEST_CASE("a frame that is too short or too long is refused") {
  for (const Frame& frame : frames()) {
    CAPTURE(frame.index());
    const Bytes body = body_of(frame);
    for (std::size_t length = 0; length < body.size(); ++length) {
      const Bytes cut(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(length));
      CHECK_FALSE(decode(cut));
    }
    Bytes longer = body;
    longer.push_back(std::byte{0});
    CHECK_FALSE(decode(longer));
  }
}

TEST_CASE("a fresh QP has a path MTU where a route has become narrower, whole or not at all") {
  const Bytes body = body_of(NewQp{.lane = 6, .qp = {.qpn = 7, .first_psn = 8}, .ece = {}, .path_mtu = 1024});
  const auto path_mtu = [&](std::size_t length) -> std::optional<std::uint32_t> {
    const auto frame = decode(std::span(body).first(length));
    return frame ? std::get<NewQp>(*frame).path_mtu.value_or(0) : std::optional<std::uint32_t>();
  };
  CHECK(path_mtu(body.size()) == 1024);
  CHECK(path_mtu(body.size() - 4) == 0);
  for (std::size_t missing = 1; missing < 4; ++missing) CHECK(path_mtu(body.size() - missing) == std::nullopt);
}

TEST_CASE("the optional fields of an endpoint are present together or not at all") {
  Endpoint nic = endpoint(2);
  nic.max_ip_id = 65535;
  nic.ece = {.vendor_id = 0x15B3, .options = 0x10000000, .comp_mask = 1};
  const Bytes body = body_of(Welcome{nic});
  CHECK(body.size() == body_of(Welcome{endpoint(2)}).size() + 14);
  const auto decoded = decode(body);
  REQUIRE(decoded);
  const Endpoint& got = std::get<Welcome>(*decoded).endpoint;
  CHECK(got.max_ip_id == 65535);
  CHECK(got.ece == nic.ece);
  CHECK(got.qps.size() == 2);
  for (std::size_t missing = 1; missing < 14; ++missing) {
    CHECK_FALSE(decode(std::span(body).first(body.size() - missing)));
  }
  CHECK(std::get<Welcome>(*decode(body_of(Welcome{endpoint(2)}))).endpoint.max_ip_id == kDefaultMaxIpId);
}

TEST_CASE("unknown types, other versions and a wrong magic number are refused") {
  for (unsigned type = 0; type < 256; ++type) {
    if ((type >= 1 && type <= 9) || type == 16) continue;  // a numbered frame holds any bytes
    CHECK_FALSE(decode(Bytes(32, static_cast<std::byte>(type))));
  }
  Bytes hello = body_of(Hello{.listener = 7, .token = {}, .endpoint = endpoint(1)});
  hello[6] = std::byte{2};  // version
  CHECK_FALSE(decode(hello));
  hello[6] = std::byte{1};
  CHECK(decode(hello));
  hello[1] = std::byte{'G'};
  CHECK_FALSE(decode(hello));
  Bytes welcome = body_of(Welcome{endpoint(1)});
  welcome[2] = std::byte{9};
  CHECK_FALSE(decode(welcome));
  CHECK_FALSE(decode({}));
}

TEST_CASE("endpoints with invalid values are refused") {
  const auto accepted = [](const Endpoint& e) { return decode(body_of(Welcome{e})).has_value(); };
  CHECK(accepted(endpoint(1)));
  CHECK(accepted(endpoint(kMaxQps)));
  CHECK_FALSE(accepted(endpoint(0)));
  CHECK_FALSE(accepted(endpoint(kMaxQps + 1)));
  CHECK(encode(Welcome{endpoint(kMaxQps)}).size() <= kMaxFrameBytes);
  CHECK(encode(Hello{.listener = 1, .token = {}, .endpoint = endpoint(kMaxQps)}).size() <= kMaxFrameBytes);
  for (const std::uint32_t mtu : {0U, 255U, 257U, 3000U, 8192U, 0xFFFFFFFFU}) {
    Endpoint e = endpoint(1);
    e.path_mtu = mtu;
    CHECK_FALSE(accepted(e));
    CHECK_FALSE(decode(body_of(NewQp{.lane = 1, .qp = {}, .ece = {}, .path_mtu = mtu})));
  }
  for (const std::uint32_t mtu : {256U, 512U, 1024U, 2048U, 4096U}) {
    Endpoint e = endpoint(1);
    e.path_mtu = mtu;
    CHECK(accepted(e));
  }
  Endpoint no_port = endpoint(1);
  no_port.udp_port = 0;
  CHECK_FALSE(accepted(no_port));
  Endpoint wide_qpn = endpoint(2);
  wide_qpn.qps[1].qpn = 0x1000000;
  CHECK_FALSE(accepted(wide_qpn));
  Endpoint wide_psn = endpoint(2);
  wide_psn.qps[0].first_psn = 0x1000000;
  CHECK_FALSE(accepted(wide_psn));
}

TEST_CASE("a QP count beyond the end of the frame is refused without allocating") {
  Bytes welcome = body_of(Welcome{endpoint(1)});
  const std::size_t count_at = 1 + 2 + 16 + 4 + 2 + 4;
  wire::put_u16(welcome.data() + count_at, 1000);
  CHECK_FALSE(decode(welcome));
  wire::put_u16(welcome.data() + count_at, 0xFFFF);
  CHECK_FALSE(decode(welcome));
}

TEST_CASE("reasons are cut to 512 bytes when sent and refused when longer") {
  const auto frame = decode(body_of(Refuse{std::string(2000, 'x')}));
  REQUIRE(frame);
  CHECK(std::get<Refuse>(*frame).reason == std::string(512, 'x'));
  Bytes body = body_of(Refuse{std::string(512, 'x')});
  wire::put_u16(body.data() + 1, 513);
  body.push_back(std::byte{'x'});
  CHECK_FALSE(decode(body));
}

TEST_CASE("reasons must be printable, because they go into logs and exceptions") {
  const auto frame = decode(body_of(Refuse{"no\n\x1b[31m \xC3\xA9"}));
  REQUIRE(frame);
  CHECK(std::get<Refuse>(*frame).reason == "no\\n\\x1b[31m \\xc3\\xa9");
  for (const char bad : {'\n', '\x1b', '\x7f', '\x80', '\0'}) {
    Bytes body = body_of(Refuse{"x"});
    body.back() = static_cast<std::byte>(bad);
    CHECK_FALSE(decode(body));
  }
}

TEST_CASE("random frames are refused or decode to valid values") {
  SplitMix64 random(5);
  const std::vector<Frame> good = frames();
  unsigned accepted = 0;
  for (int i = 0; i < 50'000; ++i) {
    Bytes body;
    if (i % 2 == 0) {
      body = test::random_fill(random, random.below(120));
      if (!body.empty()) body[0] = static_cast<std::byte>(random.below(11));
    } else {
      body = body_of(good[random.below(good.size())]);
      body[random.below(body.size())] ^= static_cast<std::byte>(1U << random.below(8));
    }
    const auto frame = decode(body);
    if (!frame) continue;
    ++accepted;
    REQUIRE(to_hex(body_of(*frame)) == to_hex(body));  // one encoding per frame
  }
  CHECK(accepted > 1000);
}

TEST_CASE("handles have 128 bytes and decode to the same handle") {
  const Handle handle{
      .address = 0x7F000001, .tcp_port = 40000, .device = counting<16>(1), .listener = 5, .token = counting<16>(0x90)};
  const auto bytes = encode(handle);
  CHECK(to_hex(std::span(bytes).first(48)) ==
        "504c4554"
        "0001"
        "9c40"
        "7f000001"
        "0102030405060708090a0b0c0d0e0f10"
        "00000005"
        "909192939495969798999a9b9c9d9e9f");
  CHECK(std::ranges::all_of(std::span(bytes).subspan(48), [](std::byte b) { return b == std::byte{0}; }));
  const auto decoded = decode_handle(bytes);
  REQUIRE(decoded);
  CHECK(decoded->address == handle.address);
  CHECK(decoded->tcp_port == handle.tcp_port);
  CHECK(decoded->device == handle.device);
  CHECK(decoded->listener == handle.listener);
  CHECK(decoded->token == handle.token);
}

TEST_CASE("a sign of life asks for another one or does not") {
  for (const unsigned wants_answer : {2U, 0x80U, 0xFFU}) {
    CHECK_FALSE(decode(Bytes{std::byte{17}, static_cast<std::byte>(wants_answer)}));
  }
}

TEST_CASE("the byte behind a handle's members says what its listener understands, and may say more") {
  for (const std::size_t further : {0U, 3U}) {
    for (const char* first : {"10.0.0.1", "fd00::1"}) {
      Handle handle{.address = *parse_address(first), .device = {}, .token = {}, .further = {}};
      handle.further.resize(further, {.address = *parse_address(first), .tcp_port = 1});
      auto bytes = encode(handle);
      CHECK_FALSE(decode_handle(bytes)->signs_of_life);
      handle.signs_of_life = true;
      const std::size_t at = (handle.address.is_ipv4() ? 49 : 65) + 18 * further;
      bytes[at] = std::byte{1};
      CHECK(encode(handle) == bytes);
      CHECK(decode_handle(bytes)->signs_of_life);
      bytes[at] = std::byte{0xFF};
      CHECK(decode_handle(bytes)->signs_of_life);
      bytes[at] = std::byte{0xFE};
      CHECK_FALSE(decode_handle(bytes)->signs_of_life);
    }
  }
}

TEST_CASE("a handle of a fused device names its further members, at most three") {
  for (const char* first : {"10.0.0.1", "fd00::1"}) {
    Handle handle{.address = *parse_address(first),
                  .tcp_port = 40000,
                  .device = counting<16>(1),
                  .listener = 5,
                  .token = counting<16>(0x90),
                  .further = {}};
    for (std::uint16_t i = 1; i < kMaxMembers; ++i)
      handle.further.push_back({.address = 0x0A000001U + i, .tcp_port = i});
    auto bytes = encode(handle);
    const auto decoded = decode_handle(bytes);
    REQUIRE(decoded);
    REQUIRE(decoded->further.size() == 3);
    CHECK(decoded->further[2].address == IpAddress(0x0A000004));
    CHECK(decoded->further[2].tcp_port == 3);
    const std::size_t count_at = handle.address.is_ipv4() ? 48 : 64;
    CHECK(bytes[count_at] == std::byte{3});
    bytes[count_at] = std::byte{4};
    CHECK_FALSE(decode_handle(bytes));
  }
}

TEST_CASE("an endpoint of a fused device has two to four members, and QPs on these only") {
  const auto decodes = [](const Endpoint& e) { return decode(body_of(Welcome{e})).has_value(); };
  Endpoint fused = fused_endpoint(0x0A000102);
  CHECK(decodes(fused));
  const auto decoded = decode(body_of(Welcome{fused}));
  REQUIRE(decoded);
  const Endpoint& read = std::get<Welcome>(*decoded).endpoint;
  CHECK(read.join == fused.join);
  REQUIRE(read.further.size() == 1);
  CHECK(read.further[0].address == fused.further[0].address);
  CHECK(read.further[0].udp_port == 4792);
  CHECK(read.further[0].max_ip_id == 64);
  CHECK(read.further[0].ece == Ece{4, 5, 6});
  fused.qps[0].qpn |= 2U << 24;
  CHECK_FALSE(decodes(fused));
  fused.further.push_back(fused.further[0]);
  CHECK(decodes(fused));
  fused.further.push_back(fused.further[0]);
  CHECK(decodes(fused));
  fused.further.push_back(fused.further[0]);
  CHECK_FALSE(decodes(fused));
  fused = fused_endpoint(0x0A000102);
  fused.further[0].udp_port = 0;
  CHECK_FALSE(decodes(fused));
}

TEST_CASE("an endpoint names the port of every shard, of fused devices for each member") {
  const auto kept = [](const Endpoint& e) -> std::optional<Endpoint> {
    const auto decoded = decode(body_of(Welcome{e}));
    return decoded ? std::optional(std::get<Welcome>(*decoded).endpoint) : std::nullopt;
  };
  Endpoint e = endpoint(2);
  CHECK(kept(e)->further_ports.empty());
  e.further_ports = {50001, 50002};
  REQUIRE(kept(e));
  CHECK(kept(e)->further_ports == e.further_ports);
  CHECK(kept(e)->further.empty());
  e.further_ports.assign(kMaxShards - 1, 50001);
  CHECK(kept(e));
  e.further_ports.push_back(50001);
  CHECK_FALSE(kept(e));
  e.further_ports = {50001, 0};
  CHECK_FALSE(kept(e));

  Endpoint fused = fused_endpoint(0x0A000102);
  fused.further_ports = {50001};
  fused.further[0].further_ports = {50003};
  REQUIRE(kept(fused));
  CHECK(kept(fused)->further_ports == fused.further_ports);
  CHECK(kept(fused)->further[0].further_ports == fused.further[0].further_ports);
  fused.further[0].further_ports.clear();  // too few
  CHECK_FALSE(kept(fused));
  Bytes none = body_of(Welcome{endpoint(1)});
  none.resize(none.size() + 2 + 12 + 16 + 2);  // an identification, an ECE, a token, no members and no ports
  CHECK_FALSE(decode(none));
}

TEST_CASE("a numbered frame holds any bytes, and a member's index is below four") {
  const auto decoded = decode(body_of(Numbered{.number = 1, .acknowledged = 0xFFFFFFFF, .body = counting_bytes(5)}));
  REQUIRE(decoded);
  CHECK(std::get<Numbered>(*decoded).number == 1);
  CHECK(std::get<Numbered>(*decoded).acknowledged == 0xFFFFFFFF);
  CHECK(std::get<Numbered>(*decoded).body == counting_bytes(5));
  CHECK_FALSE(decode(body_of(MemberDown{4})));
  CHECK_FALSE(decode(body_of(Join{.token = {}, .member = 4})));
}

}  // namespace
}  // namespace paralet::handshake
