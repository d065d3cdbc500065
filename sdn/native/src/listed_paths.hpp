// SPDX-License-Identifier: Apache-2.0
// Planning from lists: every commodity takes one of the paths that it is given, on any fabric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace paralet::planners {

class ListedPaths {
 public:
  using Commodity = std::int32_t;
  using Path = std::vector<std::int32_t>;  // distinct links

  /// `rate` of each link, in bit/s, above 0.
  explicit ListedPaths(std::vector<double> rate);

  /// Adds a commodity on the path, of one or more, whose worst link is least congested with it; the first of equal
  /// ones.
  Commodity insert(double demand, std::vector<Path> paths);
  /// Adds a commodity on the path at this place of its list.
  Commodity insert(double demand, std::vector<Path> paths, std::int32_t chosen);
  void remove(Commodity commodity);

  /// Moves commodities off the most congested link until no link is above `target`, no move relieves it, `max_moves`
  /// have moved, or `effort` paths have been examined. A move never raises another link to the congestion that it
  /// relieves. It may displace up to two other commodities. Returns those that have moved, each once.
  std::vector<Commodity> improve(double target, std::size_t max_moves, std::size_t effort);

  /// The place of a commodity's path in its list.
  [[nodiscard]] std::int32_t chosen(Commodity c) const { return items_[static_cast<std::size_t>(c)].chosen; }
  [[nodiscard]] bool holds(Commodity c) const {
    return c >= 0 && static_cast<std::size_t>(c) < items_.size() && !items_[static_cast<std::size_t>(c)].paths.empty();
  }
  [[nodiscard]] std::size_t links() const { return rate_.size(); }
  [[nodiscard]] double congestion() const;

 private:
  struct Item {
    double demand = 0;
    std::vector<Path> paths;
    std::int32_t chosen = -1;  // -1 while it is on none
  };

  Commodity add(double demand, std::vector<Path> paths);
  [[nodiscard]] double worst_with(const Path& path, double demand) const;
  [[nodiscard]] const Path& path_of(Commodity c) const;
  void put(Commodity c, std::int32_t path);
  void take(Commodity c);
  bool place(Commodity c, double below, int depth, std::size_t& effort);
  bool relieve(std::int32_t link, double below, std::size_t& effort);

  std::vector<double> rate_;
  std::vector<double> load_;
  std::vector<std::vector<Commodity>> on_;  // by link
  std::vector<Item> items_;
  std::vector<Commodity> unused_;
  std::vector<Commodity> moved_;  // by the move under way
};

}  // namespace paralet::planners
