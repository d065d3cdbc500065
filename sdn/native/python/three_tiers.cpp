// SPDX-License-Identifier: Apache-2.0
// Planners of fabrics of three tiers as Python sees them.
#include "bindings.hpp"
#include "pods.hpp"

namespace paralet::planners::bindings {
namespace {

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

Ints py_greedy_pods(const Doubles& low, const Doubles& high, const Ints& pod, const Ints& src, const Ints& dst,
                    const Doubles& demand, const std::optional<Ints>& order) {
  const auto clos = pods_of(low, high, pod);
  const auto commodities = commodities_of(clos.low.tors, src, dst, demand);
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
  const auto commodities = commodities_of(clos.low.tors, src, dst, demand);
  auto improved = pod_routes_of(clos, commodities, routes);
  {
    const py::gil_scoped_release unlocked;
    improve(clos, commodities, target, effort, improved);
  }
  return table_of(improved);
}

}  // namespace

void bind_three_tiers(py::module_& module) {
  using namespace py::literals;  // NOLINT(google-build-using-namespace): pybind11's own way
  module.def("greedy_pods", &py_greedy_pods, "low"_a, "high"_a, "pod"_a, "src"_a, "dst"_a, "demand"_a,
             "order"_a = py::none());
  module.def("improve_pods", &py_improve_pods, "low"_a, "high"_a, "pod"_a, "src"_a, "dst"_a, "demand"_a, "routes"_a,
             "target"_a, "effort"_a);
}

}  // namespace paralet::planners::bindings
