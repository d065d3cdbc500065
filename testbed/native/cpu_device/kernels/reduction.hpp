// SPDX-License-Identifier: Apache-2.0
// NCCL's reductions on arrays of one element type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel.hpp"

namespace paralet::cpu_device {

// Bytes of one element; 0 of an element type that the CPU device does not serve (the 8-bit floats).
std::size_t element_bytes(Element element);

// How NCCL encodes the divisor of sum_post_div in its argument.
enum class DivisorEncoding : std::uint8_t {
  plain,          // the divisor; the element type says whether values are signed (NCCL 2.22 and earlier)
  sign_in_bit_0,  // 2 * divisor + (1 if values are signed); the element type is always unsigned (NCCL 2.23 and later)
};

// A reduction of one element type with its argument. Arrays may be the same array, but may not overlap otherwise.
class Reducer {
 public:
  // A copy: no reduction.
  explicit Reducer(std::size_t element_bytes) : element_bytes_(element_bytes) {}

  // `argument`: the scalar of pre_mul_sum in the element's bits; of min_max, for integers the mask that both values are
  // xored with before an unsigned comparison takes the smaller, for floats 0 for min and 1 for max; the divisor of
  // sum_post_div. Not to be called with an element type of 0 bytes.
  Reducer(Reduction reduction, Element element, std::uint64_t argument, DivisorEncoding encoding);

  std::size_t element_bytes() const { return element_bytes_; }
  // Whether own data changes before the reduction, and the result after it.
  bool has_pre() const { return pre_ != nullptr; }
  bool has_post() const { return post_ != nullptr; }

  // out[i] = a[i] op b[i]
  void reduce(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) const {
    reduce_(out, a, b, count, argument_);
  }
  // out[i] = in[i] * scalar
  void pre(std::byte* out, const std::byte* in, std::size_t count) const { pre_(out, in, count, argument_); }
  // out[i] = in[i] / divisor
  void post(std::byte* out, const std::byte* in, std::size_t count) const { post_(out, in, count, argument_); }

  using Binary = void (*)(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count,
                          std::uint64_t argument);
  using Unary = void (*)(std::byte* out, const std::byte* in, std::size_t count, std::uint64_t argument);

 private:
  std::size_t element_bytes_;
  std::uint64_t argument_ = 0;
  Binary reduce_ = nullptr;
  Unary pre_ = nullptr;
  Unary post_ = nullptr;
};

}  // namespace paralet::cpu_device
