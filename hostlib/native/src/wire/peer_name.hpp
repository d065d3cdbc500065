// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

#include "base/ip_address.hpp"
#include "wire/wire.hpp"

namespace paralet {

/// A device as the network sees it: the destination address and UDP port of packets to it. Only the first of several
/// processes at one address has port 4791, and switches hash the port too.
struct PeerName {
  IpAddress address;
  std::uint16_t port = wire::kRocePort;

  constexpr PeerName() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): an address alone names its first device
  constexpr PeerName(const IpAddress& ip, std::uint16_t udp_port = wire::kRocePort) : address(ip), port(udp_port) {}
  // NOLINTNEXTLINE(google-explicit-constructor): the same for IPv4, in host byte order
  constexpr PeerName(std::uint32_t ipv4, std::uint16_t udp_port = wire::kRocePort) : address(ipv4), port(udp_port) {}
  auto operator<=>(const PeerName&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes
};

}  // namespace paralet

template <>
struct std::hash<paralet::PeerName> {
  std::size_t operator()(const paralet::PeerName& peer) const noexcept {
    return std::hash<paralet::IpAddress>{}(peer.address) * 0x9E3779B97F4A7C15 + peer.port;
  }
};
