// SPDX-License-Identifier: Apache-2.0
// sdn._planners: the native planners as Python sees them. Arrays are checked here, once; the planners trust them. Work
// on whole arrays releases the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "annealing.hpp"
#include "balanced_routes.hpp"
#include "bounded_flow.hpp"
#include "clos.hpp"
#include "components.hpp"
#include "edge_colouring.hpp"
#include "listed_paths.hpp"
#include "matching.hpp"
#include "max_min.hpp"
#include "planners.hpp"
#include "pods.hpp"
#include "rerouting.hpp"

namespace py = pybind11;
using namespace paralet::planners;  // NOLINT(google-build-using-namespace): this file is the planners' face

namespace {

using Ints = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;
using Longs = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

template <typename T>
std::span<const T> view(const py::array_t<T, py::array::c_style | py::array::forcecast>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

void check(bool right, const char* otherwise) {
  if (!right) throw py::value_error(otherwise);
}

/// Raises ValueError unless all numbers lie in 0 .. below - 1.
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

/// The given order, or the order of the commodities.
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

std::tuple<Ints, Ints, Ints> columns(std::span<const Route> routes) {
  const auto size = static_cast<py::ssize_t>(routes.size());
  std::tuple<Ints, Ints, Ints> answer{Ints(size), Ints(size), Ints(size)};
  auto* spine = std::get<0>(answer).mutable_data();
  auto* up = std::get<1>(answer).mutable_data();
  auto* down = std::get<2>(answer).mutable_data();
  for (std::size_t i = 0; i < routes.size(); ++i) {
    spine[i] = routes[i].spine;
    up[i] = routes[i].up;
    down[i] = routes[i].down;
  }
  return answer;
}

/// Raises ValueError when one of the flows, of `links_per_flow` links each, names a link twice.
void check_distinct(std::span<const std::int32_t> links, std::size_t links_per_flow, std::size_t known) {
  std::vector<std::size_t> last(known, links.size());  // by link: the flow that named it last
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links[i] < 0) continue;
    const auto flow = std::exchange(last[static_cast<std::size_t>(links[i])], i / links_per_flow);
    check(flow != i / links_per_flow, "a flow crosses a link twice");
  }
}

/// The fabric of a PodClos, checked. `pod` numbers the pods of leaves from 0.
PodClos pods_of(const Doubles& low, const Doubles& high, const Ints& pod) {
  const PodClos clos{clos_of(low), clos_of(high), view(pod)};
  check(clos.pod.size() == index(clos.low.tors), "pod is not as long as there are leaves");
  check_range(clos.pod, clos.high.tors / clos.low.spines, "a pod has no aggs");
  return clos;
}

std::vector<PodRoute> pod_routes_of(const PodClos& clos, const Commodities& commodities, const Ints& table) {
  check(table.ndim() == 2 && table.shape(1) == 6 && view(table).size() == 6 * commodities.size(),
        "routes must have six columns, and a row for each commodity");
  std::vector<PodRoute> routes(commodities.size());
  for (std::size_t c = 0; c < routes.size(); ++c) {
    const auto* row = view(table).data() + 6 * c;
    routes[c] = {{row[0], row[1], row[2]}, {row[3], row[4], row[5]}};
    const auto fits = [](const Route& route, const Clos& tier) {
      return route.spine < 0 || (route.spine < tier.spines && route.up >= 0 && route.up < tier.parallel &&
                                 route.down >= 0 && route.down < tier.parallel);
    };
    check(fits(routes[c].low, clos.low) && fits(routes[c].high, clos.high), "a link of a route does not exist");
    const bool between = !clos.same_pod(commodities.src[c], commodities.dst[c]);
    check((routes[c].high.spine >= 0) == (between && routes[c].low.spine >= 0),
          "a route must have a core between pods");
  }
  return routes;
}

Ints table_of(std::span<const PodRoute> routes) {
  Ints table({static_cast<py::ssize_t>(routes.size()), py::ssize_t{6}});
  auto* cell = table.mutable_data();
  for (const auto& [low, high] : routes) {
    for (const auto value : {low.spine, low.up, low.down, high.spine, high.up, high.down}) *cell++ = value;
  }
  return table;
}

Commodities pod_commodities(const PodClos& clos, const Ints& src, const Ints& dst, const Doubles& demand) {
  const Commodities commodities{view(src), view(dst), view(demand)};
  check_tors(clos.low.tors, commodities.src, commodities.dst);
  check(commodities.demand.size() == commodities.size(), "demand is not as long as src");
  return commodities;
}

Ints py_greedy_pods(const Doubles& low, const Doubles& high, const Ints& pod, const Ints& src, const Ints& dst,
                    const Doubles& demand, const std::optional<Ints>& order) {
  const auto clos = pods_of(low, high, pod);
  const auto commodities = pod_commodities(clos, src, dst, demand);
  const auto sequence = order_of(order, commodities.size());
  std::vector<PodRoute> routes(commodities.size());
  {
    const py::gil_scoped_release unlocked;
    greedy(clos, commodities, sequence, routes);
  }
  return table_of(routes);
}

Ints py_improve_pods(const Doubles& low, const Doubles& high, const Ints& pod, const Ints& src, const Ints& dst,
                     const Doubles& demand, const Ints& routes, double target, std::size_t effort) {
  const auto clos = pods_of(low, high, pod);
  const auto commodities = pod_commodities(clos, src, dst, demand);
  auto improved = pod_routes_of(clos, commodities, routes);
  {
    const py::gil_scoped_release unlocked;
    improve(clos, commodities, target, effort, improved);
  }
  return table_of(improved);
}

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

std::tuple<Ints, Ints, Ints> py_greedy(const Doubles& rate, const Ints& src, const Ints& dst, const Doubles& demand,
                                       const std::optional<Ints>& order, int threads) {
  const Clos clos = clos_of(rate);
  const Commodities commodities{view(src), view(dst), view(demand)};
  check_tors(clos.tors, commodities.src, commodities.dst);
  check(commodities.demand.size() == commodities.size(), "demand is not as long as src");
  const auto sequence = order_of(order, commodities.size());
  std::vector<Route> routes(commodities.size());
  {
    const py::gil_scoped_release unlocked;
    greedy(clos, commodities, sequence, threads, routes);
  }
  return columns(routes);
}

Ints py_colour(std::int32_t tors, const Ints& src, const Ints& dst, std::int32_t colours,
               const std::optional<Ints>& order, int threads) {
  check(tors >= 1 && colours >= 1, "at least one ToR and one colour are needed");
  check_tors(tors, view(src), view(dst));
  const auto sequence = order_of(order, static_cast<std::size_t>(src.size()));
  Ints answer(src.size());
  const std::span<std::int32_t> out(answer.mutable_data(), sequence.size());
  const py::gil_scoped_release unlocked;
  colour(tors, view(src), view(dst), sequence, colours, threads, out);
  return answer;
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

std::optional<Longs> py_bounded_flow(const Ints& left, const Ints& right, const std::pair<Longs, Longs>& pair,
                                     const std::pair<Longs, Longs>& left_vertex,
                                     const std::pair<Longs, Longs>& right_vertex) {
  const auto pairs = ranges(pair.first, pair.second);
  const auto lefts = ranges(left_vertex.first, left_vertex.second);
  const auto rights = ranges(right_vertex.first, right_vertex.second);
  check(view(left).size() == pairs.size() && view(right).size() == pairs.size(), "pairs differ in length");
  check_range(view(left), static_cast<std::int64_t>(lefts.size()), "a left vertex does not exist");
  check_range(view(right), static_cast<std::int64_t>(rights.size()), "a right vertex does not exist");
  const auto taken = bounded_flow(view(left), view(right), pairs, lefts, rights);
  if (!taken) return std::nullopt;
  return Longs(static_cast<py::ssize_t>(taken->size()), taken->data());
}

std::tuple<Ints, Ints, Ints> py_anneal(const Doubles& rate, const Ints& src, const Ints& dst, const Doubles& demand,
                                       const Ints& dst_nic, const Ints& slots, double capacity, double unit, double hot,
                                       double cold, double cooling, std::int32_t steps_per_temperature,
                                       std::uint64_t seed) {
  const Clos clos = clos_of(rate);
  const Commodities commodities{view(src), view(dst), view(demand)};
  check_tors(clos.tors, commodities.src, commodities.dst);
  check(commodities.demand.size() == commodities.size(), "demand is not as long as src");
  check(view(dst_nic).size() == commodities.size(), "dst_nic is not as long as src");
  check(slots.size() > 0, "at least one slot is needed");
  check_range(view(slots), static_cast<std::int64_t>(clos.spines) * clos.parallel, "a slot does not exist");
  check(capacity >= 0 && unit > 0, "capacity must not be negative, and unit must be above 0");
  check(cold > 0 && cooling > 0 && cooling < 1, "cold must be above 0, and cooling between 0 and 1");
  std::vector<Route> routes(commodities.size());
  {
    const py::gil_scoped_release unlocked;
    anneal(clos, commodities, view(dst_nic), view(slots), capacity, unit, {hot, cold, cooling, steps_per_temperature},
           seed, routes);
  }
  return columns(routes);
}

/// EdgeColouring with its arguments checked.
class Colouring {
 public:
  Colouring(std::int32_t tors, std::int32_t colours)
      : tors_(tors), colours_(colours), colouring_(make(tors, colours)) {}

  void forbid(int way, std::int32_t tor, std::int32_t colour) {
    check(way == 0 || way == 1, "way must be 0 (out) or 1 (in)");
    check_colour(colour);
    check_tor(tor);
    colouring_.forbid(tor + way * tors_, colour);
  }
  std::int32_t insert(std::int32_t src, std::int32_t dst, std::optional<std::size_t> max_moves, int tries) {
    check_tor(src);
    check_tor(dst);
    return colouring_.insert(src, dst, max_moves.value_or(EdgeColouring::kUnlimited), tries);
  }
  Ints insert_all(const Ints& src, const Ints& dst, int tries) {
    check_tors(tors_, view(src), view(dst));
    Ints answer(src.size());
    for (std::size_t i = 0; i < view(src).size(); ++i) {
      answer.mutable_data()[i] = colouring_.insert(view(src)[i], view(dst)[i], EdgeColouring::kUnlimited, tries);
    }
    return answer;
  }
  Ints insert_coloured(const Ints& src, const Ints& dst, const Ints& at_src, const Ints& at_dst) {
    check_tors(tors_, view(src), view(dst));
    check(at_src.size() == src.size() && at_dst.size() == src.size(), "colours and ToRs differ in length");
    check_range(view(at_src), colours_, "a colour does not exist");
    check_range(view(at_dst), colours_, "a colour does not exist");
    Ints answer(src.size());
    for (std::size_t i = 0; i < view(src).size(); ++i) {
      answer.mutable_data()[i] =
          colouring_.insert_coloured(view(src)[i], view(dst)[i], view(at_src)[i], view(at_dst)[i]);
    }
    return answer;
  }
  using Moved = std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>>;

  /// An edge comes, and what it upsets is evened out: its number, its colours at source and destination, and the others
  /// that were recoloured, once each, with their colours now. The number is -1 when no colour is allowed at both ends.
  std::tuple<std::int32_t, std::int32_t, std::int32_t, Moved> arrive(std::int32_t src, std::int32_t dst,
                                                                     std::optional<std::size_t> max_moves, int tries) {
    const auto edge = insert(src, dst, max_moves, tries);
    if (edge < 0) return {edge, -1, -1, Moved{}};
    if (max_moves != 0) even_out(max_moves);
    return {edge, colouring_.colour(edge, 0), colouring_.colour(edge, 1), moved(edge)};
  }
  /// An edge goes, and what it leaves uneven is evened out: the others that were recoloured, as of `arrive`.
  Moved depart(std::int32_t edge, std::optional<std::size_t> max_moves) {
    check_edge(edge);
    colouring_.remove(edge, max_moves.value_or(EdgeColouring::kUnlimited));
    if (max_moves != 0) even_out(max_moves);
    return moved(edge);
  }
  void even_out(std::optional<std::size_t> max_moves) {
    colouring_.even_out(max_moves.value_or(EdgeColouring::kUnlimited));
  }
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> colours(std::int32_t edge) const {
    check_edge(edge);
    return {colouring_.colour(edge, 0), colouring_.colour(edge, 1)};
  }
  /// The colours of many edges at their sources and destinations.
  [[nodiscard]] std::pair<Ints, Ints> colours_of(const Ints& edges) const {
    std::pair<Ints, Ints> answer{Ints(edges.size()), Ints(edges.size())};
    for (std::size_t i = 0; i < view(edges).size(); ++i) {
      std::tie(answer.first.mutable_data()[i], answer.second.mutable_data()[i]) = colours(view(edges)[i]);
    }
    return answer;
  }
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> tors(std::int32_t edge) const {
    check_edge(edge);
    return {colouring_.vertex(edge, 0), colouring_.vertex(edge, 1) - tors_};
  }
  [[nodiscard]] std::pair<Ints, Ints> tors_of(const Ints& edges) const {
    std::pair<Ints, Ints> answer{Ints(edges.size()), Ints(edges.size())};
    for (std::size_t i = 0; i < view(edges).size(); ++i) {
      std::tie(answer.first.mutable_data()[i], answer.second.mutable_data()[i]) = tors(view(edges)[i]);
    }
    return answer;
  }
  [[nodiscard]] std::int32_t most() const { return colouring_.most(); }

 private:
  static EdgeColouring make(std::int32_t tors, std::int32_t colours) {
    check(tors >= 1 && colours >= 1 && std::int64_t{tors} * colours < 1 << 30, "too few or too many ToRs and colours");
    return {tors, tors, colours};
  }
  /// Each edge but one that the last change recoloured, once, with its colours now.
  [[nodiscard]] Moved moved(std::int32_t but) const {
    Moved answer;
    std::vector<std::int32_t> seen;
    for (const auto& move : colouring_.moves()) {
      if (move.edge == but || std::find(seen.begin(), seen.end(), move.edge) != seen.end()) continue;
      seen.push_back(move.edge);
      const auto left = colouring_.colour(move.edge, 0);
      const auto right = colouring_.colour(move.edge, 1);
      if (left != move.was[0] || right != move.was[1]) answer.emplace_back(move.edge, left, right);
    }
    return answer;
  }
  void check_tor(std::int32_t tor) const { check(tor >= 0 && tor < tors_, "a ToR does not exist"); }
  void check_colour(std::int32_t colour) const { check(colour >= 0 && colour < colours_, "a colour does not exist"); }
  void check_edge(std::int32_t edge) const { check(colouring_.holds(edge), "there is no such edge"); }

  std::int32_t tors_;
  std::int32_t colours_;
  EdgeColouring colouring_;
};

/// Rerouting with its arguments checked.
class Routing {
 public:
  explicit Routing(const Doubles& rate)
      : clos_(clos_of(rate)), routing_(clos_.tors, clos_.spines, clos_.parallel, clos_.rate) {
    clos_.rate = {};  // the array may go; Rerouting has a copy
  }

  std::int32_t insert(std::int32_t src, std::int32_t dst, double demand) {
    check_commodity(src, dst, demand);
    return routing_.insert(src, dst, demand);
  }
  Ints insert_all(const Ints& src, const Ints& dst, const Doubles& demand, const Ints& spine, const Ints& up,
                  const Ints& down) {
    for (const auto* column : {&dst, &spine, &up, &down})
      check(column->size() == src.size(), "columns differ in length");
    check(demand.size() == src.size(), "columns differ in length");
    Ints answer(src.size());
    for (std::size_t i = 0; i < view(src).size(); ++i) {
      const Route route{view(spine)[i], view(up)[i], view(down)[i]};
      check_commodity(view(src)[i], view(dst)[i], view(demand)[i]);
      check(route.spine < clos_.spines, "a spine does not exist");
      check(route.spine < 0 || (in_range(route.up) && in_range(route.down)), "a parallel link does not exist");
      answer.mutable_data()[i] = routing_.insert(view(src)[i], view(dst)[i], view(demand)[i], route);
    }
    return answer;
  }
  void remove(std::int32_t commodity) {
    check_held(commodity);
    routing_.remove(commodity);
  }
  void improve(double target, std::optional<std::size_t> max_moves, std::size_t effort) {
    const py::gil_scoped_release unlocked;
    routing_.improve(target, max_moves.value_or(SIZE_MAX), effort);
  }
  [[nodiscard]] std::tuple<std::int32_t, std::int32_t, std::int32_t> route(std::int32_t commodity) const {
    check_held(commodity);
    const auto& route = routing_.route(commodity);
    return {route.spine, route.up, route.down};
  }
  [[nodiscard]] std::tuple<Ints, Ints, Ints> routes(const Ints& numbers) const {
    std::vector<Route> answer;
    answer.reserve(view(numbers).size());
    for (const auto commodity : view(numbers)) {
      check_held(commodity);
      answer.push_back(routing_.route(commodity));
    }
    return columns(answer);
  }
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> tors(std::int32_t commodity) const {
    check_held(commodity);
    return {routing_.src(commodity), routing_.dst(commodity)};
  }
  [[nodiscard]] double demand(std::int32_t commodity) const {
    check_held(commodity);
    return routing_.demand(commodity);
  }
  [[nodiscard]] std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>> moved() const {
    std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>> answer;
    for (const auto& move : routing_.moves()) {
      const auto& route = routing_.route(move.commodity);
      if (route != move.was) answer.emplace_back(move.commodity, route.spine, route.up, route.down);
    }
    return answer;
  }
  [[nodiscard]] double congestion() const { return routing_.congestion(); }

 private:
  [[nodiscard]] bool in_range(std::int32_t k) const { return k >= 0 && k < clos_.parallel; }
  void check_commodity(std::int32_t src, std::int32_t dst, double demand) const {
    check(src >= 0 && src < clos_.tors && dst >= 0 && dst < clos_.tors, "a ToR does not exist");
    check(demand > 0 && std::isfinite(demand), "a demand is not above 0, or not finite");
  }
  void check_held(std::int32_t commodity) const { check(routing_.holds(commodity), "there is no such commodity"); }

  Clos clos_;
  Rerouting routing_;
};

/// ListedPaths with its arguments checked.
class Listed {
 public:
  explicit Listed(const Doubles& rate) : paths_({view(rate).begin(), view(rate).end()}) {
    const auto each = view(rate);
    check(std::all_of(each.begin(), each.end(), [](double r) { return r > 0 && std::isfinite(r); }),
          "the rate of a link is not above 0, or not finite");
  }

  std::int32_t insert(double demand, std::vector<ListedPaths::Path> paths) {
    check(demand > 0 && std::isfinite(demand), "a demand is not above 0, or not finite");
    check(!paths.empty(), "a commodity has no path");
    for (const auto& path : paths) {
      check_range(path, static_cast<std::int64_t>(paths_.links()), "a link does not exist");
      check_distinct(path, path.size(), paths_.links());
    }
    return paths_.insert(demand, std::move(paths));
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

PYBIND11_MODULE(_planners, module) {
  using namespace py::literals;  // NOLINT(google-build-using-namespace): pybind11's own way
  module.doc() = "The native core of sdn.planners; see there.";
  module.def("max_min_rates", &py_max_min_rates, "capacity"_a, "links"_a, "weight"_a);
  module.def("greedy", &py_greedy, "rate"_a, "src"_a, "dst"_a, "demand"_a, "order"_a = py::none(), "threads"_a = 1);
  module.def("greedy_pods", &py_greedy_pods, "low"_a, "high"_a, "pod"_a, "src"_a, "dst"_a, "demand"_a,
             "order"_a = py::none());
  module.def("improve_pods", &py_improve_pods, "low"_a, "high"_a, "pod"_a, "src"_a, "dst"_a, "demand"_a, "routes"_a,
             "target"_a, "effort"_a);
  module.def("colour", &py_colour, "tors"_a, "src"_a, "dst"_a, "colours"_a, "order"_a = py::none(), "threads"_a = 1);
  module.def("components", &py_components, "tors"_a, "src"_a, "dst"_a);
  module.def("bounded_flow", &py_bounded_flow, "left"_a, "right"_a, "pair"_a, "left_vertex"_a, "right_vertex"_a);
  module.def("anneal", &py_anneal, "rate"_a, "src"_a, "dst"_a, "demand"_a, "dst_nic"_a, "slots"_a, "capacity"_a,
             "unit"_a, "hot"_a, "cold"_a, "cooling"_a, "steps_per_temperature"_a, "seed"_a);
  module.def("heaviest_matching", &py_heaviest_matching, "weight"_a);
  py::class_<Balanced>(module, "BalancedRoutes")
      .def(py::init<std::int32_t, const Ints&, const Ints&, const Ints&>(), "servers"_a, "tail"_a, "head"_a, "copies"_a)
      .def("hops", &Balanced::hops)
      .def("add_all", &Balanced::add_all, "source"_a, "destination"_a, "size"_a, "count"_a);
  py::class_<Colouring>(module, "Colouring")
      .def(py::init<std::int32_t, std::int32_t>(), "tors"_a, "colours"_a)
      .def("forbid", &Colouring::forbid, "way"_a, "tor"_a, "colour"_a)
      .def("insert", &Colouring::insert, "src"_a, "dst"_a, "max_moves"_a = py::none(), "tries"_a = 1)
      .def("insert_all", &Colouring::insert_all, "src"_a, "dst"_a, "tries"_a = 1)
      .def("insert_coloured", &Colouring::insert_coloured, "src"_a, "dst"_a, "at_src"_a, "at_dst"_a)
      .def("arrive", &Colouring::arrive, "src"_a, "dst"_a, "max_moves"_a = py::none(), "tries"_a = 1)
      .def("depart", &Colouring::depart, "edge"_a, "max_moves"_a = py::none())
      .def("even_out", &Colouring::even_out, "max_moves"_a = py::none())
      .def("colours", &Colouring::colours, "edge"_a)
      .def("colours_of", &Colouring::colours_of, "edges"_a)
      .def("tors", &Colouring::tors, "edge"_a)
      .def("tors_of", &Colouring::tors_of, "edges"_a)
      .def("most", &Colouring::most);
  py::class_<Listed>(module, "ListedPaths")
      .def(py::init<const Doubles&>(), "rate"_a)
      .def("insert", &Listed::insert, "demand"_a, "paths"_a)
      .def("remove", &Listed::remove, "commodity"_a)
      .def("improve", &Listed::improve, "target"_a, "max_moves"_a = py::none(), "effort"_a = 1000000)
      .def("chosen", &Listed::chosen, "commodity"_a)
      .def("congestion", &Listed::congestion);
  py::class_<Routing>(module, "Routing")
      .def(py::init<const Doubles&>(), "rate"_a)
      .def("insert", &Routing::insert, "src"_a, "dst"_a, "demand"_a)
      .def("insert_all", &Routing::insert_all, "src"_a, "dst"_a, "demand"_a, "spine"_a, "up"_a, "down"_a)
      .def("remove", &Routing::remove, "commodity"_a)
      .def("improve", &Routing::improve, "target"_a, "max_moves"_a = py::none(), "effort"_a = 1000000)
      .def("route", &Routing::route, "commodity"_a)
      .def("routes", &Routing::routes, "commodities"_a)
      .def("tors", &Routing::tors, "commodity"_a)
      .def("demand", &Routing::demand, "commodity"_a)
      .def("moved", &Routing::moved)
      .def("congestion", &Routing::congestion);
}
