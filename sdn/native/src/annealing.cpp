// SPDX-License-Identifier: Apache-2.0
#include "annealing.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "index.hpp"

namespace paralet::planners {

namespace {

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the same numbers everywhere, which <random>'s distributions are
/// not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

/// The destinations, their slots, and the demand beyond capacity that they cause.
class State {
 public:
  State(const Clos& clos, const Commodities& commodities, std::span<const std::int32_t> dst_nic, double capacity,
        double unit)
      : clos_(clos), commodities_(commodities), capacity_(capacity), scale_(1 / unit) {
    for (auto& load : load_) load.resize(clos.rate.size());
    // Destinations by ToR and NIC, so that those of one ToR lie together.
    order_.reserve(commodities.size());
    for (std::size_t i = 0; i < commodities.size(); ++i) {
      if (commodities.src[i] != commodities.dst[i]) order_.push_back(i);
    }
    std::stable_sort(order_.begin(), order_.end(), [&](auto a, auto b) {
      return std::pair(commodities.dst[a], dst_nic[a]) < std::pair(commodities.dst[b], dst_nic[b]);
    });
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (i == 0 || dst_nic[order_[i]] != dst_nic[order_[i - 1]]) begin_.push_back(i);
      if (i == 0 || commodities.dst[order_[i]] != commodities.dst[order_[i - 1]]) tor_begin_.push_back(size() - 1);
      tor_of_.resize(size(), tor_begin_.size() - 1);
    }
    slot_.assign(size(), -1);
  }

  [[nodiscard]] std::size_t size() const { return begin_.size(); }
  [[nodiscard]] double energy() const { return energy_; }
  [[nodiscard]] const std::vector<std::int32_t>& slots() const { return slot_; }
  [[nodiscard]] std::size_t place_in_tor(std::size_t d) const { return d - tor_begin_[tor_of_[d]]; }

  /// Another destination of the same ToR, or the same one where it is alone.
  std::size_t neighbour(std::size_t d, Random& random) const {
    const auto first = tor_begin_[tor_of_[d]];
    const auto end = tor_of_[d] + 1 < tor_begin_.size() ? tor_begin_[tor_of_[d] + 1] : size();
    return first + random.below(end - first);
  }

  void set(std::size_t d, std::int32_t slot) {
    if (slot_[d] >= 0) add(d, -1);
    slot_[d] = slot;
    add(d, 1);
  }

  void swap(std::size_t a, std::size_t b) {
    add(a, -1);
    add(b, -1);
    std::swap(slot_[a], slot_[b]);
    add(a, 1);
    add(b, 1);
  }

  /// Calls `use(commodity, slot)` for all, under the given slots of the destinations.
  template <typename Use>
  void each(const std::vector<std::int32_t>& slots, Use use) const {
    for (std::size_t d = 0; d < size(); ++d) {
      for (auto i = begin_[d]; i < end(d); ++i) use(order_[i], slots[d]);
    }
  }

 private:
  [[nodiscard]] std::size_t end(std::size_t d) const { return d + 1 < size() ? begin_[d + 1] : order_.size(); }
  [[nodiscard]] double excess(int way, std::size_t link) const {
    const double rate = clos_.rate[link];
    // A dead link has no capacity: all that is put on it is too much, and far more than anywhere else.
    constexpr double kDead = 1e3;
    return std::max(0.0, rate > 0 ? load_[way][link] - capacity_ * rate : kDead * load_[way][link]) * scale_;
  }
  void add(std::size_t d, double sign) {
    for (auto i = begin_[d]; i < end(d); ++i) {
      const auto c = order_[i];
      const std::size_t links[2] = {clos_.link(commodities_.src[c], 0, 0) + index(slot_[d]),
                                    clos_.link(commodities_.dst[c], 0, 0) + index(slot_[d])};
      for (const int way : {0, 1}) {
        energy_ -= excess(way, links[way]);
        load_[way][links[way]] += sign * commodities_.demand[c];
        energy_ += excess(way, links[way]);
      }
    }
  }

  const Clos& clos_;
  const Commodities& commodities_;
  double capacity_;
  double scale_;
  double energy_ = 0;
  std::vector<double> load_[2];
  std::vector<std::size_t> order_;      // crossing commodities by destination
  std::vector<std::size_t> begin_;      // per destination: its first in order_
  std::vector<std::size_t> tor_begin_;  // per ToR with destinations: its first destination
  std::vector<std::size_t> tor_of_;     // per destination: which of those ToRs
  std::vector<std::int32_t> slot_;
};

}  // namespace

void anneal(const Clos& clos, const Commodities& commodities, std::span<const std::int32_t> dst_nic,
            std::span<const std::int32_t> slots, double capacity, double unit, const Schedule& schedule,
            std::uint64_t seed, std::span<Route> routes) {
  std::fill(routes.begin(), routes.end(), Route{});
  State state(clos, commodities, dst_nic, capacity, unit);
  if (state.size() == 0) return;
  Random random(seed);
  // At first the NICs of a ToR take the links in turn, which spreads what comes down.
  for (std::size_t d = 0; d < state.size(); ++d) state.set(d, slots[state.place_in_tor(d) % slots.size()]);
  std::vector<std::int32_t> best = state.slots();
  double least = state.energy();
  const double nothing = 1e-9;
  for (double heat = schedule.hot; heat > schedule.cold && least > nothing; heat *= schedule.cooling) {
    for (std::int32_t step = 0; step < schedule.steps_per_temperature && least > nothing; ++step) {
      const auto a = random.below(state.size());
      const auto b = random.next() % 2 == 0 ? state.neighbour(a, random) : random.below(state.size());
      const double before = state.energy();
      state.swap(a, b);
      const double change = state.energy() - before;
      if (change > 0 && random.fraction() >= std::exp(-change / heat)) {
        state.swap(a, b);
      } else if (state.energy() < least - nothing) {
        least = state.energy();
        best = state.slots();
      }
    }
  }
  Loads loads(clos);
  std::vector<std::size_t> stranded;
  state.each(best, [&](std::size_t c, std::int32_t slot) {
    const Route route{slot / clos.parallel, slot % clos.parallel, slot % clos.parallel};
    if (clos.rate[clos.link(commodities.src[c], 0, 0) + index(slot)] > 0 &&
        clos.rate[clos.link(commodities.dst[c], 0, 0) + index(slot)] > 0) {
      routes[c] = route;
      loads.add(commodities.src[c], commodities.dst[c], route, commodities.demand[c]);
    } else {
      stranded.push_back(c);
    }
  });
  for (const auto c : stranded) {
    routes[c] = loads.best(commodities.src[c], commodities.dst[c], commodities.demand[c]).route;
    if (routes[c].spine >= 0) loads.add(commodities.src[c], commodities.dst[c], routes[c], commodities.demand[c]);
  }
}

}  // namespace paralet::planners
