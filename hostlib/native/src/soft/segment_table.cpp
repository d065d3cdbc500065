// SPDX-License-Identifier: Apache-2.0
#include "soft/segment_table.hpp"

#include <algorithm>

#include "wire/routing_header.hpp"

namespace paralet {
namespace {

std::uint32_t bytes_for(const SegmentTable::Segments& segments) {
  return static_cast<std::uint32_t>(wire::routing_header_bytes(segments.size()));
}

}  // namespace

const SegmentTable::Segments& SegmentTable::of(const IpAddress& peer, std::uint16_t source_port) const {
  static const Segments kNone;
  const auto found = segments_.find({peer, source_port});
  return found == segments_.end() ? kNone : found->second;
}

std::uint32_t SegmentTable::header_bytes(const IpAddress& peer, std::uint16_t source_port) const {
  return bytes_for(of(peer, source_port));
}

std::uint32_t SegmentTable::longest_header_bytes(const IpAddress& peer) const {
  std::uint32_t longest = 0;
  for (auto it = segments_.lower_bound({peer, 0}); it != segments_.end() && it->first.first == peer; ++it) {
    longest = std::max(longest, bytes_for(it->second));
  }
  return longest;
}

}  // namespace paralet
