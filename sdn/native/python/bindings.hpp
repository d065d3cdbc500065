// SPDX-License-Identifier: Apache-2.0
// What the bindings of sdn share: what each file binds, and for the planners types of arrays and checks of arguments. A
// check that fails raises ValueError.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "clos.hpp"

namespace paralet::planners::bindings {

namespace py = pybind11;

using Ints = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;
using Longs = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

template <typename T>
std::span<const T> view(const py::array_t<T, py::array::c_style | py::array::forcecast>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

void check(bool right, const char* otherwise);
/// Unless all numbers lie in 0 .. below - 1.
void check_range(std::span<const std::int32_t> numbers, std::int64_t below, const char* otherwise);
void check_tors(std::int32_t tors, std::span<const std::int32_t> src, std::span<const std::int32_t> dst);
/// When one of the flows, of `links_per_flow` links each, names a link twice.
void check_distinct(std::span<const std::int32_t> links, std::size_t links_per_flow, std::size_t known);

/// The fabric of two tiers with these rates, by ToR, spine and parallel link. It refers to the array.
Clos clos_of(const Doubles& rate);
/// The commodities with these ToRs and demands. They refer to the arrays.
Commodities commodities_of(std::int32_t tors, const Ints& src, const Ints& dst, const Doubles& demand);
/// The given order, or the order of the commodities.
std::vector<std::int32_t> order_of(const std::optional<Ints>& order, std::size_t commodities);

/// All planners.
void bind(py::module_& module);
/// Planners of fabrics of two tiers: greedy, annealing, colourings of edges, and rerouting.
void bind_two_tiers(py::module_& module);
/// Planners of fabrics of three tiers, whose leaves are in pods.
void bind_three_tiers(py::module_& module);

}  // namespace paralet::planners::bindings

namespace paralet::renewals {
/// What hosts of the path service say all the time.
void bind(pybind11::module_& module);
}  // namespace paralet::renewals
