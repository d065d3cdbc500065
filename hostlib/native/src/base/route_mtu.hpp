// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "base/ip_address.hpp"

namespace paralet {

/// An end of a UDP flow. Port 0 is any.
struct UdpEnd {
  IpAddress address;
  std::uint16_t port = 0;
};

/// The longest IP packet, in bytes, that the route of this flow takes as far as the kernel knows: the MTU of the
/// route's first link, a metric `mtu` of the route, or what a router has reported (ICMP "fragmentation needed" and
/// "packet too big"; RFC 1191, RFC 8201). The local address may be on another interface than that link. Nothing without
/// a route.
std::optional<std::uint32_t> route_mtu(const UdpEnd& from, const UdpEnd& to);

}  // namespace paralet
