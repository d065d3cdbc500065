// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "base/half.hpp"
#include "reduction.hpp"

namespace paralet::cpu_device {
namespace {

constexpr std::size_t element_count = 1003;  // not a multiple of a vector

template <typename T>
std::vector<T> random_values(unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(element_count);
  for (T& value : values) {
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(random());
    } else {
      value = T(std::uniform_real_distribution<float>(-100, 100)(random));
    }
  }
  return values;
}

template <typename T>
const std::byte* bytes(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
template <typename T>
std::byte* bytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

template <typename T>
std::uint64_t as_argument(T value) {
  std::uint64_t argument = 0;
  std::memcpy(&argument, &value, sizeof(value));
  return argument;
}

template <typename T>
double number(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <typename T>
bool same(T a, T b) {
  return as_argument(a) == as_argument(b);
}

// Checks reduce() out of place and in place, with `expected` for one pair.
template <typename T, typename Expected>
void check_reduce(const Reducer& reducer, Expected expected) {
  const std::vector<T> a = random_values<T>(1);
  const std::vector<T> b = random_values<T>(2);
  std::vector<T> out(element_count);
  std::vector<T> left = a;
  std::vector<T> right = b;
  reducer.reduce(bytes(out), bytes(a), bytes(b), element_count);
  reducer.reduce(bytes(left), bytes(left), bytes(b), element_count);
  reducer.reduce(bytes(right), bytes(a), bytes(right), element_count);
  for (std::size_t i = 0; i < element_count; ++i) {
    REQUIRE(same(out[i], expected(a[i], b[i])));
    REQUIRE(same(left[i], out[i]));
    REQUIRE(same(right[i], out[i]));
  }
}

template <typename T>
void check_integers(Element element, Element unsigned_element) {
  using U = std::make_unsigned_t<T>;
  const auto reducer = [&](Reduction reduction, std::uint64_t argument) {
    return Reducer(reduction, unsigned_element, argument, DivisorEncoding::sign_in_bit_0);
  };
  check_reduce<T>(reducer(Reduction::sum, 0),
                  [](T a, T b) { return static_cast<T>(std::uint64_t(a) + std::uint64_t(b)); });
  check_reduce<T>(reducer(Reduction::prod, 0),
                  [](T a, T b) { return static_cast<T>(std::uint64_t(a) * std::uint64_t(b)); });
  // NCCL's masks: for max all value bits, for signed numbers the sign bit changed.
  const U sign = std::is_signed_v<T> ? static_cast<U>(U{1} << (8 * sizeof(T) - 1)) : U{0};
  check_reduce<T>(reducer(Reduction::min_max, sign), [](T a, T b) { return std::min(a, b); });
  check_reduce<T>(reducer(Reduction::min_max, static_cast<U>(~sign)), [](T a, T b) { return std::max(a, b); });

  const std::vector<T> in = random_values<T>(3);
  std::vector<T> out(element_count);
  const Reducer scaled = reducer(Reduction::pre_mul_sum, as_argument(static_cast<T>(7)));
  REQUIRE(scaled.has_pre());
  scaled.pre(bytes(out), bytes(in), element_count);
  for (std::size_t i = 0; i < element_count; ++i) REQUIRE(out[i] == static_cast<T>(std::uint64_t(in[i]) * 7));

  const std::uint64_t divisor = 3;
  const Reducer encoded = reducer(Reduction::sum_post_div, divisor * 2 + (std::is_signed_v<T> ? 1 : 0));
  const Reducer plain(Reduction::sum_post_div, element, divisor, DivisorEncoding::plain);
  for (const Reducer& average : {encoded, plain}) {
    REQUIRE(average.has_post());
    average.post(bytes(out), bytes(in), element_count);
    for (std::size_t i = 0; i < element_count; ++i) REQUIRE(out[i] == static_cast<T>(in[i] / static_cast<T>(divisor)));
  }
}

template <typename T>
void check_floats(Element element) {
  const auto reducer = [&](Reduction reduction, std::uint64_t argument) {
    return Reducer(reduction, element, argument, DivisorEncoding::sign_in_bit_0);
  };
  check_reduce<T>(reducer(Reduction::sum, 0), [](T a, T b) { return T(static_cast<float>(number(a) + number(b))); });
  check_reduce<T>(reducer(Reduction::prod, 0), [](T a, T b) { return T(static_cast<float>(number(a) * number(b))); });
  check_reduce<T>(reducer(Reduction::min_max, 0), [](T a, T b) { return number(a) < number(b) ? a : b; });
  check_reduce<T>(reducer(Reduction::min_max, 1), [](T a, T b) { return number(a) > number(b) ? a : b; });

  std::vector<T> in = random_values<T>(3);
  std::vector<T> out(element_count);
  const T scalar(0.375F);
  const Reducer scaled = reducer(Reduction::pre_mul_sum, as_argument(scalar));
  scaled.pre(bytes(out), bytes(in), element_count);
  for (std::size_t i = 0; i < element_count; ++i)
    REQUIRE(same(out[i], T(static_cast<float>(number(in[i]) * number(scalar)))));

  const std::vector<T> nothing(element_count, T(std::numeric_limits<float>::quiet_NaN()));
  for (const std::uint64_t max : {0, 1}) {
    const Reducer limit = reducer(Reduction::min_max, max);
    limit.reduce(bytes(out), bytes(in), bytes(nothing), element_count);
    for (std::size_t i = 0; i < element_count; ++i) REQUIRE(same(out[i], in[i]));
    limit.reduce(bytes(out), bytes(nothing), bytes(in), element_count);
    for (std::size_t i = 0; i < element_count; ++i) REQUIRE(same(out[i], in[i]));
  }
}

TEST_CASE("reductions of integers of all widths, signed and unsigned") {
  check_integers<std::int8_t>(Element::i8, Element::u8);
  check_integers<std::uint8_t>(Element::u8, Element::u8);
  check_integers<std::int32_t>(Element::i32, Element::u32);
  check_integers<std::uint32_t>(Element::u32, Element::u32);
  check_integers<std::int64_t>(Element::i64, Element::u64);
  check_integers<std::uint64_t>(Element::u64, Element::u64);
}

TEST_CASE("reductions of floating-point numbers round once, and ignore a NaN in min and max") {
  check_floats<Float16>(Element::f16);
  check_floats<BFloat16>(Element::bf16);
  check_floats<float>(Element::f32);
}

TEST_CASE("reductions of float64 keep its precision") {
  const Reducer sum(Reduction::sum, Element::f64, 0, DivisorEncoding::sign_in_bit_0);
  const std::vector<double> a{1.0, 0x1p52};
  const std::vector<double> b{0x1p-52, 1.0};
  std::vector<double> out(2);
  sum.reduce(bytes(out), bytes(a), bytes(b), 2);
  CHECK(out[0] == 1.0 + 0x1p-52);
  CHECK(out[1] == 0x1p52 + 1);
}

TEST_CASE("8-bit floats have no size") {
  CHECK(element_bytes(Element::f8e4m3) == 0);
  CHECK(element_bytes(Element::f8e5m2) == 0);
}

}  // namespace
}  // namespace paralet::cpu_device
