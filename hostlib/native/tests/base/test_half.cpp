// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "base/half.hpp"

namespace paralet {
namespace {

// The value of a binary floating-point number of `mantissa_bits` and a bias, from IEEE 754's definition.
double decode(unsigned bits, int mantissa_bits, int bias) {
  const unsigned mantissa = bits & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits & 0x7fffU) >> mantissa_bits);
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  if (exponent == 2 * bias + 1) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

// The nearest of two neighbours, or the even one.
template <typename Half>
void check_rounding(int mantissa_bits, int bias) {
  const unsigned infinity = static_cast<unsigned>(2 * bias + 1) << mantissa_bits;
  for (unsigned bits = 0; bits + 1 < infinity; ++bits) {
    const double low = decode(bits, mantissa_bits, bias);
    const double high = decode(bits + 1, mantissa_bits, bias);
    const auto middle = static_cast<float>((low + high) / 2);  // exact: float has at least two more bits
    const unsigned even = bits % 2 == 0 ? bits : bits + 1;
    REQUIRE(Half(middle).bits() == even);
    REQUIRE(Half(std::nextafter(middle, 0.0F)).bits() == bits);
    REQUIRE(Half(std::nextafter(middle, INFINITY)).bits() == bits + 1);
    REQUIRE(Half(-middle).bits() == (even | 0x8000U));
  }
}

template <typename Half>
void check_values(int mantissa_bits, int bias) {
  for (unsigned bits = 0; bits <= 0xffffU; ++bits) {
    const Half half = Half::from_bits(static_cast<std::uint16_t>(bits));
    const double expected = decode(bits, mantissa_bits, bias);
    const auto value = static_cast<float>(half);
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(value));
      REQUIRE(std::isnan(static_cast<float>(Half(value))));
    } else {
      REQUIRE(static_cast<double>(value) == expected);
      REQUIRE(Half(value).bits() == bits);
    }
  }
}

TEST_CASE("every float16 has the value that IEEE 754 defines, and converts back to itself") {
  check_values<Float16>(10, 15);
}

TEST_CASE("every bfloat16 has the value of its bits, and converts back to itself") { check_values<BFloat16>(7, 127); }

TEST_CASE("a float between two float16 becomes the nearest one, and the even one from the middle") {
  check_rounding<Float16>(10, 15);
}

TEST_CASE("a float between two bfloat16 becomes the nearest one, and the even one from the middle") {
  check_rounding<BFloat16>(7, 127);
}

TEST_CASE("a float too large for float16 becomes infinity") {
  CHECK(Float16(65519.0F).bits() == 0x7bff);
  CHECK(Float16(65520.0F).bits() == 0x7c00);
  CHECK(Float16(-1e9F).bits() == 0xfc00);
  CHECK(Float16(INFINITY).bits() == 0x7c00);
}

}  // namespace
}  // namespace paralet
