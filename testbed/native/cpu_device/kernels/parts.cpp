// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

#include <algorithm>

namespace paralet::cpu_device {

std::size_t grain_bytes(Protocol protocol) { return protocol == Protocol::ll ? 16 : 512; }

Part part_of_channel(const Distribution& distribution, unsigned channel, Protocol protocol, std::size_t element_bytes) {
  const std::size_t grain = grain_bytes(protocol) / element_bytes;
  const unsigned channels = distribution.channel_hi - distribution.channel_lo + 1;
  const std::size_t middle = channels > 2 ? (channels - 2) * distribution.count_mid : 0;
  Part part;
  part.total = distribution.count_lo + middle + (channels > 1 ? distribution.count_hi : 0);
  if (channel == distribution.channel_lo) {
    part.count = distribution.count_lo;
    part.chunk = distribution.grains_lo * grain;
  } else if (channel == distribution.channel_hi) {
    part.offset = distribution.count_lo + middle;
    part.count = distribution.count_hi;
    part.chunk = distribution.grains_hi * grain;
  } else {
    part.offset = distribution.count_lo + (channel - distribution.channel_lo - 1) * distribution.count_mid;
    part.count = distribution.count_mid;
    part.chunk = distribution.grains_mid * grain;
  }
  return part;
}

Range part_of_transfer(std::size_t bytes, unsigned parts, unsigned part) {
  constexpr std::size_t unit = 4096;
  const std::size_t size = ((bytes + parts - 1) / parts + unit - 1) / unit * unit;
  return {std::min(part * size, bytes), std::min((part + 1) * size, bytes)};
}

std::uint32_t decode_chunk_bytes(std::uint8_t code) {
  const std::uint32_t exponent = code >> 3U;
  const std::uint32_t mantissa = code & 7U;
  return exponent == 0 ? mantissa : (mantissa | 8U) << (exponent - 1);
}

}  // namespace paralet::cpu_device
