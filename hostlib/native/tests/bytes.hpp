// SPDX-License-Identifier: Apache-2.0
// Bytes for tests: from hexadecimal, and pseudo-random by seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"

namespace paralet::test {

using Bytes = std::vector<std::byte>;

/// "0a ff" to bytes; blanks are ignored.
inline Bytes from_hex(std::string_view text) {
  Bytes out;
  std::string digits;
  for (const char c : text) {
    if (c == ' ' || c == '\n') continue;
    digits.push_back(c);
    if (digits.size() < 2) continue;
    out.push_back(static_cast<std::byte>(std::strtoul(digits.c_str(), nullptr, 16)));
    digits.clear();
  }
  return out;
}

inline std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::byte b : bytes) {
    out.push_back(kDigits[std::to_integer<std::size_t>(b >> 4)]);
    out.push_back(kDigits[std::to_integer<std::size_t>(b & std::byte{15})]);
  }
  return out;
}

inline Bytes random_fill(SplitMix64& random, std::size_t length) {
  Bytes out(length);
  for (std::byte& b : out) b = static_cast<std::byte>(random.next());
  return out;
}

inline Bytes random_fill(std::uint64_t seed, std::size_t length) {
  SplitMix64 random(seed);
  return random_fill(random, length);
}

}  // namespace paralet::test
