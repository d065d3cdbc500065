// SPDX-License-Identifier: Apache-2.0
#include "rerouting.hpp"

#include <algorithm>

namespace paralet::planners {

namespace {
constexpr int kDepth = 2;           // how many others a move may push out of its way
constexpr double kLess = 1 - 1e-9;  // less by rounding alone is not less
}  // namespace

Rerouting::Rerouting(std::int32_t tors, std::int32_t spines, std::int32_t parallel, std::span<const double> rate)
    : rate_(rate.begin(), rate.end()), clos_{tors, spines, parallel, rate_}, loads_(clos_) {
  for (auto& lists : lists_) lists.resize(rate_.size());
}

Rerouting::Rerouting(const Rerouting& other)
    : rate_(other.rate_),
      clos_{other.clos_.tors, other.clos_.spines, other.clos_.parallel, rate_},
      loads_(other.loads_, clos_),
      items_(other.items_),
      lists_{other.lists_[0], other.lists_[1]},
      unused_(other.unused_),
      moves_(other.moves_) {}

Rerouting::Commodity Rerouting::insert(std::int32_t src, std::int32_t dst, double demand) {
  return insert(src, dst, demand, src == dst ? Route{} : loads_.best(src, dst, demand).route);
}

Rerouting::Commodity Rerouting::insert(std::int32_t src, std::int32_t dst, double demand, const Route& route) {
  moves_.clear();
  const auto commodity = new_item(src, dst, demand);
  put(commodity, route);
  return commodity;
}

void Rerouting::remove(Commodity commodity) {
  moves_.clear();
  take(commodity);
  items_[static_cast<std::size_t>(commodity)] = Item{};
  unused_.push_back(commodity);
}

void Rerouting::improve(double target, std::size_t max_moves, std::size_t effort) {
  moves_.clear();
  while (moves_.size() + kDepth < max_moves && effort > 0) {
    double level = 0;
    std::size_t worst = 0;
    int way = 0;
    for (const int w : {0, 1}) {
      for (std::size_t l = 0; l < rate_.size(); ++l) {
        if (const double congestion = loads_.congestion(w, l); congestion > level) {
          level = congestion;
          worst = l;
          way = w;
        }
      }
    }
    if (level * kLess <= target || !relieve(way, worst, level * kLess, effort)) break;
  }
}

double Rerouting::congestion() const {
  double most = 0;
  for (const int way : {0, 1}) {
    for (std::size_t l = 0; l < rate_.size(); ++l) most = std::max(most, loads_.congestion(way, l));
  }
  return most;
}

Rerouting::Commodity Rerouting::new_item(std::int32_t src, std::int32_t dst, double demand) {
  Commodity commodity = static_cast<Commodity>(items_.size());
  if (unused_.empty()) {
    items_.emplace_back();
  } else {
    commodity = unused_.back();
    unused_.pop_back();
  }
  auto& item = items_[static_cast<std::size_t>(commodity)];
  item.tor[0] = src;
  item.tor[1] = dst;
  item.demand = demand;
  return commodity;
}

void Rerouting::put(Commodity commodity, const Route& route) {
  auto& item = items_[static_cast<std::size_t>(commodity)];
  item.route = route;
  if (route.spine < 0) return;
  loads_.add(item.tor[0], item.tor[1], route, item.demand);
  for (const int way : {0, 1}) {
    auto& list = lists_[way][link_of(item, way)];
    item.slot[way] = static_cast<std::uint32_t>(list.size());
    list.push_back(commodity);
  }
}

void Rerouting::take(Commodity commodity) {
  auto& item = items_[static_cast<std::size_t>(commodity)];
  if (item.route.spine < 0) return;
  loads_.add(item.tor[0], item.tor[1], item.route, -item.demand);
  for (const int way : {0, 1}) {
    auto& list = lists_[way][link_of(item, way)];
    const auto last = list.back();
    list[item.slot[way]] = last;
    items_[static_cast<std::size_t>(last)].slot[way] = item.slot[way];
    list.pop_back();
  }
}

/// Finds a path for `commodity`, which has been taken off, whose links stay below `below`: directly, or by making room
/// on the one link of a path that would not. Where there is none, nothing has changed.
bool Rerouting::place(Commodity commodity, double below, int depth, std::size_t& effort) {
  const Item item = items_[static_cast<std::size_t>(commodity)];
  effort -= std::min(effort, static_cast<std::size_t>(clos_.spines));
  if (const auto best = loads_.best(item.tor[0], item.tor[1], item.demand); best.worst() < below) {
    moves_.push_back({commodity, item.route});
    put(commodity, best.route);
    return true;
  }
  if (depth == 0) return false;
  for (std::int32_t spine = 0; spine < clos_.spines && effort > 0; ++spine) {
    const auto choice = loads_.by_spine(item.tor[0], item.tor[1], spine, item.demand);
    const bool fits[2] = {choice.up < below, choice.down < below};
    if (fits[0] == fits[1]) continue;
    const int way = fits[0] ? 1 : 0;
    const auto first = moves_.size();
    moves_.push_back({commodity, item.route});
    put(commodity, choice.route);
    const auto link = link_of(items_[static_cast<std::size_t>(commodity)], way);
    const std::vector<Commodity> others = lists_[way][link];
    for (const auto other : others) {
      // Commodities that were moved on the way here stay where they are.
      if (effort == 0 || std::any_of(moves_.begin() + static_cast<std::ptrdiff_t>(first), moves_.end(),
                                     [&](const Move& move) { return move.commodity == other; })) {
        continue;
      }
      const Route was = items_[static_cast<std::size_t>(other)].route;
      take(other);
      if (loads_.congestion(way, link) < below && place(other, below, depth - 1, effort)) return true;
      put(other, was);
    }
    moves_.resize(first);
    take(commodity);
    items_[static_cast<std::size_t>(commodity)].route = item.route;
  }
  return false;
}

bool Rerouting::relieve(int way, std::size_t link, double level, std::size_t& effort) {
  const std::vector<Commodity> on_it = lists_[way][link];
  for (int depth = 0; depth <= kDepth; ++depth) {
    for (const auto commodity : on_it) {
      if (effort == 0) return false;
      const Route was = items_[static_cast<std::size_t>(commodity)].route;
      take(commodity);
      const auto first = moves_.size();
      if (place(commodity, level, depth, effort)) {
        settle(first);
        return true;
      }
      put(commodity, was);
    }
  }
  return false;
}

/// Keeps one entry for each commodity among the moves: the first one, which knows the route before all of them.
void Rerouting::settle(std::size_t first) {
  auto kept = moves_.begin() + static_cast<std::ptrdiff_t>(first);
  for (auto move = kept; move != moves_.end(); ++move) {
    const auto same = [&](const Move& earlier) { return earlier.commodity == move->commodity; };
    if (std::none_of(moves_.begin(), kept, same)) *kept++ = *move;
  }
  moves_.erase(kept, moves_.end());
}

}  // namespace paralet::planners
