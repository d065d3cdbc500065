// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "schedule.hpp"

namespace paralet::driver {

/// The bytes of a slot or a message as floats.
inline std::span<const float> floats(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
inline std::span<float> floats(std::span<std::byte> bytes, std::size_t count) {
  return {reinterpret_cast<float*>(bytes.data()), count};
}

template <typename T>
std::span<T> at(std::span<T> elements, Range range) {
  return elements.subspan(range.first, range.count);
}

inline void copy(std::span<const float> from, std::span<float> to) { std::copy(from.begin(), from.end(), to.begin()); }

/// to = a + b, element by element. The arguments must not overlap.
inline void add(std::span<const float> a, std::span<const float> b, std::span<float> to) {
  const float* __restrict left = a.data();
  const float* __restrict right = b.data();
  float* __restrict sum = to.data();
  for (std::size_t i = 0; i < to.size(); ++i) sum[i] = left[i] + right[i];
}

/// to = and_to = a + b, element by element. The arguments must not overlap.
inline void add(std::span<const float> a, std::span<const float> b, std::span<float> to, std::span<float> and_to) {
  const float* __restrict left = a.data();
  const float* __restrict right = b.data();
  float* __restrict sum = to.data();
  float* __restrict copy = and_to.data();
  for (std::size_t i = 0; i < to.size(); ++i) copy[i] = sum[i] = left[i] + right[i];
}

/// to += a, element by element.
inline void add(std::span<const float> a, std::span<float> to) {
  const float* __restrict left = a.data();
  float* __restrict sum = to.data();
  for (std::size_t i = 0; i < to.size(); ++i) sum[i] += left[i];
}

}  // namespace paralet::driver
