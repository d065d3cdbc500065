// SPDX-License-Identifier: Apache-2.0
#include "balanced_routes.hpp"

#include <cstddef>

#include "index.hpp"

namespace paralet::planners {

BalancedRoutes::BalancedRoutes(std::int32_t servers, std::span<const std::int32_t> tail,
                               std::span<const std::int32_t> head, std::span<const std::int32_t> copies)
    : leaving_(index(servers)), hops_(index(servers) * index(servers), -1) {
  for (std::size_t i = 0; i < tail.size(); ++i) {
    leaving_[index(tail[i])].push_back({head[i], static_cast<double>(copies[i]), 0.0});
  }
  std::vector<std::int32_t> reached;
  for (std::size_t source = 0; source < leaving_.size(); ++source) {  // a breadth-first search from each server
    const auto hops = std::span(hops_).subspan(source * leaving_.size(), leaving_.size());
    hops[source] = 0;
    reached.assign(1, static_cast<std::int32_t>(source));
    for (std::size_t next = 0; next < reached.size(); ++next) {
      const auto at = index(reached[next]);
      for (const auto& circuit : leaving_[at]) {
        if (hops[index(circuit.head)] >= 0) continue;
        hops[index(circuit.head)] = hops[at] + 1;
        reached.push_back(circuit.head);
      }
    }
  }
}

std::vector<std::int32_t> BalancedRoutes::add(std::int32_t source, std::int32_t destination, double size) {
  std::vector<std::int32_t> route{source};
  for (auto at = source; at != destination; route.push_back(at)) {
    Circuit* best = nullptr;
    for (auto& circuit : leaving_[index(at)]) {
      if (left(circuit.head, destination) != left(at, destination) - 1) continue;
      if (best == nullptr || circuit.load < best->load) best = &circuit;
    }
    best->load += size / best->copies;
    at = best->head;
  }
  return route;
}

std::int32_t BalancedRoutes::left(std::int32_t at, std::int32_t destination) const {
  return hops_[index(at) * leaving_.size() + index(destination)];
}

}  // namespace paralet::planners
