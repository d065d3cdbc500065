// SPDX-License-Identifier: Apache-2.0
// Routes of packets as sequences of links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packets.hpp"
#include "types.hpp"

namespace paralet::packet {

/// The links of all routes, stored one after the other. Link x ^ 1 is the reverse direction of link x.
class Routes {
 public:
  /// `back` are the links of acknowledgements; if it is empty, they take the route of their data backwards. Both have
  /// less than 256 links.
  std::uint32_t add(std::span<const LinkId> links, std::span<const LinkId> back = {}) {
    routes_.push_back({.begin = static_cast<std::uint32_t>(links_.size()),
                       .length = static_cast<std::uint8_t>(links.size()),
                       .back_length = static_cast<std::uint8_t>(back.size())});
    links_.insert(links_.end(), links.begin(), links.end());
    links_.insert(links_.end(), back.begin(), back.end());
    return static_cast<std::uint32_t>(routes_.size() - 1);
  }
  [[nodiscard]] std::size_t size() const { return routes_.size(); }
  [[nodiscard]] std::uint8_t length(std::uint32_t route) const { return routes_[route].length; }
  [[nodiscard]] LinkId link(std::uint32_t route, std::size_t hop) const { return links_[routes_[route].begin + hop]; }

  /// Links that acknowledgements cross, and each of them.
  [[nodiscard]] std::uint8_t back_length(std::uint32_t route) const {
    const Route& own = routes_[route];
    return own.back_length > 0 ? own.back_length : own.length;
  }
  [[nodiscard]] LinkId back_link(std::uint32_t route, std::size_t hop) const {
    const Route& own = routes_[route];
    if (own.back_length > 0) return links_[own.begin + own.length + hop];
    return links_[own.begin + own.length - 1U - hop] ^ 1U;
  }

  /// The link that `packet` takes next.
  [[nodiscard]] LinkId link_of(const Packet& packet) const {
    return packet.kind == PacketKind::kData ? link(packet.route, packet.hop) : back_link(packet.route, packet.hop);
  }
  /// Whether a host passes on `packet`, which it has just received over a link; otherwise the packet is for the host.
  [[nodiscard]] bool relayed(const Packet& packet) const {
    return packet.hop + 1U < (packet.kind == PacketKind::kData ? length(packet.route) : back_length(packet.route));
  }

 private:
  struct Route {
    std::uint32_t begin;
    std::uint8_t length;
    std::uint8_t back_length;
  };
  std::vector<Route> routes_;
  std::vector<LinkId> links_;
};

}  // namespace paralet::packet
