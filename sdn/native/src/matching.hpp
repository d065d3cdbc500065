// SPDX-License-Identifier: Apache-2.0
// A matching of greatest weight in any graph (J. Edmonds, "Maximum matching and a polyhedron with 0,1-vertices", 1965).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace paralet::planners {

/// The partner of each vertex, or -1, so that the weights of all pairs add up to the most that is possible. `weight` is
/// symmetric, by vertex * vertices + vertex; pairs of weight 0 are never matched. Weights are at most 2^53.
///
/// This is the primal-dual blossom algorithm in O(vertices^3) (Z. Galil, "Efficient algorithms for finding maximum
/// matching in graphs", ACM Computing Surveys 18, 1986).
std::vector<std::int32_t> heaviest_matching(std::int32_t vertices, std::span<const std::int64_t> weight);

}  // namespace paralet::planners
