// SPDX-License-Identifier: Apache-2.0
#include "combine.hpp"

#include <algorithm>
#include <cstring>

namespace paralet::cpu_device {
namespace {

// Parts of this size stay in the first level cache from one pass to the next.
constexpr std::size_t tile_bytes = 8192;

void copy(std::span<std::byte* const> results, const std::byte* from, std::size_t offset, std::size_t bytes) {
  for (std::byte* result : results) {
    if (result != from) std::memcpy(result + offset, from + offset, bytes);
  }
}

}  // namespace

void combine(const Reducer& reducer, const std::byte* own, std::span<const std::byte* const> received,
             std::span<std::byte* const> results, std::size_t count, bool post) {
  if (count == 0 || results.empty()) return;
  const bool apply_pre = own != nullptr && reducer.has_pre();
  const bool apply_post = post && reducer.has_post();
  const std::size_t bytes = count * reducer.element_bytes();
  const std::byte* first = own != nullptr ? own : received.front();
  const auto others = own != nullptr ? received : received.subspan(1);

  if (others.empty() && !apply_pre && !apply_post) {
    if (results.size() == 1) return copy(results, first, 0, bytes);
    for (std::size_t offset = 0; offset < bytes; offset += tile_bytes) {
      copy(results, first, offset, std::min(tile_bytes, bytes - offset));
    }
    return;
  }
  std::byte* sum = results.front();
  for (std::size_t offset = 0; offset < bytes; offset += tile_bytes) {
    const std::size_t part = std::min(tile_bytes, bytes - offset);
    const std::size_t elements = part / reducer.element_bytes();
    const std::byte* so_far = first + offset;
    if (apply_pre) {
      reducer.pre(sum + offset, so_far, elements);
      so_far = sum + offset;
    }
    for (const std::byte* other : others) {
      reducer.reduce(sum + offset, so_far, other + offset, elements);
      so_far = sum + offset;
    }
    if (apply_post) reducer.post(sum + offset, so_far, elements);
    copy(results.subspan(1), sum, offset, part);
  }
}

}  // namespace paralet::cpu_device
