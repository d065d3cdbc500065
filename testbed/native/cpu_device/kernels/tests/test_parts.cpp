// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bit>

#include "parts.hpp"
#include "transfer.hpp"

namespace paralet::cpu_device {
namespace {

TEST_CASE("the channels' parts of a collective follow one another and cover it") {
  for (unsigned channels = 1; channels <= 5; ++channels) {
    const Distribution distribution{.channel_lo = 2,
                                    .channel_hi = 1 + channels,
                                    .count_lo = 300,
                                    .count_mid = channels > 2 ? 1000U : 0U,
                                    .count_hi = channels > 1 ? 40U : 0U,
                                    .grains_lo = 3,
                                    .grains_mid = 4,
                                    .grains_hi = 5};
    std::size_t next = 0;
    for (unsigned channel = 2; channel < 2 + channels; ++channel) {
      const Part part = part_of_channel(distribution, channel, Protocol::simple, 4);
      CHECK(part.offset == next);
      next += part.count;
      CHECK(part.total == 300 + (channels > 2 ? (channels - 2) * 1000 : 0) + (channels > 1 ? 40 : 0));
      const std::size_t grains = channel == 2 ? 3 : channel == 1 + channels ? 5 : 4;
      CHECK(part.chunk == grains * 512 / 4);
    }
    CHECK(next == part_of_channel(distribution, 2, Protocol::simple, 4).total);
  }
}

TEST_CASE("chunks of protocol LL count in grains of 16 bytes") {
  const Distribution distribution{.count_lo = 10, .grains_lo = 7};
  CHECK(part_of_channel(distribution, 0, Protocol::ll, 8).chunk == 14);
}

TEST_CASE("the parts of a transfer follow one another, in multiples of 4 KiB") {
  for (const std::size_t bytes : {0UL, 1UL, 4096UL, 4097UL, 100'000UL, 1UL << 20U}) {
    for (unsigned parts = 1; parts <= 8; ++parts) {
      std::size_t next = 0;
      for (unsigned part = 0; part < parts; ++part) {
        const Range range = part_of_transfer(bytes, parts, part);
        CHECK(range.begin == next);
        CHECK((range.end == bytes || range.end % 4096 == 0));
        next = range.end;
      }
      CHECK(next == bytes);
    }
  }
}

TEST_CASE("a chunk size in 8 bits is a number with 3 bits of mantissa") {
  for (unsigned code = 0; code < 8; ++code) CHECK(decode_chunk_bytes(static_cast<std::uint8_t>(code)) == code);
  CHECK(decode_chunk_bytes(1 << 3) == 8);
  CHECK(decode_chunk_bytes(2 << 3 | 1) == 18);
  CHECK(decode_chunk_bytes(15 << 3) == 131072);
  // The codes' order is the sizes' order.
  for (unsigned code = 1; code < 29 * 8; ++code) {
    CHECK(decode_chunk_bytes(static_cast<std::uint8_t>(code)) >
          decode_chunk_bytes(static_cast<std::uint8_t>(code - 1)));
  }
}

TEST_CASE("a chunk's slices hold at least its elements, in multiples of 16, and a 32nd of the slots") {
  const Slicing slicing{.slices_per_chunk = 2, .steps_per_slice = 2, .step_bytes = 65536};
  const std::size_t capacity = 2 * 65536 / 4;
  CHECK(slice_elements(0, slicing, 4) == capacity / 32);
  CHECK(slice_elements(2 * capacity, slicing, 4) == capacity);
  for (std::size_t count = 1; count <= 2 * capacity; count += 997) {
    const std::size_t slice = slice_elements(count, slicing, 4);
    CHECK(2 * slice >= count);
    CHECK(slice <= capacity);
    CHECK(slice % 16 == 0);
  }
}

}  // namespace
}  // namespace paralet::cpu_device
