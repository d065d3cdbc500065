// SPDX-License-Identifier: Apache-2.0
// Which IPv6 nodes a flow passes on its way (RFC 8754), by its peer and source port.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/ip_address.hpp"

namespace paralet {

class SegmentTable {
 public:
  using Segments = std::vector<IpAddress>;

  SegmentTable() = default;
  explicit SegmentTable(std::map<std::pair<IpAddress, std::uint16_t>, Segments> segments)
      : segments_(std::move(segments)) {}

  /// None: the routers choose the path.
  [[nodiscard]] const Segments& of(const IpAddress& peer, std::uint16_t source_port) const;
  /// Bytes of the routing header that packets of this flow have.
  [[nodiscard]] std::uint32_t header_bytes(const IpAddress& peer, std::uint16_t source_port) const;
  /// Bytes of the longest routing header towards the peer.
  [[nodiscard]] std::uint32_t longest_header_bytes(const IpAddress& peer) const;

 private:
  std::map<std::pair<IpAddress, std::uint16_t>, Segments> segments_;
};

}  // namespace paralet
