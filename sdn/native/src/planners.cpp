// SPDX-License-Identifier: Apache-2.0
#include "planners.hpp"

#include <algorithm>
#include <vector>

#include "components.hpp"
#include "edge_colouring.hpp"
#include "index.hpp"

namespace paralet::planners {

void greedy(const Clos& clos, const Commodities& commodities, std::span<const std::int32_t> order, int threads,
            std::span<Route> routes) {
  Loads loads(clos);
  std::fill(routes.begin(), routes.end(), Route{});
  // Components share no link, so their threads write to different places of `loads`.
  by_component(clos.tors, commodities.src, commodities.dst, order, threads, [&](std::span<const std::int32_t> mine) {
    for (const auto i : mine) {
      const auto src = commodities.src[index(i)];
      const auto dst = commodities.dst[index(i)];
      const auto demand = commodities.demand[index(i)];
      const Route route = loads.best(src, dst, demand).route;
      routes[index(i)] = route;
      if (route.spine >= 0) loads.add(src, dst, route, demand);
    }
  });
}

void colour(std::int32_t tors, std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
            std::span<const std::int32_t> order, std::int32_t colours, int threads, std::span<std::int32_t> answer) {
  std::fill(answer.begin(), answer.end(), kLocal);
  by_component(tors, src, dst, order, threads, [&](std::span<const std::int32_t> mine) {
    EdgeColouring colouring(tors, tors, colours);
    colouring.reserve(mine.size());
    for (const auto i : mine) colouring.insert(src[index(i)], dst[index(i)]);
    // Edges are numbered in the order of insertion.
    for (std::size_t e = 0; e < mine.size(); ++e) {
      answer[index(mine[e])] = colouring.colour(static_cast<EdgeColouring::Edge>(e), 0);
    }
  });
}

}  // namespace paralet::planners
