// SPDX-License-Identifier: Apache-2.0
#include "balanced_routes.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

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

std::vector<std::vector<std::int32_t>> BalancedRoutes::add(std::int32_t source, std::int32_t destination, double size,
                                                           int count) {
  if (left(source, destination) < 0) return {};
  std::vector<std::vector<Circuit*>> ways;
  std::vector<int> times;  // by way
  for (int k = 0; k < count; ++k) {
    auto way = lightest(source, destination);
    load(way, size / count);
    const auto place = static_cast<std::size_t>(std::find(ways.begin(), ways.end(), way) - ways.begin());
    if (place == ways.size()) {
      ways.push_back(std::move(way));
      times.push_back(0);
    }
    ++times[place];
  }
  const auto each = static_cast<int>(ways.size());
  std::vector<std::vector<std::int32_t>> routes;
  for (std::size_t place = 0; place < ways.size(); ++place) {
    // What was found more often than another way still carries the same part.
    if (times[place] * each != count) load(ways[place], size / each - times[place] * size / count);
    routes.emplace_back(1, source);
    for (const auto* circuit : ways[place]) routes.back().push_back(circuit->head);
  }
  return routes;
}

std::vector<BalancedRoutes::Circuit*> BalancedRoutes::lightest(std::int32_t source, std::int32_t destination) {
  std::vector<Circuit*> way;
  for (auto at = source; at != destination; at = way.back()->head) {
    Circuit* best = nullptr;
    for (auto& circuit : leaving_[index(at)]) {
      if (left(circuit.head, destination) != left(at, destination) - 1) continue;
      if (best == nullptr || circuit.load < best->load) best = &circuit;
    }
    if (best == nullptr) break;  // no way leads there
    way.push_back(best);
  }
  return way;
}

void BalancedRoutes::load(std::span<Circuit* const> way, double size) {
  for (auto* circuit : way) circuit->load += size / circuit->copies;
}

std::int32_t BalancedRoutes::left(std::int32_t at, std::int32_t destination) const {
  return hops_[index(at) * leaving_.size() + index(destination)];
}

}  // namespace paralet::planners
