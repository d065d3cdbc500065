// SPDX-License-Identifier: Apache-2.0
// float16 (IEEE 754 binary16) and bfloat16 as 16 bits, with conversions that round to nearest, ties to even.
//
// The conversions have no branches, so that compilers turn loops over them into vector code. GCC's _Float16 would do
// the same for float16, but Clang 14 does not have it.
#pragma once

#include <bit>
#include <cstdint>

namespace paralet {

/// 16 bits that hold a floating point number of a format: `Format::decode(bits)` and `Format::encode(value)`.
template <typename Format>
class Half {
 public:
  Half() = default;
  explicit Half(float value) : bits_(Format::encode(value)) {}

  static Half from_bits(std::uint16_t bits) {
    Half value;
    value.bits_ = bits;
    return value;
  }
  std::uint16_t bits() const { return bits_; }

  explicit operator float() const { return Format::decode(bits_); }

 private:
  std::uint16_t bits_;  // not initialised, so that the type is trivial, as float is
};

struct Binary16 {
  static float decode(std::uint16_t bits) {
    const std::int32_t magnitude = bits & 0x7fff;
    // The exponent's bias differs by 112. The product is exact, also of a subnormal number.
    const auto finite = std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112F);
    const std::int32_t value = magnitude >= 0x7c00 ? 0x7f800000 | magnitude << 13 : finite;
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) | (bits & 0x8000U) << 16U);
  }

  static std::uint16_t encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    // Signed, because SSE2 compares signed integers only.
    const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffffU);
    // Below 2^-14 the result is subnormal: the addition of 0.5 moves its bits to the end of the mantissa and rounds.
    const std::int32_t subnormal =
        std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::int32_t>(0.5F);
    const std::int32_t normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const std::int32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const std::int32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    const std::int32_t result = magnitude >= 0x47800000 ? special : finite;
    return static_cast<std::uint16_t>(static_cast<std::uint32_t>(result) | (bits & 0x80000000U) >> 16U);
  }
};

/// The upper half of a binary32.
struct BrainFloat {
  static float decode(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16U); }

  static std::uint16_t encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
    const std::uint32_t quiet = (bits >> 16U) | 0x40U;
    return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
  }
};

using Float16 = Half<Binary16>;
using BFloat16 = Half<BrainFloat>;

}  // namespace paralet
