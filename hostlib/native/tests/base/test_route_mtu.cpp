// SPDX-License-Identifier: Apache-2.0
// What routers report is tested in namespaces: tests/integration/transport/test_route_mtu.py.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

#include "base/interfaces.hpp"
#include "base/route_mtu.hpp"

namespace paralet {
namespace {

// The kernel never says more than an IPv4 packet may have (IP_MAX_MTU in net/ip.h); loopback has 65,536.
constexpr std::uint32_t kLongestIpv4 = 65'535;

TEST_CASE("a route over loopback has the MTU of the interface, whichever address is local") {
  const IpAddress here = *parse_address("127.0.0.1");
  const auto loopback = interface_of(here);
  REQUIRE(loopback);
  CHECK(route_mtu({.address = here}, {.address = *parse_address("127.0.0.2"), .port = 4791}) ==
        std::min(loopback->mtu_bytes, kLongestIpv4));
  if (const auto ipv6 = interface_of(*parse_address("::1"))) {
    CHECK(route_mtu({.address = ipv6->address}, {.address = ipv6->address, .port = 4791}) == loopback->mtu_bytes);
  }
}

TEST_CASE("there is no route from an address of another machine") {
  CHECK(route_mtu({.address = *parse_address("192.0.2.1")}, {.address = *parse_address("127.0.0.1"), .port = 4791}) ==
        std::nullopt);
}

}  // namespace
}  // namespace paralet
