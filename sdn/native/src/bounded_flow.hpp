// SPDX-License-Identifier: Apache-2.0
// A maximum flow with lower and upper bounds. The planner for links that differ uses it to choose which commodities one
// spine carries.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace paralet::planners {

/// Inclusive bounds of a whole number.
struct Range {
  std::int64_t least;
  std::int64_t most;
};

/// A tree of two levels over the vertices of one side: the group of each vertex, and the ranges of groups. Without
/// groups only vertices have ranges.
struct Groups {
  std::span<const std::int32_t> of_vertex;
  std::span<const Range> ranges;
};

/// Chooses a number for each pair (left vertex, right vertex). Each number is in the range of its pair, and the numbers
/// at each vertex, and at the vertices of each group, add up to one in the range of that vertex or group. The total is
/// the largest possible. Returns nullopt if the ranges cannot be met. The flow is found by Dinic's algorithm (E. A.
/// Dinic, 1970).
std::optional<std::vector<std::int64_t>> bounded_flow(std::span<const std::int32_t> left,
                                                      std::span<const std::int32_t> right, std::span<const Range> pair,
                                                      std::span<const Range> left_vertex,
                                                      std::span<const Range> right_vertex, Groups left_groups = {},
                                                      Groups right_groups = {});

}  // namespace paralet::planners
