// SPDX-License-Identifier: Apache-2.0
// Which commodities one spine takes, when ToRs can give it different numbers: a flow with lower bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace paralet::planners {

/// Some whole number from `least` to `most`.
struct Range {
  std::int64_t least;
  std::int64_t most;
};

/// For each pair (left vertex, right vertex), a number in its range such that the numbers at every vertex add up to
/// one in that vertex's range; as large in total as can be. nullopt when there is no such choice. Dinic's algorithm.
std::optional<std::vector<std::int64_t>> take_share(std::span<const std::int32_t> left,
                                                    std::span<const std::int32_t> right, std::span<const Range> pair,
                                                    std::span<const Range> left_vertex,
                                                    std::span<const Range> right_vertex);

}  // namespace paralet::planners
