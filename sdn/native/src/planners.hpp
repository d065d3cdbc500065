// SPDX-License-Identifier: Apache-2.0
// Planners that start without a plan: commodities in, a route for each out.
#pragma once

#include <cstdint>
#include <span>

#include "clos.hpp"

namespace paralet::planners {

/// The greedy algorithm of Cohen et al. (section 3.4.1): in `order`, each commodity takes the path that is least
/// congested so far. O(commodities * spines * parallel links).
void greedy(const Clos& clos, const Commodities& commodities, std::span<const std::int32_t> order, int threads,
            std::span<Route> routes);

/// Assigns a colour, from 0, to each commodity in `order`; kLocal to those within one ToR. No ToR has more commodities
/// of one colour, out or in, than that number of colours requires (edge_colouring.hpp). In practice the time is linear
/// in the number of commodities.
void colour(std::int32_t tors, std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
            std::span<const std::int32_t> order, std::int32_t colours, int threads, std::span<std::int32_t> answer);

}  // namespace paralet::planners
