// SPDX-License-Identifier: Apache-2.0
// Independent parts of a planning problem ("Routing for Large ML Models", section 3.4.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace paralet::planners {

/// The connected component of each commodity, numbered from 0 in the order of appearance. Two commodities are in one
/// component if they share a source ToR or a destination ToR, directly or through others. -1: within one ToR.
std::vector<std::int32_t> components(std::int32_t tors, std::span<const std::int32_t> src,
                                     std::span<const std::int32_t> dst);

/// Splits the commodities that cross ToRs into disjoint lists, in `order`, and calls `work` for each list on a thread
/// of its own; with one thread, on the caller's. Every component is in one list. Components are assigned by size, so
/// that all threads have about the same amount of work.
void by_component(std::int32_t tors, std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
                  std::span<const std::int32_t> order, int threads,
                  const std::function<void(std::span<const std::int32_t>)>& work);

}  // namespace paralet::planners
