// SPDX-License-Identifier: Apache-2.0
// Input data and the expected result. Sums are exact in any order of additions, so every byte can be compared.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace paralet::driver {

/// Most ranks whose values still sum exactly: floats represent every whole number up to 2^24.
inline constexpr unsigned kMaxRanks = (1U << 24) / 1024;

/// The input of `rank` at `index` of data set `set`: a pseudo-random whole number in [-1024, 1024).
inline float input_value(std::uint64_t seed, unsigned set, unsigned rank, std::uint64_t index) {
  std::uint64_t x = index + (seed << 40) + (static_cast<std::uint64_t>(rank) << 4) + set;
  x = (x + index * 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;  // constants of SplitMix64
  x ^= x >> 31;
  return static_cast<float>(static_cast<int>(x * 0x94D049BB133111EBULL >> 53) - 1024);
}

inline void fill_input(std::span<float> data, std::uint64_t seed, unsigned set, unsigned rank) {
  for (std::uint64_t i = 0; i < data.size(); ++i) data[i] = input_value(seed, set, rank, i);
}

/// Counts the bytes of `data` that differ from the sum of all ranks' inputs.
inline std::uint64_t count_wrong_bytes(std::span<const float> data, std::uint64_t seed, unsigned set, unsigned ranks) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < data.size(); ++i) {
    float sum = 0;
    for (unsigned rank = 0; rank < ranks; ++rank) sum += input_value(seed, set, rank, i);
    std::uint32_t difference = std::bit_cast<std::uint32_t>(sum) ^ std::bit_cast<std::uint32_t>(data[i]);
    for (; difference != 0; difference >>= 8) wrong += (difference & 0xFF) != 0;
  }
  return wrong;
}

}  // namespace paralet::driver
