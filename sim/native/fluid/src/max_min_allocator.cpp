// SPDX-License-Identifier: Apache-2.0
#include "max_min_allocator.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

namespace paralet::fluid {

MaxMinAllocator::MaxMinAllocator(std::span<const double> capacity, double precision) : precision_(precision) {
  links_.reserve(capacity.size());
  for (const double c : capacity) links_.push_back({.capacity = c, .crossing = {}});
}

MaxMinAllocator::Flow MaxMinAllocator::add(std::span<const Use> uses, double weight) {
  const auto flow = static_cast<Flow>(flows_.size());
  flows_.push_back({.weight = weight});
  set_uses(flow, uses);
  return flow;
}

void MaxMinAllocator::set_uses(Flow flow, std::span<const Use> uses) {
  const auto same = [](const Use& a, const Use& b) { return a.link == b.link && a.share == b.share; };
  const auto before = this->uses(flow);
  if (std::equal(before.begin(), before.end(), uses.begin(), uses.end(), same)) return;
  const bool active = flows_[flow].active;
  if (active) detach(flow);
  auto& it = flows_[flow];
  if (uses.size() > it.count) {  // the old uses stay allocated: paths change rarely
    it.first = static_cast<std::uint32_t>(uses_.size());
    uses_.resize(uses_.size() + uses.size());
    flow_of_.resize(uses_.size(), flow);
    place_.resize(uses_.size());
  }
  it.count = static_cast<std::uint32_t>(uses.size());
  std::copy(uses.begin(), uses.end(), uses_.begin() + it.first);
  if (active) attach(flow);
}

void MaxMinAllocator::set_active(Flow flow, bool active) {
  if (flows_[flow].active == active) return;
  if (active) {
    attach(flow);
  } else {
    detach(flow);
  }
}

void MaxMinAllocator::set_capacity(std::uint32_t link, double capacity) {
  links_[link].capacity = capacity;
  touch(link);
}

void MaxMinAllocator::attach(Flow flow) {
  auto& it = flows_[flow];
  it.active = true;
  for (auto u = it.first; u < it.first + it.count; ++u) {
    auto& crossing = links_[uses_[u].link].crossing;
    place_[u] = static_cast<std::uint32_t>(crossing.size());
    crossing.push_back(u);
    touch(uses_[u].link);
  }
  active_uses_ += it.count;
  mark_changed(flow);
}

void MaxMinAllocator::detach(Flow flow) {
  auto& it = flows_[flow];
  it.active = false;
  for (auto u = it.first; u < it.first + it.count; ++u) {
    auto& crossing = links_[uses_[u].link].crossing;
    crossing[place_[u]] = crossing.back();
    place_[crossing.back()] = place_[u];
    crossing.pop_back();
    touch(uses_[u].link);
  }
  active_uses_ -= it.count;
  mark_changed(flow);
}

void MaxMinAllocator::touch(std::uint32_t link) {
  if (std::exchange(links_[link].queued, true)) return;
  touched_.push_back(link);
}

void MaxMinAllocator::mark_changed(Flow flow) {
  if (std::exchange(reported_, false)) changed_.clear();
  if (std::exchange(flows_[flow].changed, true)) return;
  changed_.push_back(flow);
}

std::span<const MaxMinAllocator::Flow> MaxMinAllocator::update_rates() {
  if (std::exchange(reported_, false)) changed_.clear();
  if (!touched_.empty() && !repair()) fill();
  std::erase_if(changed_, [&](Flow f) {
    auto& it = flows_[f];
    it.changed = false;
    const double rate = it.active ? it.weight * least_level(it, std::numeric_limits<std::uint32_t>::max()) : 0.0;
    if (std::abs(rate - it.rate) <= precision_ * it.rate) return true;
    it.rate = rate;
    return false;
  });
  reported_ = true;
  return changed_;
}

/// Makes levels consistent, from the touched links outwards. False when that would be more work than a new filling.
bool MaxMinAllocator::repair() {
  std::size_t visited = 0;
  for (std::size_t next = 0; next < touched_.size(); ++next) {
    const auto l = touched_[next];
    auto& link = links_[l];
    link.queued = false;
    visited += 1 + link.crossing.size();
    if (visited > active_uses_ / 2 + 64) {
      for (; next < touched_.size(); ++next) links_[touched_[next]].queued = false;
      touched_.clear();
      return false;
    }
    const double before = std::exchange(link.level, consistent_level(link));
    if (link.level == before || std::abs(link.level - before) <= precision_ * std::min(link.level, before)) continue;
    propagate(l, before);
  }
  touched_.clear();
  ++repairs_;
  return true;
}

/// The level of link `l` has changed from `before`: marks flows with another rate and links whose level may be wrong.
void MaxMinAllocator::propagate(std::uint32_t l, double before) {
  const double lower = std::min(before, links_[l].level);
  for (const auto u : links_[l].crossing) {
    const Flow flow = flow_of_[u];
    const auto& it = flows_[flow];
    bool bound = false;  // whether another link limits the flow to at most both levels
    for (auto v = it.first; v < it.first + it.count; ++v) {
      if (v != u && links_[uses_[v].link].level <= lower) bound = true;
    }
    if (!bound) mark_changed(flow);
    for (auto v = it.first; v < it.first + it.count; ++v) {
      // A link that limits the flow to at most both levels is not affected.
      if (v != u && lower < links_[uses_[v].link].level) touch(uses_[v].link);
    }
  }
}

double MaxMinAllocator::least_level(const FlowState& flow, std::uint32_t except) const {
  double least = kNotFull;
  for (auto u = flow.first; u < flow.first + flow.count; ++u) {
    if (u != except) least = std::min(least, links_[uses_[u].link].level);
  }
  return least;
}

/// The level at which the link is full, given the levels of its flows' other links.
double MaxMinAllocator::consistent_level(const Link& link) {
  demands_.clear();
  double rising = 0;  // weight of the flows that no other link limits below the level
  for (const auto u : link.crossing) {
    const auto& flow = flows_[flow_of_[u]];
    const Demand demand{least_level(flow, u), uses_[u].share * flow.weight};
    demands_.push_back(demand);
    rising += demand.weight;
  }
  double left = link.capacity;
  auto begin = demands_.begin();
  while (begin != demands_.end()) {
    const double level = std::max(0.0, left) / rising;
    // Flows limited below this level by other links leave more to the rest, so the level rises and fewer are limited.
    const auto stopped = std::partition(begin, demands_.end(), [&](const Demand& d) { return d.cap <= level; });
    if (stopped == begin) return level;
    for (; begin != stopped; ++begin) {
      left -= begin->cap * begin->weight;
      rising -= begin->weight;
    }
  }
  return kNotFull;
}

void MaxMinAllocator::fill() {
  ++fillings_;
  struct State {
    double left;
    double weight = 0;  // sum of weight times share over the flows that still rise
    std::uint32_t rising = 0;
    [[nodiscard]] double level() const { return std::max(0.0, left) / weight; }
  };
  std::vector<State> state(links_.size());
  // A link's level never falls while other links stop flows at a lower one, so an entry is exact or too low.
  using Entry = std::pair<double, std::uint32_t>;
  std::vector<Entry> entries;
  for (std::uint32_t l = 0; l < links_.size(); ++l) {
    auto& it = state[l];
    it.left = links_[l].capacity;
    links_[l].level = kNotFull;
    if (links_[l].crossing.empty()) continue;
    for (const auto u : links_[l].crossing) it.weight += uses_[u].share * flows_[flow_of_[u]].weight;
    it.rising = static_cast<std::uint32_t>(links_[l].crossing.size());
    entries.emplace_back(it.level(), l);
  }
  std::vector<bool> stopped(flows_.size(), false);
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue(std::greater<>(), std::move(entries));
  double floor = 0;  // rounding must not let a later link fill below an earlier one
  while (!queue.empty()) {
    const auto [known, l] = queue.top();
    queue.pop();
    if (state[l].rising == 0) continue;
    const double level = std::max(state[l].level(), floor);
    if (!queue.empty() && level > known && level > queue.top().first) {
      queue.emplace(level, l);
      continue;
    }
    floor = level;
    links_[l].level = level;
    for (const auto u : links_[l].crossing) {
      const Flow flow = flow_of_[u];
      if (stopped[flow]) continue;
      stopped[flow] = true;
      mark_changed(flow);
      const auto& it = flows_[flow];
      for (auto v = it.first; v < it.first + it.count; ++v) {
        auto& crossed = state[uses_[v].link];
        const double weight = uses_[v].share * it.weight;
        crossed.left -= level * weight;
        crossed.weight -= weight;
        --crossed.rising;
      }
    }
  }
}

}  // namespace paralet::fluid
