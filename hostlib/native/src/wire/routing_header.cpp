// SPDX-License-Identifier: Apache-2.0
#include "wire/routing_header.hpp"

#include <algorithm>

namespace paralet::wire {

std::vector<std::byte> routing_header(std::span<const IpAddress> segments) {
  constexpr std::size_t kFixedBytes = 8;
  std::vector<std::byte> out(routing_header_bytes(segments.size()));
  // Next header (the kernel's), length in units of 8 bytes after the first 8, type 4, segments left, last entry.
  out[1] = static_cast<std::byte>((out.size() - kFixedBytes) / 8);
  out[2] = std::byte{4};
  out[3] = out[4] = static_cast<std::byte>(segments.size());
  auto entry = out.begin() + kFixedBytes + sizeof(IpAddress::Bytes);  // behind that of the destination
  for (std::size_t i = segments.size(); i-- > 0;) {
    entry = std::ranges::transform(segments[i].bytes(), entry, [](std::uint8_t byte) { return std::byte{byte}; }).out;
  }
  return out;
}

}  // namespace paralet::wire
