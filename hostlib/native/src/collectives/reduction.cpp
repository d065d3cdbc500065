// SPDX-License-Identifier: Apache-2.0
#include "collectives/reduction.hpp"

#include <array>
#include <cstring>
#include <type_traits>

#include "base/half.hpp"
#include "base/independent.hpp"

namespace paralet::collectives {
namespace {

constexpr std::array<const char*, kDataTypes> kTypeNames = {"float32", "float64", "float16", "bfloat16", "int8",
                                                            "uint8",   "int16",   "int32",   "int64",    "bool"};
constexpr std::array<const char*, kReduceOps> kOpNames = {"sum", "product", "min", "max", "band", "bor", "bxor", "avg"};

template <typename T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

/// The type that sums and products are computed in. Unsigned for integers, whose overflow is defined; at least as wide
/// as unsigned int, so that nothing is promoted to int.
template <typename T>
constexpr auto computed_in() {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return float{};
  } else if constexpr (std::is_floating_point_v<T>) {
    return T{};
  } else if constexpr (sizeof(T) < sizeof(unsigned)) {
    return 0U;
  } else {
    return std::make_unsigned_t<T>{};
  }
}
template <typename T>
using Computed = decltype(computed_in<T>());

/// The type that values are compared in: unlike Computed it keeps the sign.
template <typename T>
using Compared = std::conditional_t<kIsFloat<T>, Computed<T>, T>;

template <typename T>
T load(const std::byte* values, std::size_t i) {
  T value;
  std::memcpy(static_cast<void*>(&value), values + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* values, std::size_t i, T value) {
  std::memcpy(values + i * sizeof(T), static_cast<const void*>(&value), sizeof(T));
}

/// The arrays are the same or apart, so that no iteration depends on another. Without saying so the compiler would
/// test for overlap at run time, and reduce in place without vector instructions.
template <typename T, typename In, typename Operator>
void for_each_pair(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count, Operator op) {
  PARALET_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    store<T>(out, i, static_cast<T>(op(static_cast<In>(load<T>(a, i)), static_cast<In>(load<T>(b, i)))));
  }
}

template <typename T>
void add(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  using C = Computed<T>;
  for_each_pair<T, C>(out, a, b, count, [](C x, C y) { return x + y; });
}

template <typename T>
void multiply(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  using C = Computed<T>;
  for_each_pair<T, C>(out, a, b, count, [](C x, C y) { return x * y; });
}

// `x != x` holds for NaN only, also where <cmath> is compiled with assumptions.
template <typename T>
void minimum(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  using C = Compared<T>;
  for_each_pair<T, C>(out, a, b, count,
                      [](C x, C y) { return x < y || x != x ? x : y; });  // NOLINT(misc-redundant-expression)
}

template <typename T>
void maximum(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  using C = Compared<T>;
  for_each_pair<T, C>(out, a, b, count,
                      [](C x, C y) { return x > y || x != x ? x : y; });  // NOLINT(misc-redundant-expression)
}

template <typename T>
void bit_and(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  using C = Computed<T>;
  for_each_pair<T, C>(out, a, b, count, [](C x, C y) { return x & y; });
}

template <typename T>
void bit_or(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  using C = Computed<T>;
  for_each_pair<T, C>(out, a, b, count, [](C x, C y) { return x | y; });
}

template <typename T>
void bit_xor(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  using C = Computed<T>;
  for_each_pair<T, C>(out, a, b, count, [](C x, C y) { return x ^ y; });
}

template <typename T>
void divide(std::byte* values, std::size_t count, unsigned divisor) {
  if constexpr (kIsFloat<T>) {
    const auto by = static_cast<Computed<T>>(divisor);
    PARALET_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      store<T>(values, i, static_cast<T>(static_cast<Computed<T>>(load<T>(values, i)) / by));
    }
  } else {
    const auto by = static_cast<std::int64_t>(divisor);
    for (std::size_t i = 0; i < count; ++i) {
      store<T>(values, i, static_cast<T>(static_cast<std::int64_t>(load<T>(values, i)) / by));
    }
  }
}

template <typename T>
std::optional<Reduction> reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Reduction{&add<T>};
    case ReduceOp::kProduct:
      return Reduction{&multiply<T>};
    case ReduceOp::kMin:
      return Reduction{&minimum<T>};
    case ReduceOp::kMax:
      return Reduction{&maximum<T>};
    case ReduceOp::kAverage:
      return Reduction{&add<T>, &divide<T>};
    default:
      break;
  }
  if constexpr (!kIsFloat<T>) {
    if (op == ReduceOp::kBitAnd) return Reduction{&bit_and<T>};
    if (op == ReduceOp::kBitOr) return Reduction{&bit_or<T>};
    if (op == ReduceOp::kBitXor) return Reduction{&bit_xor<T>};
  }
  return std::nullopt;
}

std::optional<Reduction> reduction_of_bool(ReduceOp op) {
  using T = std::uint8_t;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      return Reduction{&bit_or<T>};
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return Reduction{&bit_and<T>};
    case ReduceOp::kBitXor:
      return Reduction{&bit_xor<T>};
    case ReduceOp::kAverage:
      break;
  }
  return std::nullopt;
}

template <typename Value, std::size_t N>
std::optional<Value> named(const std::array<const char*, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Value>(i);
  }
  return std::nullopt;
}

}  // namespace

const char* to_string(DataType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < kTypeNames.size() ? kTypeNames[index] : nullptr;
}

const char* to_string(ReduceOp op) {
  const auto index = static_cast<std::size_t>(op);
  return index < kOpNames.size() ? kOpNames[index] : nullptr;
}

std::optional<DataType> parse_data_type(std::string_view name) { return named<DataType>(kTypeNames, name); }
std::optional<ReduceOp> parse_reduce_op(std::string_view name) { return named<ReduceOp>(kOpNames, name); }

std::size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kBool:
      return 1;
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kInt16:
      return 2;
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
      break;
  }
  return 8;
}

std::optional<Reduction> reduction(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat32:
      return reduction_of<float>(op);
    case DataType::kFloat64:
      return reduction_of<double>(op);
    case DataType::kFloat16:
      return reduction_of<Float16>(op);
    case DataType::kBFloat16:
      return reduction_of<BFloat16>(op);
    case DataType::kInt8:
      return reduction_of<std::int8_t>(op);
    case DataType::kUint8:
      return reduction_of<std::uint8_t>(op);
    case DataType::kInt16:
      return reduction_of<std::int16_t>(op);
    case DataType::kInt32:
      return reduction_of<std::int32_t>(op);
    case DataType::kInt64:
      return reduction_of<std::int64_t>(op);
    case DataType::kBool:
      break;
  }
  return reduction_of_bool(op);
}

}  // namespace paralet::collectives
