// SPDX-License-Identifier: Apache-2.0
// Numbers as names of things that come and go. A process may live longer than 2^32 of them.
#pragma once

#include <cstdint>

namespace paralet {

/// The next number from `next` on that is not 0 and that no table has as a key. `next` wraps around.
template <typename... Tables>
std::uint32_t fresh_name(std::uint32_t& next, const Tables&... tables) {
  while (next == 0 || (tables.contains(next) || ...)) ++next;
  return next++;
}

}  // namespace paralet
