// SPDX-License-Identifier: Apache-2.0
// Element types, reduction operators, and the loops that reduce arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace paralet::collectives {

enum class DataType : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kUint8,
  kInt16,
  kInt32,
  kInt64,
  kBool,  ///< a byte, 0 or 1
};
inline constexpr unsigned kDataTypes = 10;

enum class ReduceOp : std::uint8_t { kSum, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor, kAverage };
inline constexpr unsigned kReduceOps = 8;

/// The name in Python, "float32"; nullptr for a value that is none.
const char* to_string(DataType type);
const char* to_string(ReduceOp op);
std::optional<DataType> parse_data_type(std::string_view name);
std::optional<ReduceOp> parse_reduce_op(std::string_view name);

std::size_t element_bytes(DataType type);

/// out[i] = a[i] op b[i] for `count` elements. `out` may be `a` or `b`; otherwise the arrays may not overlap. Any
/// alignment. float16 and bfloat16 are computed in float32 and rounded to nearest, ties to even. Integers wrap around.
/// The smaller or larger of a number and NaN is NaN. For bool, sum and max are `or`, product and min are `and`.
using Combine = void (*)(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count);
/// values[i] /= divisor. Integers are rounded towards zero.
using Divide = void (*)(std::byte* values, std::size_t count, unsigned divisor);

struct Reduction {
  Combine combine = nullptr;
  Divide divide = nullptr;  ///< of the last result; nullptr: none
};
/// nullopt where the operator is not defined: bit operators on floats, the average of bool.
std::optional<Reduction> reduction(DataType type, ReduceOp op);

}  // namespace paralet::collectives
