// SPDX-License-Identifier: Apache-2.0
// The native planners as Python sees them. Arrays are checked here, once; the planners trust them. Work on whole arrays
// releases the GIL. This file has what serves fabrics of any kind.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "balanced_routes.hpp"
#include "bindings.hpp"
#include "bounded_flow.hpp"
#include "components.hpp"
#include "listed_paths.hpp"
#include "matching.hpp"
#include "max_min.hpp"

namespace paralet::planners::bindings {

void check(bool right, const char* otherwise) {
  if (!right) throw py::value_error(otherwise);
}

void check_range(std::span<const std::int32_t> numbers, std::int64_t below, const char* otherwise) {
  check(std::all_of(numbers.begin(), numbers.end(), [&](auto n) { return n >= 0 && n < below; }), otherwise);
}

Clos clos_of(const Doubles& rate) {
  check(rate.ndim() == 3, "rate must have dimensions for ToRs, spines and parallel links");
  for (py::ssize_t i = 0; i < 3; ++i) check(rate.shape(i) >= 1 && rate.shape(i) < 1 << 20, "rate has a bad shape");
  return {static_cast<std::int32_t>(rate.shape(0)), static_cast<std::int32_t>(rate.shape(1)),
          static_cast<std::int32_t>(rate.shape(2)), view(rate)};
}

void check_tors(std::int32_t tors, std::span<const std::int32_t> src, std::span<const std::int32_t> dst) {
  check(src.size() == dst.size(), "src and dst differ in length");
  check_range(src, tors, "a source ToR does not exist");
  check_range(dst, tors, "a destination ToR does not exist");
}

Commodities commodities_of(std::int32_t tors, const Ints& src, const Ints& dst, const Doubles& demand) {
  const Commodities commodities{view(src), view(dst), view(demand)};
  check_tors(tors, commodities.src, commodities.dst);
  check(commodities.demand.size() == commodities.size(), "demand is not as long as src");
  return commodities;
}

std::vector<std::int32_t> order_of(const std::optional<Ints>& order, std::size_t commodities) {
  std::vector<std::int32_t> answer(commodities);
  if (!order) {
    std::iota(answer.begin(), answer.end(), 0);
    return answer;
  }
  const auto given = view(*order);
  check(given.size() == commodities, "order is not as long as the commodities");
  std::vector<bool> seen(commodities, false);
  for (std::size_t i = 0; i < commodities; ++i) {
    const auto at = given[i];
    check(at >= 0 && static_cast<std::size_t>(at) < commodities && !seen[static_cast<std::size_t>(at)],
          "order must hold each commodity once");
    seen[static_cast<std::size_t>(at)] = true;
    answer[i] = at;
  }
  return answer;
}

void check_distinct(std::span<const std::int32_t> links, std::size_t links_per_flow, std::size_t known) {
  std::vector<std::size_t> last(known, links.size());  // by link: the flow that named it last
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links[i] < 0) continue;
    const auto flow = std::exchange(last[static_cast<std::size_t>(links[i])], i / links_per_flow);
    check(flow != i / links_per_flow, "a flow crosses a link twice");
  }
}

namespace {

Doubles py_max_min_rates(const Doubles& capacity, const Ints& links, const Doubles& weight) {
  check(links.ndim() == 2 && links.shape(0) == weight.size(), "links and weight differ in length");
  const auto all = view(links);
  check(std::all_of(all.begin(), all.end(), [&](auto l) { return l < capacity.size(); }), "a link does not exist");
  check_distinct(all, static_cast<std::size_t>(links.shape(1)), static_cast<std::size_t>(capacity.size()));
  const auto weights = view(weight);
  check(std::all_of(weights.begin(), weights.end(), [](double w) { return w > 0 && std::isfinite(w); }),
        "a weight is not above 0, or not finite");
  const auto capacities = view(capacity);
  check(std::all_of(capacities.begin(), capacities.end(), [](double c) { return c >= 0; }), "a capacity is negative");
  Doubles rate(weight.size());
  const std::span<double> out(rate.mutable_data(), weights.size());
  const auto per_flow = static_cast<std::size_t>(links.shape(1));
  const py::gil_scoped_release unlocked;
  max_min_rates(capacities, all, per_flow, weights, out);
  return rate;
}

Ints py_components(std::int32_t tors, const Ints& src, const Ints& dst) {
  check(tors >= 1, "at least one ToR is needed");
  check_tors(tors, view(src), view(dst));
  const auto labels = components(tors, view(src), view(dst));
  return Ints(static_cast<py::ssize_t>(labels.size()), labels.data());
}

Ints py_heaviest_matching(const Longs& weight) {
  const auto vertices = weight.ndim() == 2 ? weight.shape(0) : -1;
  check(vertices >= 0 && vertices < 1 << 15 && weight.shape(1) == vertices, "weight must be a square matrix");
  const auto weights = view(weight);
  check(std::all_of(weights.begin(), weights.end(), [](auto w) { return w >= 0 && w <= std::int64_t{1} << 53; }),
        "a weight is negative or above 2^53");
  for (py::ssize_t a = 0; a < vertices; ++a) {
    for (py::ssize_t b = 0; b <= a; ++b) check(weight.at(a, b) == weight.at(b, a), "weight is not symmetric");
    check(weight.at(a, a) == 0, "a vertex has a weight with itself");
  }
  std::vector<std::int32_t> partner;
  {
    const py::gil_scoped_release without_gil;
    partner = heaviest_matching(static_cast<std::int32_t>(vertices), weights);
  }
  return Ints(static_cast<py::ssize_t>(partner.size()), partner.data());
}

/// BalancedRoutes with checks.
class Balanced {
 public:
  Balanced(std::int32_t servers, const Ints& tail, const Ints& head, const Ints& copies)
      : servers_(checked(servers, tail, head, copies)), routes_(servers, view(tail), view(head), view(copies)) {}

  Ints hops() const { return Ints({servers_, servers_}, routes_.hops().data()); }

  /// For each pair up to `count` routes, each once, of which each carries an equal part; a route is a tuple of servers.
  py::list add_all(const Ints& source, const Ints& destination, const Doubles& size, int count) {
    const auto from = view(source);
    const auto to = view(destination);
    check(from.size() == to.size() && view(size).size() == to.size(), "pairs differ in length");
    check_range(from, servers_, "a source does not exist");
    check_range(to, servers_, "a destination does not exist");
    check(count >= 1, "a pair needs a route");
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto place = static_cast<std::size_t>(from[i]) * static_cast<std::size_t>(servers_);
      check(routes_.hops()[place + static_cast<std::size_t>(to[i])] >= 0, "a destination cannot be reached");
    }
    py::list answer(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto found = routes_.add(from[i], to[i], view(size)[i], count);
      py::tuple each(found.size());
      for (std::size_t k = 0; k < found.size(); ++k) each[k] = py::tuple(py::cast(found[k]));
      answer[i] = std::move(each);
    }
    return answer;
  }

 private:
  static std::int32_t checked(std::int32_t servers, const Ints& tail, const Ints& head, const Ints& copies) {
    check(servers >= 1 && servers < 1 << 15, "there are too few or too many servers");
    check(tail.size() == head.size() && tail.size() == copies.size(), "circuits differ in length");
    check_range(view(tail), servers, "a circuit leaves a server that does not exist");
    check_range(view(head), servers, "a circuit leads to a server that does not exist");
    const auto each = view(copies);
    check(std::all_of(each.begin(), each.end(), [](auto n) { return n >= 1; }), "a circuit has no copies");
    return servers;
  }

  std::int32_t servers_;
  BalancedRoutes routes_;
};

std::vector<Range> ranges(const Longs& least, const Longs& most) {
  check(least.ndim() == 1 && least.size() == most.size(), "least and most differ in length");
  std::vector<Range> answer(static_cast<std::size_t>(least.size()));
  for (std::size_t i = 0; i < answer.size(); ++i) {
    answer[i] = {view(least)[i], view(most)[i]};
    check(answer[i].least >= 0 && answer[i].most < std::int64_t{1} << 40, "a bound is negative or beyond reason");
  }
  return answer;
}

using LongRanges = std::pair<Longs, Longs>;
using LongGroups = std::tuple<Ints, LongRanges>;

std::optional<Longs> py_bounded_flow(const Ints& left, const Ints& right, const LongRanges& pair,
                                     const LongRanges& left_vertex, const LongRanges& right_vertex,
                                     const std::optional<LongGroups>& left_groups,
                                     const std::optional<LongGroups>& right_groups) {
  const auto pairs = ranges(pair.first, pair.second);
  const auto lefts = ranges(left_vertex.first, left_vertex.second);
  const auto rights = ranges(right_vertex.first, right_vertex.second);
  check(view(left).size() == pairs.size() && view(right).size() == pairs.size(), "pairs differ in length");
  check_range(view(left), static_cast<std::int64_t>(lefts.size()), "a left vertex does not exist");
  check_range(view(right), static_cast<std::int64_t>(rights.size()), "a right vertex does not exist");
  std::vector<Range> left_ranges;
  std::vector<Range> right_ranges;
  const auto groups = [](const std::optional<LongGroups>& given, std::size_t vertices, std::vector<Range>& own) {
    if (!given) return Groups{};
    const auto& [of_vertex, bounds] = *given;
    own = ranges(bounds.first, bounds.second);
    check(view(of_vertex).size() == vertices, "vertices and their groups differ in length");
    check_range(view(of_vertex), static_cast<std::int64_t>(own.size()), "a group does not exist");
    return Groups{view(of_vertex), own};
  };
  const auto taken =
      bounded_flow(view(left), view(right), pairs, lefts, rights, groups(left_groups, lefts.size(), left_ranges),
                   groups(right_groups, rights.size(), right_ranges));
  if (!taken) return std::nullopt;
  return Longs(static_cast<py::ssize_t>(taken->size()), taken->data());
}

/// ListedPaths with its arguments checked.
class Listed {
 public:
  explicit Listed(const Doubles& rate) : paths_({view(rate).begin(), view(rate).end()}) {
    const auto each = view(rate);
    check(std::all_of(each.begin(), each.end(), [](double r) { return r > 0 && std::isfinite(r); }),
          "the rate of a link is not above 0, or not finite");
  }

  std::int32_t insert(double demand, std::vector<ListedPaths::Path> paths, std::optional<std::int32_t> chosen) {
    check(demand > 0 && std::isfinite(demand), "a demand is not above 0, or not finite");
    check(!paths.empty(), "a commodity has no path");
    for (const auto& path : paths) {
      check_range(path, static_cast<std::int64_t>(paths_.links()), "a link does not exist");
      check_distinct(path, path.size(), paths_.links());
    }
    if (!chosen) return paths_.insert(demand, std::move(paths));
    check(*chosen >= 0 && static_cast<std::size_t>(*chosen) < paths.size(), "the chosen path is not in the list");
    return paths_.insert(demand, std::move(paths), *chosen);
  }
  void remove(std::int32_t commodity) {
    check_held(commodity);
    paths_.remove(commodity);
  }
  std::vector<std::int32_t> improve(double target, std::optional<std::size_t> max_moves, std::size_t effort) {
    const py::gil_scoped_release unlocked;
    return paths_.improve(target, max_moves.value_or(SIZE_MAX), effort);
  }
  [[nodiscard]] std::int32_t chosen(std::int32_t commodity) const {
    check_held(commodity);
    return paths_.chosen(commodity);
  }
  [[nodiscard]] double congestion() const { return paths_.congestion(); }

 private:
  void check_held(std::int32_t commodity) const { check(paths_.holds(commodity), "there is no such commodity"); }

  ListedPaths paths_;
};

}  // namespace

void bind(py::module_& module) {
  using namespace pybind11::literals;  // NOLINT(google-build-using-namespace): pybind11's own way
  bind_two_tiers(module);
  bind_three_tiers(module);
  module.def("max_min_rates", &py_max_min_rates, "capacity"_a, "links"_a, "weight"_a);
  module.def("components", &py_components, "tors"_a, "src"_a, "dst"_a);
  module.def("bounded_flow", &py_bounded_flow, "left"_a, "right"_a, "pair"_a, "left_vertex"_a, "right_vertex"_a,
             "left_groups"_a = py::none(), "right_groups"_a = py::none());
  module.def("heaviest_matching", &py_heaviest_matching, "weight"_a);
  py::class_<Balanced>(module, "BalancedRoutes")
      .def(py::init<std::int32_t, const Ints&, const Ints&, const Ints&>(), "servers"_a, "tail"_a, "head"_a, "copies"_a)
      .def("hops", &Balanced::hops)
      .def("add_all", &Balanced::add_all, "source"_a, "destination"_a, "size"_a, "count"_a);
  py::class_<Listed>(module, "ListedPaths")
      .def(py::init<const Doubles&>(), "rate"_a)
      .def("copied", [](const Listed& self) { return Listed(self); })
      .def("insert", &Listed::insert, "demand"_a, "paths"_a, "chosen"_a = py::none())
      .def("remove", &Listed::remove, "commodity"_a)
      .def("improve", &Listed::improve, "target"_a, "max_moves"_a = py::none(), "effort"_a = 1000000)
      .def("chosen", &Listed::chosen, "commodity"_a)
      .def("congestion", &Listed::congestion);
}

}  // namespace paralet::planners::bindings
