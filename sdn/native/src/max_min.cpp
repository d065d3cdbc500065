// SPDX-License-Identifier: Apache-2.0
#include "max_min.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace paralet::planners {

namespace {

struct Link {
  double left;                                                  // capacity that no stopped flow uses
  double weight = 0;                                            // of the flows that still rise
  std::uint32_t rising = 0;                                     // how many those are
  std::uint32_t begin = 0;                                      // of its flows in the list of all links' flows
  [[nodiscard]] double level() const { return left / weight; }  // rate per weight at which it would fill
};

}  // namespace

void max_min_rates(std::span<const double> capacity, std::span<const std::int32_t> links, std::size_t links_per_flow,
                   std::span<const double> weight, std::span<double> rate) {
  const auto flows = weight.size();
  std::vector<Link> link(capacity.size());
  for (std::size_t l = 0; l < link.size(); ++l) link[l].left = capacity[l];
  for (std::size_t f = 0; f < flows; ++f) {
    for (const auto l : links.subspan(f * links_per_flow, links_per_flow)) {
      if (l < 0) continue;
      auto& it = link[static_cast<std::size_t>(l)];
      it.weight += weight[f];
      ++it.rising;
    }
  }
  std::uint32_t total = 0;
  for (auto& it : link) {
    it.begin = total;
    total += it.rising;
  }
  std::vector<std::uint32_t> flows_of(total);
  {
    std::vector<std::uint32_t> next(link.size());
    for (std::size_t l = 0; l < link.size(); ++l) next[l] = link[l].begin;
    for (std::size_t f = 0; f < flows; ++f) {
      for (const auto l : links.subspan(f * links_per_flow, links_per_flow)) {
        if (l >= 0) flows_of[next[static_cast<std::size_t>(l)]++] = static_cast<std::uint32_t>(f);
      }
    }
  }
  // A link's level never falls while flows stop elsewhere at a lower one, so an entry is either right or too low.
  using Entry = std::pair<double, std::uint32_t>;
  std::vector<Entry> entries;
  for (std::size_t l = 0; l < link.size(); ++l) {
    if (link[l].rising > 0) entries.emplace_back(link[l].level(), static_cast<std::uint32_t>(l));
  }
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue(std::greater<>(), std::move(entries));
  std::fill(rate.begin(), rate.end(), std::numeric_limits<double>::infinity());
  double floor = 0;  // rounding must not let a later link fill below an earlier one
  while (!queue.empty()) {
    const auto [known, l] = queue.top();
    queue.pop();
    const Link full = link[l];
    if (full.rising == 0) continue;
    const double level = std::max(full.level(), floor);
    if (!queue.empty() && level > known && level > queue.top().first) {
      queue.emplace(level, l);
      continue;
    }
    if (std::isinf(level)) break;  // as are all that are left
    floor = level;
    const auto end = l + 1 < link.size() ? link[l + 1].begin : total;
    for (auto i = full.begin; i < end; ++i) {
      const auto f = flows_of[i];
      if (rate[f] != std::numeric_limits<double>::infinity()) continue;
      rate[f] = level * weight[f];
      for (const auto k : links.subspan(f * links_per_flow, links_per_flow)) {
        if (k < 0) continue;
        auto& it = link[static_cast<std::size_t>(k)];
        it.left = std::max(0.0, it.left - rate[f]);
        it.weight -= weight[f];
        --it.rising;
      }
    }
  }
}

}  // namespace paralet::planners
