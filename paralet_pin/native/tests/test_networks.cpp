// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "networks.hpp"

using paralet::IpAddress;
using paralet::parse_address;
using paralet::pin::Networks;

TEST_CASE("prefixes of IPv4 and IPv6") {
  const Networks networks("10.0.0.0/9,192.168.7.0/24,fd00:1::/33");
  for (const char* inside : {"10.0.0.1", "10.127.255.255", "192.168.7.255", "fd00:1::1", "fd00:1:7fff::1"}) {
    CAPTURE(inside);
    CHECK(networks.has(*parse_address(inside)));
  }
  for (const char* outside : {"10.128.0.0", "192.168.8.0", "127.0.0.1", "fd00:1:8000::1", "fd00:2::1"}) {
    CAPTURE(outside);
    CHECK_FALSE(networks.has(*parse_address(outside)));
  }
}

TEST_CASE("without prefixes all addresses but those of one host, one link or many hosts") {
  const Networks networks("");
  for (const char* one : {"10.0.0.1", "192.0.2.1", "fd00::1", "2001:db8::1"}) CHECK(networks.has(*parse_address(one)));
  for (const char* none :
       {"127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "ff02::1"}) {
    CAPTURE(none);
    CHECK_FALSE(networks.has(*parse_address(none)));
  }
}

TEST_CASE("what is no prefix is left out") {
  const Networks networks("10.0.0.0,10.0.0.0/33,x/8,10.0.0.0/,,10.0.0.0/8x,127.0.0.0/8");
  CHECK(networks.has(*parse_address("127.0.0.1")));
  CHECK_FALSE(networks.has(*parse_address("10.0.0.1")));
}
