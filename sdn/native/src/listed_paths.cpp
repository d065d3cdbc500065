// SPDX-License-Identifier: Apache-2.0
#include "listed_paths.hpp"

#include <algorithm>
#include <utility>

#include "index.hpp"

namespace paralet::planners {

ListedPaths::ListedPaths(std::vector<double> rate) : rate_(std::move(rate)), load_(rate_.size()), on_(rate_.size()) {}

ListedPaths::Commodity ListedPaths::add(double demand, std::vector<Path> paths) {
  Commodity c = static_cast<Commodity>(items_.size());
  if (unused_.empty()) {
    items_.emplace_back();
  } else {
    c = unused_.back();
    unused_.pop_back();
  }
  items_[index(c)] = {demand, std::move(paths), -1};
  return c;
}

ListedPaths::Commodity ListedPaths::insert(double demand, std::vector<Path> paths) {
  const Commodity c = add(demand, std::move(paths));
  const auto& mine = items_[index(c)].paths;
  std::int32_t best = 0;
  double least = worst_with(mine.front(), demand);
  for (std::int32_t p = 1; index(p) < mine.size(); ++p) {
    if (const double worst = worst_with(mine[index(p)], demand); worst < least) least = worst, best = p;
  }
  put(c, best);
  return c;
}

ListedPaths::Commodity ListedPaths::insert(double demand, std::vector<Path> paths, std::int32_t chosen) {
  const Commodity c = add(demand, std::move(paths));
  put(c, chosen);
  return c;
}

void ListedPaths::remove(Commodity commodity) {
  take(commodity);
  items_[index(commodity)] = Item{};
  unused_.push_back(commodity);
}

std::vector<ListedPaths::Commodity> ListedPaths::improve(double target, std::size_t max_moves, std::size_t effort) {
  constexpr double kLessThan = 1 - 1e-9;  // less by rounding alone is not less
  std::vector<Commodity> moved;
  while (effort > 0 && moved.size() + 3 <= max_moves) {  // a commodity, and up to two that it displaces
    std::size_t worst = 0;
    double level = 0;
    for (std::size_t l = 0; l < rate_.size(); ++l) {
      if (const double congestion = load_[l] / rate_[l]; congestion > level) level = congestion, worst = l;
    }
    if (level * kLessThan <= target || !relieve(static_cast<std::int32_t>(worst), level * kLessThan, effort)) break;
    for (const auto c : moved_) {
      if (std::find(moved.begin(), moved.end(), c) == moved.end()) moved.push_back(c);
    }
  }
  return moved;
}

double ListedPaths::congestion() const {
  double most = 0;
  for (std::size_t l = 0; l < rate_.size(); ++l) most = std::max(most, load_[l] / rate_[l]);
  return most;
}

double ListedPaths::worst_with(const Path& path, double demand) const {
  double worst = 0;
  for (const auto l : path) worst = std::max(worst, (load_[index(l)] + demand) / rate_[index(l)]);
  return worst;
}

const ListedPaths::Path& ListedPaths::path_of(Commodity c) const {
  const auto& item = items_[index(c)];
  return item.paths[index(item.chosen)];
}

void ListedPaths::put(Commodity c, std::int32_t path) {
  items_[index(c)].chosen = path;
  for (const auto l : path_of(c)) {
    load_[index(l)] += items_[index(c)].demand;
    on_[index(l)].push_back(c);
  }
}

void ListedPaths::take(Commodity c) {
  for (const auto l : path_of(c)) {
    load_[index(l)] -= items_[index(c)].demand;
    auto& here = on_[index(l)];
    if (here.size() == 1) load_[index(l)] = 0;  // no rounding error remains on an idle link
    *std::find(here.begin(), here.end(), c) = here.back();
    here.pop_back();
  }
}

/// Finds a path for `c`, which has been taken off, whose links stay below `below`: directly, or by making room on the
/// one link of a path that would not. Where there is none, nothing has changed.
bool ListedPaths::place(Commodity c, double below, int depth, std::size_t& effort) {
  const auto was = items_[index(c)].chosen;
  const auto paths = static_cast<std::int32_t>(items_[index(c)].paths.size());
  const double demand = items_[index(c)].demand;
  effort -= std::min(effort, index(paths));
  for (std::int32_t p = 0; p < paths; ++p) {
    if (worst_with(items_[index(c)].paths[index(p)], demand) < below) {
      moved_.push_back(c);
      put(c, p);
      return true;
    }
  }
  for (std::int32_t p = 0; depth > 0 && p < paths && effort > 0; ++p) {
    const auto full = [&](std::int32_t l) { return (load_[index(l)] + demand) / rate_[index(l)] >= below; };
    const auto& path = items_[index(c)].paths[index(p)];
    const auto blocked = std::find_if(path.begin(), path.end(), full);
    if (std::any_of(blocked + 1, path.end(), full)) continue;
    const auto link = *blocked;
    const auto first = moved_.size();
    moved_.push_back(c);
    put(c, p);
    const std::vector<Commodity> others = on_[index(link)];
    for (const auto other : others) {
      // Commodities that were moved on the way here stay where they are.
      if (effort == 0) break;
      if (std::find(moved_.begin(), moved_.end(), other) != moved_.end()) continue;
      const auto its = items_[index(other)].chosen;
      take(other);
      if (load_[index(link)] / rate_[index(link)] < below && place(other, below, depth - 1, effort)) return true;
      put(other, its);
    }
    moved_.resize(first);
    take(c);
    items_[index(c)].chosen = was;
  }
  return false;
}

bool ListedPaths::relieve(std::int32_t link, double below, std::size_t& effort) {
  const std::vector<Commodity> on_it = on_[index(link)];
  for (int depth = 0; depth <= 2; ++depth) {
    for (const auto c : on_it) {
      if (effort == 0) return false;
      const auto was = items_[index(c)].chosen;
      moved_.clear();
      take(c);
      if (place(c, below, depth, effort)) return true;
      put(c, was);
    }
  }
  return false;
}

}  // namespace paralet::planners
