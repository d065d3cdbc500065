// SPDX-License-Identifier: Apache-2.0
// Which part of a transfer a channel carries, and in chunks of what size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel.hpp"

namespace paralet::cpu_device {

// The elements of a collective that one channel carries.
struct Part {
  std::size_t total = 0;   // of all channels; of all-gather and reduce-scatter, of one rank's share
  std::size_t offset = 0;  // of the first element
  std::size_t count = 0;
  std::size_t chunk = 0;  // elements per chunk
  // Elements per chunk in the last round of a ring all-reduce, where the round is not full; 0: split evenly.
  std::size_t last_chunk = 0;
};

// How NCCL distributes a collective over channels `lo` to `hi`: the first and the last may carry less than the others.
struct Distribution {
  unsigned channel_lo = 0;
  unsigned channel_hi = 0;
  std::size_t count_lo = 0;
  std::size_t count_mid = 0;
  std::size_t count_hi = 0;
  std::size_t grains_lo = 0;  // of a chunk, in grains of the protocol
  std::size_t grains_mid = 0;
  std::size_t grains_hi = 0;
};

// Bytes of the unit in which NCCL counts chunks of a protocol.
std::size_t grain_bytes(Protocol protocol);

Part part_of_channel(const Distribution& distribution, unsigned channel, Protocol protocol, std::size_t element_bytes);

// A range of bytes.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The part `part` of `parts` of a point-to-point transfer of `bytes`: multiples of 4 KiB, but for the last.
Range part_of_transfer(std::size_t bytes, unsigned parts, unsigned part);

// Decodes a chunk size that NCCL stores in 8 bits: 5 bits of exponent, 3 of mantissa.
std::uint32_t decode_chunk_bytes(std::uint8_t code);

}  // namespace paralet::cpu_device
