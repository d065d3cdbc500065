// SPDX-License-Identifier: Apache-2.0
// Planners of fabrics of two tiers as Python sees them.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "annealing.hpp"
#include "bindings.hpp"
#include "edge_colouring.hpp"
#include "planners.hpp"
#include "rerouting.hpp"

namespace paralet::planners::bindings {
namespace {

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

std::tuple<Ints, Ints, Ints> py_greedy(const Doubles& rate, const Ints& src, const Ints& dst, const Doubles& demand,
                                       const std::optional<Ints>& order, int threads) {
  const Clos clos = clos_of(rate);
  const auto commodities = commodities_of(clos.tors, src, dst, demand);
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

std::tuple<Ints, Ints, Ints> py_anneal(const Doubles& rate, const Ints& src, const Ints& dst, const Doubles& demand,
                                       const Ints& dst_nic, const Ints& slots, double capacity, double unit, double hot,
                                       double cold, double cooling, std::int32_t steps_per_temperature,
                                       std::uint64_t seed) {
  const Clos clos = clos_of(rate);
  const auto commodities = commodities_of(clos.tors, src, dst, demand);
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

}  // namespace

void bind_two_tiers(py::module_& module) {
  using namespace py::literals;  // NOLINT(google-build-using-namespace): pybind11's own way
  module.def("greedy", &py_greedy, "rate"_a, "src"_a, "dst"_a, "demand"_a, "order"_a = py::none(), "threads"_a = 1);
  module.def("colour", &py_colour, "tors"_a, "src"_a, "dst"_a, "colours"_a, "order"_a = py::none(), "threads"_a = 1);
  module.def("anneal", &py_anneal, "rate"_a, "src"_a, "dst"_a, "demand"_a, "dst_nic"_a, "slots"_a, "capacity"_a,
             "unit"_a, "hot"_a, "cold"_a, "cooling"_a, "steps_per_temperature"_a, "seed"_a);
  py::class_<Colouring>(module, "Colouring")
      .def(py::init<std::int32_t, std::int32_t>(), "tors"_a, "colours"_a)
      .def("copied", [](const Colouring& self) { return Colouring(self); })
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
  py::class_<Routing>(module, "Routing")
      .def(py::init<const Doubles&>(), "rate"_a)
      .def("copied", [](const Routing& self) { return std::make_unique<Routing>(self); })
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

}  // namespace paralet::planners::bindings
