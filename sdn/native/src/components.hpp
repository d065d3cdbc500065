// SPDX-License-Identifier: Apache-2.0
// What can be planned apart from the rest ("Routing for Large ML Models", section 3.4.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace paralet::planners {

/// The connected component of each commodity, from 0 in the order of appearance: two belong together when they share a
/// source ToR or a destination ToR, directly or through others. -1 for commodities within one ToR.
std::vector<std::int32_t> components(std::int32_t tors, std::span<const std::int32_t> src,
                                     std::span<const std::int32_t> dst);

/// Calls `work` for disjoint lists of commodities that together hold all that cross ToRs, in `order`, with every
/// component whole in one list: from `threads` threads, or from this one where that is 1. Components go to threads by
/// size, so that all have about as much to do.
void by_component(std::int32_t tors, std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
                  std::span<const std::int32_t> order, int threads,
                  const std::function<void(std::span<const std::int32_t>)>& work);

}  // namespace paralet::planners
