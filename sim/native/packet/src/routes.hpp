// SPDX-License-Identifier: Apache-2.0
// Routes of packets as sequences of links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "packets.hpp"
#include "types.hpp"

namespace paralet::packet {

/// The links of all routes, stored one after the other. Link x ^ 1 is the reverse direction of link x.
class Routes {
 public:
  std::uint32_t add(const LinkId* links, std::size_t count) {
    begins_.push_back(static_cast<std::uint32_t>(links_.size()));
    links_.insert(links_.end(), links, links + count);
    lengths_.push_back(static_cast<std::uint8_t>(count));
    return static_cast<std::uint32_t>(begins_.size() - 1);
  }
  [[nodiscard]] std::size_t size() const { return begins_.size(); }
  [[nodiscard]] std::uint8_t length(std::uint32_t route) const { return lengths_[route]; }
  [[nodiscard]] LinkId link(std::uint32_t route, std::size_t hop) const { return links_[begins_[route] + hop]; }

  /// The link that `packet` takes next. Acknowledgements take the route of their data backwards.
  [[nodiscard]] LinkId link_of(const Packet& packet) const {
    if (packet.kind == PacketKind::kData) return link(packet.route, packet.hop);
    return link(packet.route, lengths_[packet.route] - 1U - packet.hop) ^ 1U;
  }

 private:
  std::vector<std::uint32_t> begins_;
  std::vector<std::uint8_t> lengths_;
  std::vector<LinkId> links_;
};

}  // namespace paralet::packet
