// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

#include "wire/wire.hpp"

namespace paralet {

/// A device as the network sees it: the destination address and UDP port of packets to it. Only the first of several
/// processes at one address has port 4791, and switches hash the port too.
struct PeerName {
  std::uint32_t address = 0;  ///< IPv4, host byte order
  std::uint16_t port = wire::kRocePort;

  constexpr PeerName() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): an address alone names its first device
  constexpr PeerName(std::uint32_t ipv4, std::uint16_t udp_port = wire::kRocePort) : address(ipv4), port(udp_port) {}
  auto operator<=>(const PeerName&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes
};

}  // namespace paralet

template <>
struct std::hash<paralet::PeerName> {
  std::size_t operator()(const paralet::PeerName& peer) const noexcept {
    return std::hash<std::uint64_t>{}((static_cast<std::uint64_t>(peer.port) << 32) | peer.address);
  }
};
