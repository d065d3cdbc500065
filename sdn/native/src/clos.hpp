// SPDX-License-Identifier: Apache-2.0
// A two-level Clos fabric, commodities and routes, as arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace paralet::planners {

constexpr std::int32_t kLocal = -1;        // the spine of a commodity within one ToR
constexpr std::int32_t kUnreachable = -2;  // the spine of a commodity whose ToRs no live spine joins

struct Clos {
  std::int32_t tors;
  std::int32_t spines;
  std::int32_t parallel;
  std::span<const double> rate;  // [ToR][spine][parallel link], 0 for dead links

  [[nodiscard]] std::size_t link(std::int32_t tor, std::int32_t spine, std::int32_t k) const {
    return (static_cast<std::size_t>(tor) * static_cast<std::size_t>(spines) + static_cast<std::size_t>(spine)) *
               static_cast<std::size_t>(parallel) +
           static_cast<std::size_t>(k);
  }
};

struct Route {
  std::int32_t spine = kLocal;
  std::int32_t up = -1;
  std::int32_t down = -1;
  bool operator==(const Route&) const = default;
};

/// Commodities as columns of equal length.
struct Commodities {
  std::span<const std::int32_t> src;  // ToRs
  std::span<const std::int32_t> dst;
  std::span<const double> demand;
  [[nodiscard]] std::size_t size() const { return src.size(); }
};

/// The demand on every link, and what it costs to add to it.
class Loads {
 public:
  explicit Loads(const Clos& clos) : clos_(clos), busy_s_per_unit_(clos.rate.size()) {
    for (std::size_t l = 0; l < clos.rate.size(); ++l) {
      busy_s_per_unit_[l] = clos.rate[l] > 0 ? 1 / clos.rate[l] : std::numeric_limits<double>::infinity();
    }
    load_[0].resize(clos.rate.size());
    load_[1].resize(clos.rate.size());
  }

  /// The same loads for a fabric with the same rates, which may be elsewhere in memory.
  Loads(const Loads& other, const Clos& clos)
      : clos_(clos), busy_s_per_unit_(other.busy_s_per_unit_), load_{other.load_[0], other.load_[1]} {}

  /// Puts `demand` on a route, or takes it off where it is negative.
  void add(std::int32_t src, std::int32_t dst, const Route& route, double demand) {
    load_[0][clos_.link(src, route.spine, route.up)] += demand;
    load_[1][clos_.link(dst, route.spine, route.down)] += demand;
  }

  [[nodiscard]] double congestion(int way, std::size_t link) const {
    return load_[way][link] > 0 ? load_[way][link] * busy_s_per_unit_[link] : 0;
  }

  struct Choice {
    Route route;
    double up;  // the congestion of its links with the demand on them; infinite where no link lives
    double down;
    [[nodiscard]] double worst() const { return up > down ? up : down; }
  };

  /// The least congested parallel links by way of `spine`.
  [[nodiscard]] Choice by_spine(std::int32_t src, std::int32_t dst, std::int32_t spine, double demand) const {
    Choice choice{{spine, 0, 0}, 0, 0};
    choice.up = least(0, clos_.link(src, spine, 0), demand, choice.route.up);
    choice.down = least(1, clos_.link(dst, spine, 0), demand, choice.route.down);
    return choice;
  }

  /// The least congested path; of equal ones the first. Its spine is kUnreachable where there is none.
  [[nodiscard]] Choice best(std::int32_t src, std::int32_t dst, double demand) const {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    Choice best{{kUnreachable, -1, -1}, kNever, kNever};
    for (std::int32_t spine = 0; spine < clos_.spines; ++spine) {
      const Choice choice = by_spine(src, dst, spine, demand);
      if (choice.worst() < best.worst()) best = choice;
    }
    return best;
  }

 private:
  double least(int way, std::size_t first, double demand, std::int32_t& which) const {
    double least = (load_[way][first] + demand) * busy_s_per_unit_[first];
    for (std::int32_t k = 1; k < clos_.parallel; ++k) {
      const auto link = first + static_cast<std::size_t>(k);
      const double congestion = (load_[way][link] + demand) * busy_s_per_unit_[link];
      if (congestion < least) least = congestion, which = k;
    }
    return least;
  }

  const Clos& clos_;
  std::vector<double> busy_s_per_unit_;  // 1 / rate
  std::vector<double> load_[2];          // [up, down][link]
};

}  // namespace paralet::planners
