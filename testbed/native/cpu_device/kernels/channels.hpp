// SPDX-License-Identifier: Apache-2.0
// What both generations of work descriptors have in common.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "kernel.hpp"
#include "not_supported.hpp"

namespace paralet::cpu_device {

// Block i of a launch works on the channel of the i-th bit that is set in the mask.
inline unsigned channel_of_block(std::uint64_t mask, unsigned block) {
  for (; block > 0; --block) mask &= mask - 1;
  if (mask == 0) throw NotSupported{"The launch has more blocks than its channel mask has channels."};
  return static_cast<unsigned>(std::countr_zero(mask));
}

// The function of a work. Throws NotSupported where NCCL's table has a gap.
inline const Function& function_of(std::span<const Function> functions, std::size_t number) {
  if (number >= functions.size() || !functions[number].known) {
    throw NotSupported{"The CPU device does not know device function " + std::to_string(number) + " of this NCCL."};
  }
  return functions[number];
}

// The argument of a reduction that lies in memory, `bytes` long.
inline std::uint64_t load_argument(std::uint64_t address, std::size_t bytes) {
  std::uint64_t value = 0;
  const void* pointer = nullptr;
  std::memcpy(&pointer, &address, sizeof(pointer));
  std::memcpy(&value, pointer, bytes);
  return value;
}

}  // namespace paralet::cpu_device
