// SPDX-License-Identifier: Apache-2.0
// Clos fabrics of three tiers: pods of leaves and aggregation switches (aggs), and cores, of which agg a of every pod
// has the same. They are two fabrics of two tiers, one above the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "clos.hpp"
#include "index.hpp"

namespace paralet::planners {

struct PodClos {
  Clos low;                           // ToRs are leaves; agg a of a leaf's pod is its spine a
  Clos high;                          // ToR pod * aggs + a is agg a of that pod; spines are the cores of group a
  std::span<const std::int32_t> pod;  // of each leaf

  [[nodiscard]] std::int32_t agg(std::int32_t leaf, std::int32_t a) const { return pod[index(leaf)] * low.spines + a; }
  [[nodiscard]] bool same_pod(std::int32_t src, std::int32_t dst) const { return pod[index(src)] == pod[index(dst)]; }
};

/// A path: by agg `low.spine` of both pods and, between pods, core `high.spine` of its group. `low` is kLocal within a
/// leaf and kUnreachable without a path, `high` is kLocal with both and within a pod.
struct PodRoute {
  Route low;
  Route high;
  bool operator==(const PodRoute&) const = default;
};

/// The greedy algorithm of Cohen et al. (section 3.4.1) over all paths: in `order`, each commodity takes the path that
/// is least congested so far. O(commodities * aggs * cores of a group).
void greedy(const PodClos& clos, const Commodities& commodities, std::span<const std::int32_t> order,
            std::span<PodRoute> routes);

/// Moves commodities off the most congested link until no link is above `target`, no move relieves it, or `effort`
/// paths have been examined. A move never raises another link to the congestion that it relieves. It may displace up to
/// two other commodities. Routes of commodities with a path must use live links.
void improve(const PodClos& clos, const Commodities& commodities, double target, std::size_t effort,
             std::span<PodRoute> routes);

}  // namespace paralet::planners
