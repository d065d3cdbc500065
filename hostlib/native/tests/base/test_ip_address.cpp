// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>
#include <unordered_set>

#include "base/ip_address.hpp"
#include "base/socket_address.hpp"

namespace paralet {
namespace {

TEST_CASE("addresses are parsed and written in the usual forms") {
  for (const char* text : {"0.0.0.0", "10.0.0.1", "255.255.255.255", "::", "::1", "fd00::1", "2001:db8:1:2:3:4:5:6"}) {
    CAPTURE(text);
    const auto address = parse_address(text);
    REQUIRE(address);
    CHECK(format_address(*address) == text);
    CHECK(address->is_ipv4() == (std::string(text).find(':') == std::string::npos));
  }
  CHECK(format_address(*parse_address("FD00:0:0:0:0:0:0:A")) == "fd00::a");
  for (const char* text : {"", "host", "10.0.0", "10.0.0.256", "1::2::3", "fe80::1%lo", "[::1]", "::1 "}) {
    CAPTURE(text);
    CHECK_FALSE(parse_address(text));
  }
}

TEST_CASE("an IPv4 address and its IPv4-mapped IPv6 address are the same") {
  const IpAddress address(0x0A000102);
  CHECK(parse_address("::ffff:10.0.1.2") == address);
  CHECK(address.ipv4() == 0x0A000102);
  CHECK(address.bytes() == IpAddress::Bytes{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 1, 2});
  CHECK(IpAddress(address.bytes()) == address);
}

TEST_CASE("an IPv6 address is not an IPv4 address, and is link-local in fe80::/10") {
  const auto at = [](const char* text) { return *parse_address(text); };
  CHECK(at("fd00::1").ipv4() == 0);
  CHECK_FALSE(at("::10.0.1.2").is_ipv4());
  CHECK_FALSE(at("::1:ffff:10.0.1.2").is_ipv4());
  CHECK(at("fe80::1").is_link_local());
  CHECK(at("febf::1").is_link_local());
  CHECK_FALSE(at("fec0::1").is_link_local());
  CHECK_FALSE(at("fd00::1").is_link_local());
  CHECK_FALSE(IpAddress(0xFE800001).is_link_local());
}

TEST_CASE("endpoints are written with brackets around IPv6 addresses") {
  CHECK(format_endpoint(0x0A000102, 4791) == "10.0.1.2:4791");
  CHECK(format_endpoint(*parse_address("fd00::1"), 4791) == "[fd00::1]:4791");
}

TEST_CASE("socket addresses have the address and the port of either family") {
  for (const char* text : {"10.0.0.1", "fd00::1"}) {
    CAPTURE(text);
    const IpAddress address = *parse_address(text);
    const SocketAddress socket(address, 4791);
    CHECK(socket.address() == address);
    CHECK(socket.port() == 4791);
    CHECK(socket.length() == (address.is_ipv4() ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
    CHECK(socket.get()->sa_family == family_of(address));
  }
}

TEST_CASE("addresses are keys of hashed containers") {
  std::unordered_set<IpAddress> all;
  for (std::uint32_t n = 0; n < 1000; ++n) {
    all.insert(IpAddress(0x0A000000 + n));
    IpAddress::Bytes bytes = parse_address("fd00::")->bytes();
    bytes[7] = static_cast<std::uint8_t>(n);
    bytes[14] = static_cast<std::uint8_t>(n >> 8);
    all.insert(IpAddress(bytes));
  }
  CHECK(all.size() == 2000);
}

}  // namespace
}  // namespace paralet
