// SPDX-License-Identifier: Apache-2.0
#include "reduction.hpp"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/half.hpp"
#include "base/independent.hpp"

namespace paralet::cpu_device {
namespace {

// The type that values are computed in.
template <typename T>
struct Arithmetic {
  using type = T;
};
template <>
struct Arithmetic<Float16> {
  using type = float;
};
template <>
struct Arithmetic<BFloat16> {
  using type = float;
};
// Integers narrower than int would be promoted to int, whose overflow is undefined.
template <>
struct Arithmetic<std::uint8_t> {
  using type = std::uint32_t;
};
template <typename T>
using Computed = typename Arithmetic<T>::type;

template <typename T>
constexpr bool is_integer = std::is_integral_v<T>;

template <typename T>
T argument_as(std::uint64_t argument) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(argument));
  T value;
  std::memcpy(static_cast<void*>(&value), &argument, sizeof(T));
  return value;
}

template <typename T, typename Operation>
void for_each_pair(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count, Operation operation) {
  auto* result = reinterpret_cast<T*>(out);
  const auto* left = reinterpret_cast<const T*>(a);
  const auto* right = reinterpret_cast<const T*>(b);
  // The arrays are the same or apart, so that no iteration depends on another. Without this the compiler tests for
  // overlap at run time, and reduces in place without vector instructions.
  PARALET_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = static_cast<T>(operation(static_cast<Computed<T>>(left[i]), static_cast<Computed<T>>(right[i])));
  }
}

template <typename T, typename Operation>
void for_each(std::byte* out, const std::byte* in, std::size_t count, Operation operation) {
  auto* result = reinterpret_cast<T*>(out);
  const auto* values = reinterpret_cast<const T*>(in);
  PARALET_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<T>(operation(static_cast<Computed<T>>(values[i])));
}

template <typename T>
void add(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count, std::uint64_t) {
  for_each_pair<T>(out, a, b, count, [](Computed<T> x, Computed<T> y) { return x + y; });
}

template <typename T>
void multiply(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count, std::uint64_t) {
  for_each_pair<T>(out, a, b, count, [](Computed<T> x, Computed<T> y) { return x * y; });
}

template <typename T>
void min_max(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count, std::uint64_t argument) {
  if constexpr (is_integer<T>) {
    const auto mask = argument_as<T>(argument);
    for_each_pair<T>(out, a, b, count, [mask](Computed<T> x, Computed<T> y) {
      return static_cast<T>(x ^ mask) < static_cast<T>(y ^ mask) ? x : y;
    });
  } else if (argument % 2 == 0) {
    // As fmin: a number wins over a NaN.
    for_each_pair<T>(out, a, b, count, [](Computed<T> x, Computed<T> y) { return x < y || std::isnan(y) ? x : y; });
  } else {
    for_each_pair<T>(out, a, b, count, [](Computed<T> x, Computed<T> y) { return x > y || std::isnan(y) ? x : y; });
  }
}

template <typename T>
void scale(std::byte* out, const std::byte* in, std::size_t count, std::uint64_t argument) {
  const auto scalar = static_cast<Computed<T>>(argument_as<T>(argument));
  for_each<T>(out, in, count, [scalar](Computed<T> x) { return x * scalar; });
}

// Quotients are rounded towards zero.
template <typename T>
void divide(std::byte* out, const std::byte* in, std::size_t count, std::uint64_t argument) {
  const std::uint64_t divisor = argument >> 1U;
  if (argument % 2 == 1) {
    for_each<T>(out, in, count, [divisor](Computed<T> x) {
      constexpr unsigned unused = 64 - 8 * sizeof(T);
      const std::int64_t value = static_cast<std::int64_t>(std::uint64_t{x} << unused) >> unused;
      return static_cast<T>(value / static_cast<std::int64_t>(divisor));
    });
  } else {
    for_each<T>(out, in, count, [divisor](Computed<T> x) { return static_cast<T>(x / divisor); });
  }
}

struct Operations {
  Reducer::Binary reduce = nullptr;
  Reducer::Unary pre = nullptr;
  Reducer::Unary post = nullptr;
};

// T is unsigned for all integers: sums and products of signed ones have the same bits.
template <typename T>
Operations operations(Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return {};
    case Reduction::sum:
      return {&add<T>};
    case Reduction::prod:
      return {&multiply<T>};
    case Reduction::min_max:
      return {&min_max<T>};
    case Reduction::pre_mul_sum:
      return {&add<T>, &scale<T>};
    case Reduction::sum_post_div:
      if constexpr (is_integer<T>) {
        return {&add<T>, nullptr, &divide<T>};
      } else {
        return {&add<T>, nullptr, &scale<T>};
      }
  }
  return {};
}

Operations operations(Reduction reduction, Element element) {
  switch (element) {
    case Element::i8:
    case Element::u8:
      return operations<std::uint8_t>(reduction);
    case Element::i32:
    case Element::u32:
      return operations<std::uint32_t>(reduction);
    case Element::i64:
    case Element::u64:
      return operations<std::uint64_t>(reduction);
    case Element::f16:
      return operations<Float16>(reduction);
    case Element::bf16:
      return operations<BFloat16>(reduction);
    case Element::f32:
      return operations<float>(reduction);
    case Element::f64:
      return operations<double>(reduction);
    case Element::none:
    case Element::f8e4m3:
    case Element::f8e5m2:
      break;
  }
  return {};
}

bool is_signed(Element element) { return element == Element::i8 || element == Element::i32 || element == Element::i64; }

bool is_floating(Element element) {
  return element == Element::f16 || element == Element::bf16 || element == Element::f32 || element == Element::f64;
}

}  // namespace

std::size_t element_bytes(Element element) {
  switch (element) {
    case Element::i8:
    case Element::u8:
      return 1;
    case Element::f16:
    case Element::bf16:
      return 2;
    case Element::i32:
    case Element::u32:
    case Element::f32:
      return 4;
    case Element::i64:
    case Element::u64:
    case Element::f64:
      return 8;
    case Element::none:
    case Element::f8e4m3:
    case Element::f8e5m2:
      break;
  }
  return 0;
}

Reducer::Reducer(Reduction reduction, Element element, std::uint64_t argument, DivisorEncoding encoding)
    : element_bytes_(cpu_device::element_bytes(element)), argument_(argument) {
  const Operations chosen = operations(reduction, element);
  reduce_ = chosen.reduce;
  pre_ = chosen.pre;
  post_ = chosen.post;
  if (reduction == Reduction::sum_post_div && encoding == DivisorEncoding::plain && !is_floating(element)) {
    argument_ = argument * 2 + (is_signed(element) ? 1 : 0);
  }
}

}  // namespace paralet::cpu_device
