// SPDX-License-Identifier: Apache-2.0
// Incremental planning for unequal demands and links of different rates. The optimal plan is NP-hard to find (for one
// pair of ToRs it is the partition problem), so routes are inserted, removed and improved one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "clos.hpp"

namespace paralet::planners {

class Rerouting {
 public:
  using Commodity = std::int32_t;

  Rerouting(std::int32_t tors, std::int32_t spines, std::int32_t parallel, std::span<const double> rate);
  Rerouting(const Rerouting& other);
  Rerouting(Rerouting&&) = delete;
  Rerouting& operator=(const Rerouting&) = delete;
  Rerouting& operator=(Rerouting&&) = delete;
  ~Rerouting() = default;

  /// Adds a commodity on the least congested path, or on the given one. Its route is kUnreachable if no spine joins its
  /// ToRs.
  Commodity insert(std::int32_t src, std::int32_t dst, double demand);
  Commodity insert(std::int32_t src, std::int32_t dst, double demand, const Route& route);
  void remove(Commodity commodity);

  /// Moves commodities off the most congested link until no link is above `target`, `max_moves` routes have changed, or
  /// `effort` paths have been examined. A move never raises another link to the congestion that it relieves. It may
  /// displace up to two other commodities.
  void improve(double target, std::size_t max_moves, std::size_t effort);

  /// The commodities that the last insert, remove or improve rerouted, each once, with their previous routes.
  struct Move {
    Commodity commodity;
    Route was;
  };
  [[nodiscard]] const std::vector<Move>& moves() const { return moves_; }

  [[nodiscard]] const Route& route(Commodity c) const { return items_[static_cast<std::size_t>(c)].route; }
  [[nodiscard]] std::int32_t src(Commodity c) const { return items_[static_cast<std::size_t>(c)].tor[0]; }
  [[nodiscard]] std::int32_t dst(Commodity c) const { return items_[static_cast<std::size_t>(c)].tor[1]; }
  [[nodiscard]] double demand(Commodity c) const { return items_[static_cast<std::size_t>(c)].demand; }
  [[nodiscard]] bool holds(Commodity c) const {
    return c >= 0 && static_cast<std::size_t>(c) < items_.size() && items_[static_cast<std::size_t>(c)].tor[0] >= 0;
  }
  [[nodiscard]] double congestion() const;

 private:
  struct Item {
    std::int32_t tor[2] = {-1, -1};
    double demand = 0;
    Route route;
    std::uint32_t slot[2] = {0, 0};  // its positions in lists_[0] and lists_[1]
  };

  [[nodiscard]] std::size_t link_of(const Item& item, int way) const {
    return clos_.link(item.tor[way], item.route.spine, way == 0 ? item.route.up : item.route.down);
  }
  Commodity new_item(std::int32_t src, std::int32_t dst, double demand);
  void put(Commodity commodity, const Route& route);
  void take(Commodity commodity);
  bool place(Commodity commodity, double below, int depth, std::size_t& effort);
  bool relieve(int way, std::size_t link, double level, std::size_t& effort);
  void settle(std::size_t first);

  std::vector<double> rate_;
  Clos clos_;
  Loads loads_;
  std::vector<Item> items_;
  std::vector<std::vector<Commodity>> lists_[2];  // [up, down][link]: the commodities on it
  std::vector<Commodity> unused_;
  std::vector<Move> moves_;
};

}  // namespace paralet::planners
