// SPDX-License-Identifier: Apache-2.0
#include "pods.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace paralet::planners {

namespace {

constexpr std::size_t kKinds = 4;  // of links: up to an agg, down from it, up to a core, down from it
constexpr double kNoPath = std::numeric_limits<double>::infinity();

/// A path, and the congestion of its links, by kind, with a commodity's demand on them; 0 for those not used.
struct Choice {
  PodRoute route;
  std::array<double, kKinds> congestion{};
  [[nodiscard]] double worst() const { return *std::max_element(congestion.begin(), congestion.end()); }
};

class PodLoads {
 public:
  explicit PodLoads(const PodClos& clos) : clos_(clos), low_(clos.low), high_(clos.high) {}

  void add(std::int32_t src, std::int32_t dst, const PodRoute& route, double demand) {
    if (route.low.spine < 0) return;
    low_.add(src, dst, route.low, demand);
    if (route.high.spine < 0) return;
    high_.add(clos_.agg(src, route.low.spine), clos_.agg(dst, route.low.spine), route.high, demand);
  }
  [[nodiscard]] double congestion(std::size_t kind, std::size_t link) const {
    return kind < 2 ? low_.congestion(static_cast<int>(kind), link)
                    : high_.congestion(static_cast<int>(kind) - 2, link);
  }

  /// By agg `a` and core `core` of its group, over the least congested parallel links.
  [[nodiscard]] Choice by(std::int32_t src, std::int32_t dst, std::int32_t a, std::int32_t core, double demand) const {
    const auto low = low_.by_spine(src, dst, a, demand);
    Choice choice{{low.route, {}}, {low.up, low.down, 0, 0}};
    if (!clos_.same_pod(src, dst)) {
      const auto high = high_.by_spine(clos_.agg(src, a), clos_.agg(dst, a), core, demand);
      choice.route.high = high.route;
      choice.congestion[2] = high.up;
      choice.congestion[3] = high.down;
    }
    return choice;
  }

  /// The least congested path, of equal ones the first; its route is kUnreachable where there is none.
  [[nodiscard]] Choice best(std::int32_t src, std::int32_t dst, double demand) const {
    Choice best{{{kUnreachable, -1, -1}, {}}, {kNoPath, 0, 0, 0}};
    double least = kNoPath;
    for (std::int32_t a = 0; a < clos_.low.spines; ++a) {
      const auto low = low_.by_spine(src, dst, a, demand);
      if (low.worst() >= least) continue;
      Choice choice{{low.route, {}}, {low.up, low.down, 0, 0}};
      if (!clos_.same_pod(src, dst)) {
        const auto high = high_.best(clos_.agg(src, a), clos_.agg(dst, a), demand);
        choice.route.high = high.route;
        choice.congestion[2] = high.up;
        choice.congestion[3] = high.down;
      }
      if (const double worst = choice.worst(); worst < least) {
        least = worst;
        best = choice;
      }
    }
    return best;
  }

 private:
  const PodClos& clos_;
  Loads low_;
  Loads high_;
};

/// Routes that are improved: `Rerouting` over all three tiers.
class Improvement {
 public:
  Improvement(const PodClos& clos, const Commodities& commodities, std::span<PodRoute> routes)
      : clos_(clos), commodities_(commodities), routes_(routes), loads_(clos), slots_(commodities.size()) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) lists_[kind].resize(rates(kind).size());
    for (std::size_t c = 0; c < commodities.size(); ++c) put(c, routes[c]);
  }

  void run(double target, std::size_t effort) {
    while (effort > 0) {
      double level = 0;
      std::size_t worst = 0;
      std::size_t worst_kind = 0;
      for (std::size_t kind = 0; kind < kKinds; ++kind) {
        for (std::size_t link = 0; link < rates(kind).size(); ++link) {
          if (const double congestion = loads_.congestion(kind, link); congestion > level) {
            level = congestion;
            worst = link;
            worst_kind = kind;
          }
        }
      }
      effort -= std::min(effort, (rates(0).size() + rates(2).size()) / kScanned);
      if (level * kLess <= target || !relieve(worst_kind, worst, level * kLess, effort)) break;
    }
  }

 private:
  static constexpr int kDepth = 2;             // how many others a move may push out of its way
  static constexpr double kLess = 1 - 1e-9;    // less by rounding alone is not less
  static constexpr std::size_t kScanned = 16;  // links that are compared in the time of one path

  [[nodiscard]] std::span<const double> rates(std::size_t kind) const {
    return kind < 2 ? clos_.low.rate : clos_.high.rate;
  }
  /// The links of a route by kind, of which the first `count` exist.
  struct Links {
    std::array<std::size_t, kKinds> link;
    std::size_t count;
  };
  [[nodiscard]] Links links(std::size_t c, const PodRoute& route) const {
    if (route.low.spine < 0) return {{}, 0};
    const auto src = commodities_.src[c];
    const auto dst = commodities_.dst[c];
    const auto a = route.low.spine;
    Links found{{clos_.low.link(src, a, route.low.up), clos_.low.link(dst, a, route.low.down), 0, 0}, 2};
    if (route.high.spine >= 0) {
      found.link[2] = clos_.high.link(clos_.agg(src, a), route.high.spine, route.high.up);
      found.link[3] = clos_.high.link(clos_.agg(dst, a), route.high.spine, route.high.down);
      found.count = kKinds;
    }
    return found;
  }

  void put(std::size_t c, const PodRoute& route) {
    routes_[c] = route;
    loads_.add(commodities_.src[c], commodities_.dst[c], route, commodities_.demand[c]);
    const auto used = links(c, route);
    for (std::size_t kind = 0; kind < used.count; ++kind) {
      auto& list = lists_[kind][used.link[kind]];
      slots_[c][kind] = list.size();
      list.push_back(c);
    }
  }
  void take(std::size_t c) {
    loads_.add(commodities_.src[c], commodities_.dst[c], routes_[c], -commodities_.demand[c]);
    const auto used = links(c, routes_[c]);
    for (std::size_t kind = 0; kind < used.count; ++kind) {
      auto& list = lists_[kind][used.link[kind]];
      list[slots_[c][kind]] = list.back();
      slots_[list.back()][kind] = slots_[c][kind];
      list.pop_back();
    }
  }

  /// Finds a path for `c`, which has been taken off, whose links stay below `below`: directly, or by making room on the
  /// one link of a path that would not. Where there is none, nothing has changed.
  bool place(std::size_t c, double below, int depth, std::size_t& effort) {
    const auto src = commodities_.src[c];
    const auto dst = commodities_.dst[c];
    const auto demand = commodities_.demand[c];
    const std::int32_t cores = clos_.same_pod(src, dst) ? 1 : clos_.high.spines;
    effort -= std::min(effort, index(clos_.low.spines) * index(cores));
    if (const auto best = loads_.best(src, dst, demand); best.worst() < below) {
      moved_.push_back(c);
      put(c, best.route);
      return true;
    }
    if (depth == 0) return false;
    const auto was = routes_[c];
    for (std::int32_t a = 0; a < clos_.low.spines; ++a) {
      for (std::int32_t core = 0; core < cores && effort > 0; ++core) {
        const auto choice = loads_.by(src, dst, a, core, demand);
        const auto full = [&](double congestion) { return congestion >= below; };
        if (std::count_if(choice.congestion.begin(), choice.congestion.end(), full) != 1 || choice.worst() == kNoPath) {
          continue;
        }
        const auto blocked = std::find_if(choice.congestion.begin(), choice.congestion.end(), full);
        const auto kind = static_cast<std::size_t>(blocked - choice.congestion.begin());
        const auto first = moved_.size();
        moved_.push_back(c);
        put(c, choice.route);
        const auto link = links(c, choice.route).link[kind];
        const std::vector<std::size_t> others = lists_[kind][link];
        for (const auto other : others) {
          // Commodities that were moved on the way here stay where they are.
          if (effort == 0) break;
          if (std::find(moved_.begin(), moved_.end(), other) != moved_.end()) continue;
          const auto its = routes_[other];
          take(other);
          if (loads_.congestion(kind, link) < below && place(other, below, depth - 1, effort)) return true;
          put(other, its);
        }
        moved_.resize(first);
        take(c);
        routes_[c] = was;
      }
    }
    return false;
  }

  bool relieve(std::size_t kind, std::size_t link, double level, std::size_t& effort) {
    const std::vector<std::size_t> on_it = lists_[kind][link];
    for (int depth = 0; depth <= kDepth; ++depth) {
      for (const auto c : on_it) {
        if (effort == 0) return false;
        const auto was = routes_[c];
        moved_.clear();
        take(c);
        if (place(c, level, depth, effort)) return true;
        put(c, was);
      }
    }
    return false;
  }

  const PodClos& clos_;
  const Commodities& commodities_;
  std::span<PodRoute> routes_;
  PodLoads loads_;
  std::vector<std::array<std::size_t, kKinds>> slots_;               // by commodity: its places in `lists_`
  std::array<std::vector<std::vector<std::size_t>>, kKinds> lists_;  // by link: the commodities on it
  std::vector<std::size_t> moved_;                                   // by the move under way
};

}  // namespace

void greedy(const PodClos& clos, const Commodities& commodities, std::span<const std::int32_t> order,
            std::span<PodRoute> routes) {
  PodLoads loads(clos);
  for (const auto i : order) {
    const auto c = index(i);
    const auto src = commodities.src[c];
    const auto dst = commodities.dst[c];
    routes[c] = src == dst ? PodRoute{} : loads.best(src, dst, commodities.demand[c]).route;
    loads.add(src, dst, routes[c], commodities.demand[c]);
  }
}

void improve(const PodClos& clos, const Commodities& commodities, double target, std::size_t effort,
             std::span<PodRoute> routes) {
  Improvement(clos, commodities, routes).run(target, effort);
}

}  // namespace paralet::planners
