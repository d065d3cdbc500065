// SPDX-License-Identifier: Apache-2.0
// Reads a fuzzer's input as a script: numbers from the front, zeros after its end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace paralet::fuzz {

class Script {
 public:
  Script(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  [[nodiscard]] bool done() const { return rest_.empty(); }
  std::uint8_t u8() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::uint16_t u16() { return static_cast<std::uint16_t>(u8() | (unsigned{u8()} << 8)); }
  std::uint32_t u32() { return u16() | (std::uint32_t{u16()} << 16); }
  std::uint64_t u64() { return u32() | (std::uint64_t{u32()} << 32); }
  bool flag() { return (u8() & 1) != 0; }
  /// Up to `most` bytes.
  std::span<const std::byte> bytes(std::size_t most) {
    const std::size_t n = std::min(most, rest_.size());
    const auto out = std::as_bytes(rest_.first(n));
    rest_ = rest_.subspan(n);
    return out;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

/// Aborts when an invariant does not hold. libFuzzer keeps the input that caused it.
inline void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace paralet::fuzz
