// SPDX-License-Identifier: Apache-2.0
// The IPv6 segment routing header (RFC 8754): nodes that a packet passes on the way to its destination.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/ip_address.hpp"

namespace paralet::wire {

/// The most nodes of a path. The largest fabrics of three tiers need five.
inline constexpr std::size_t kMaxSegments = 16;

/// Bytes that the header adds to each packet: it lists the nodes and the destination. 0 without nodes.
constexpr std::size_t routing_header_bytes(std::size_t segments) { return segments == 0 ? 0 : 8 + 16 * (segments + 1); }

/// The header as the socket option IPV6_RTHDR takes it, for packets that pass `segments` in this order. The list ends
/// with the destination, which comes first in the header; Linux writes it there (ipv6_push_rthdr4 in
/// net/ipv6/exthdrs.c).
std::vector<std::byte> routing_header(std::span<const IpAddress> segments);

}  // namespace paralet::wire
