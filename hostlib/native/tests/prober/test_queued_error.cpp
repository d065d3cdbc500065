// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "bytes.hpp"
#include "prober/payload.hpp"
#include "prober/queued_error.hpp"

namespace paralet::prober {
namespace {

using test::Bytes;
using test::from_hex;

constexpr std::uint32_t kHere = 0x0A000001;
constexpr std::uint32_t kThere = 0x0A000101;
const Target kTarget{.from = kHere, .to = kThere, .destination_port = 4791};

/// A control message.
Bytes control(int level, int type, std::string_view data) {
  const Bytes bytes = from_hex(data);
  cmsghdr header{};
  header.cmsg_len = CMSG_LEN(bytes.size());
  header.cmsg_level = level;
  header.cmsg_type = type;
  Bytes out(CMSG_SPACE(bytes.size()));
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + CMSG_LEN(0), bytes.data(), bytes.size());
  return out;
}

// sock_extended_err: errno (113), origin, type, code, padding, info, data; then the sockaddr of the sender.
constexpr std::string_view kFromRouter = "71000000 02 0b 00 00 00000000 00000000  0200 0000 0a010203 0000000000000000";
constexpr std::string_view kFromRouter6 =
    "71000000 03 03 00 00 00000000 00000000  0a00 0000 00000000 fd000000000000000000000000000009 00000000";
constexpr std::string_view kClosedPort = "6f000000 02 03 03 00 00000000 00000000  0200 0000 0a000101 0000000000000000";
constexpr std::string_view kLongPacket = "5a000000 02 03 04 00 00000000 00000000  0200 0000 0a010203 0000000000000000";
constexpr std::string_view kOwnKernel = "71000000 01 00 00 00 00000000 00000000  0000 0000 00000000 0000000000000000";

TEST_CASE("a queued error tells what happened and who said it") {
  auto error = parse_queued_error(control(IPPROTO_IP, IP_RECVERR, kFromRouter));
  REQUIRE(error);
  CHECK(error->kind == ErrorKind::kTimeExceeded);
  CHECK(error->sender == IpAddress(0x0A010203));
  error = parse_queued_error(control(IPPROTO_IPV6, IPV6_RECVERR, kFromRouter6));
  REQUIRE(error);
  CHECK(error->kind == ErrorKind::kTimeExceeded);
  CHECK(format_address(error->sender) == "fd00::9");
  error = parse_queued_error(control(IPPROTO_IP, IP_RECVERR, kClosedPort));
  REQUIRE(error);
  CHECK(error->kind == ErrorKind::kUnreachable);
  CHECK(error->number == 111);
  CHECK(parse_queued_error(control(IPPROTO_IP, IP_RECVERR, kLongPacket))->kind == ErrorKind::kOther);
  CHECK(parse_queued_error(control(IPPROTO_IP, IP_RECVERR, kOwnKernel))->kind == ErrorKind::kLocal);
}

TEST_CASE("other control messages are passed over, and parts are no error") {
  Bytes both = control(SOL_SOCKET, SO_TIMESTAMPNS, "00000000000000000000000000000000");
  const Bytes error = control(IPPROTO_IP, IP_RECVERR, kFromRouter);
  both.insert(both.end(), error.begin(), error.end());
  CHECK(parse_queued_error(both));
  for (std::size_t length = 0; length < error.size(); ++length) {
    // In memory of exactly this size, so that AddressSanitizer sees what is read beyond.
    CHECK_FALSE(parse_queued_error(Bytes(error.begin(), error.begin() + static_cast<std::ptrdiff_t>(length))));
  }
  CHECK_FALSE(parse_queued_error({}));
  CHECK_FALSE(parse_queued_error(from_hex("00000000000000000000000000000000")));
  CHECK_FALSE(parse_queued_error(from_hex("ffffffffffffffff000000000b000000")));
}

TEST_CASE("a quote is of a probe when each byte of it is, however short it is") {
  const Payload payload = payload_of(kTarget, {.source_port = 50000, .qpn = 0x123456}, 0x1122334455667788);
  const SocketAddress to(kThere, 4791);
  for (std::size_t length = 0; length <= payload.size(); ++length) {
    CHECK(quotes(kTarget, 50000, payload, to, std::span(payload).first(length)));
  }
  Bytes longer(payload.begin(), payload.end());
  longer.push_back(std::byte{7});  // what Ethernet pads a short packet with
  CHECK(quotes(kTarget, 50000, payload, to, longer));
  for (std::size_t i = 0; i < payload.size(); ++i) {
    Payload other = payload;
    other[i] ^= std::byte{1};
    CHECK_FALSE(quotes(kTarget, 50000, payload, to, other));
  }
  CHECK_FALSE(quotes(kTarget, 50000, payload, SocketAddress(kHere, 4791), payload));
  CHECK_FALSE(quotes(kTarget, 50000, payload, SocketAddress(kThere, 4792), payload));
  CHECK_FALSE(quotes(kTarget, 50000, payload, SocketAddress(), payload));
}

TEST_CASE("of TCP the quoted ports count") {
  Target tcp = kTarget;
  tcp.protocol = Protocol::kTcp;
  const SocketAddress to(kThere, 4791);
  CHECK(quotes(tcp, 50000, {}, to, from_hex("c350 12b7 00000001")));
  CHECK_FALSE(quotes(tcp, 50001, {}, to, from_hex("c350 12b7 00000001")));
}

TEST_CASE("no two probes have one payload, and it carries the QPN") {
  const Payload one = payload_of(kTarget, {.source_port = 50000, .qpn = 0x123456}, 1);
  CHECK(one != payload_of(kTarget, {.source_port = 50000, .qpn = 0x123456}, 2));
  CHECK(test::to_hex(std::span(one).first(8)) == "0400000000123456");
}

}  // namespace
}  // namespace paralet::prober
