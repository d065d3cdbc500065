// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace paralet {

/// Fills `out` from the kernel's generator (getrandom). Throws std::system_error when the kernel refuses.
void random_bytes(std::span<std::byte> out);

/// An unpredictable 32-bit number, for rkeys, QPNs and first PSNs.
std::uint32_t random_u32();

/// A small, fast generator with a seed (SplitMix64), for reproducible randomness; never for secrets.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// Uniform in [0, bound), bound > 0.
  std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>(uniform() * static_cast<double>(bound));
  }

 private:
  std::uint64_t state_;
};

}  // namespace paralet
