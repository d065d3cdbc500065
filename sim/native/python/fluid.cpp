// SPDX-License-Identifier: Apache-2.0
// Python bindings of the fluid simulation. All arguments are checked here; the simulation trusts them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "bindings.hpp"
#include "fluid/src/simulation.hpp"

namespace paralet::fluid {
namespace {

using namespace paralet::sim;  // NOLINT(google-build-using-namespace): what both bindings share

using Ints = Array<std::int32_t>;
using Longs = Array<std::int64_t>;
using Doubles = Array<double>;
using Bools = Array<bool>;

bool all_finite(std::span<const double> values, double least) {
  return std::all_of(values.begin(), values.end(), [&](double v) { return std::isfinite(v) && v >= least; });
}

Simulation make(const Doubles& capacity, double precision, double stale) {
  check(capacity.size() < kMost, "there are too many links");
  check(all_finite(view(capacity), 0), "a capacity is negative or not finite");
  check(precision >= 0 && precision < 1, "precision must lie in 0 .. 1");
  check(stale >= 0 && std::isfinite(stale), "stale_s must not be negative");
  return {view(capacity), precision, stale};
}

/// Replaces `uses` by the uses of one flow; links below 0 are skipped. Raises ValueError.
void uses_of(std::span<const std::int32_t> links, std::span<const double> shares, std::size_t known,
             std::vector<Use>& uses) {
  uses.clear();
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links[i] < 0) continue;
    check(static_cast<std::size_t>(links[i]) < known, "a flow crosses a link that does not exist");
    check(shares[i] > 0 && std::isfinite(shares[i]), "a share is not above 0");
    for (const auto& use : uses) {
      check(use.link != static_cast<std::uint32_t>(links[i]), "a flow crosses a link twice");
    }
    uses.push_back({static_cast<std::uint32_t>(links[i]), shares[i]});
  }
  check(!uses.empty(), "a flow crosses no link");
}

void add_channels(Simulation& simulation, const Longs& flows, const Longs& uses, const Ints& links,
                  const Doubles& shares, const Doubles& weight) {
  const auto by_channel = view(flows);
  const auto by_flow = view(uses);
  check(!by_channel.empty() && by_channel.front() == 0, "flows must begin with 0");
  check(!by_flow.empty() && by_flow.front() == 0, "uses must begin with 0");
  check(std::is_sorted(by_channel.begin(), by_channel.end()), "flows must not descend");
  check(std::is_sorted(by_flow.begin(), by_flow.end()), "uses must not descend");
  check(static_cast<std::size_t>(by_channel.back()) == by_flow.size() - 1, "flows must end with the number of flows");
  check(by_flow.back() == links.size() && links.size() == shares.size(), "uses must end with the number of links");
  check(static_cast<std::size_t>(weight.size()) == by_flow.size() - 1, "weight must be one per flow");
  check(std::ssize(by_flow) + static_cast<std::int64_t>(simulation.allocator().flows()) < kMost && links.size() < kMost,
        "there are too many flows");
  const auto weights = view(weight);
  check(all_finite(weights, 0) && std::find(weights.begin(), weights.end(), 0.0) == weights.end(),
        "a weight is not above 0, or not finite");
  std::vector<Use> path;
  for (std::size_t f = 0; f + 1 < by_flow.size(); ++f) {  // everything is checked before anything is added
    const auto first = static_cast<std::size_t>(by_flow[f]);
    const auto count = static_cast<std::size_t>(by_flow[f + 1]) - first;
    uses_of(view(links).subspan(first, count), view(shares).subspan(first, count), simulation.allocator().links(),
            path);
  }
  for (std::size_t c = 0; c + 1 < by_channel.size(); ++c) {
    const auto begin = static_cast<MaxMinAllocator::Flow>(simulation.allocator().flows());
    for (auto f = static_cast<std::size_t>(by_channel[c]); f < static_cast<std::size_t>(by_channel[c + 1]); ++f) {
      const auto first = static_cast<std::size_t>(by_flow[f]);
      const auto count = static_cast<std::size_t>(by_flow[f + 1]) - first;
      uses_of(view(links).subspan(first, count), view(shares).subspan(first, count), simulation.allocator().links(),
              path);
      simulation.allocator().add(path, weights[f]);
    }
    simulation.add_channel(begin, static_cast<std::uint32_t>(simulation.allocator().flows() - begin));
  }
}

void set_paths(Simulation& simulation, const Longs& flows, const Longs& uses, const Ints& links,
               const Doubles& shares) {
  const auto known = static_cast<std::int64_t>(simulation.allocator().flows());
  const auto numbers = view(flows);
  const auto by_flow = view(uses);
  check(by_flow.size() == numbers.size() + 1, "flows and paths differ in number");
  check(by_flow.front() == 0 && std::is_sorted(by_flow.begin(), by_flow.end()),
        "uses must begin with 0 and not descend");
  check(by_flow.back() == links.size() && links.size() == shares.size(), "uses must end with the number of links");
  check(std::all_of(numbers.begin(), numbers.end(), [&](auto f) { return f >= 0 && f < known; }),
        "a flow does not exist");
  std::vector<Use> path;
  for (const bool apply : {false, true}) {  // everything is checked before anything is changed
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto first = static_cast<std::size_t>(by_flow[i]);
      const auto count = static_cast<std::size_t>(by_flow[i + 1]) - first;
      uses_of(view(links).subspan(first, count), view(shares).subspan(first, count), simulation.allocator().links(),
              path);
      if (apply) simulation.set_uses(static_cast<MaxMinAllocator::Flow>(numbers[i]), path);
    }
  }
}

void set_capacity(Simulation& simulation, std::uint32_t link, double capacity) {
  check(link < simulation.allocator().links(), "the link does not exist");
  check(capacity >= 0 && std::isfinite(capacity), "a capacity is negative or not finite");
  simulation.set_capacity(link, capacity);
}

std::size_t add_messages(Simulation& simulation, const Ints& channel, const Doubles& bits, const Doubles& delay,
                         const Doubles& release, const Bools& milestone) {
  const auto count = channel.size();
  check(bits.size() == count && delay.size() == count && release.size() == count && milestone.size() == count,
        "the columns of messages differ in length");
  const auto first = simulation.messages();
  check(static_cast<std::int64_t>(first) + count < kMost, "there are too many messages");
  const auto channels = view(channel);
  check(std::all_of(channels.begin(), channels.end(),
                    [&](auto c) { return c >= -1 && c < static_cast<std::int64_t>(simulation.channels()); }),
        "a message goes over a channel that does not exist");
  check(all_finite(view(bits), 0), "the size of a message is negative or not finite");
  check(all_finite(view(delay), 0), "the delay of a message is negative or not finite");
  check(all_finite(view(release), 0), "the release time of a message is negative or not finite");
  for (std::size_t i = 0; i < channels.size(); ++i) {
    simulation.add_message({.channel = channels[i],
                            .bits = view(bits)[i],
                            .delay = view(delay)[i],
                            .release = view(release)[i],
                            .milestone = view(milestone)[i]});
  }
  return first;
}

std::vector<Simulation::Message> advance(Simulation& simulation, double until) {
  check(!std::isnan(until), "until is not a number");
  const py::gil_scoped_release unlocked;
  const auto reached = simulation.advance(until);
  return {reached.begin(), reached.end()};
}

}  // namespace

void bind(py::module_& module) {
  py::class_<Simulation>(module, "FluidSimulation")
      .def(py::init(&make), py::arg("capacity"), py::arg("precision"), py::arg("stale_s"))
      .def("add_channels", &add_channels, py::arg("flows"), py::arg("uses"), py::arg("links"), py::arg("shares"),
           py::arg("weight"))
      .def("add_messages", &add_messages, py::arg("channel"), py::arg("bits"), py::arg("delay_s"), py::arg("release_s"),
           py::arg("milestone"))
      .def(
          "add_waits",
          [](Simulation& s, const Longs& earlier, const Longs& later) { add_waits(s.waits(), earlier, later); },
          py::arg("earlier"), py::arg("later"))
      .def("set_capacity", &set_capacity, py::arg("link"), py::arg("capacity_bps"))
      .def("set_paths", &set_paths, py::arg("flows"), py::arg("uses"), py::arg("links"), py::arg("shares"))
      .def("advance", &advance, py::arg("until_s"))
      .def(
          "begun_s",
          [](const Simulation& s) { return column<double>(s.messages(), [&](std::uint32_t m) { return s.begun(m); }); })
      .def("delivered_s",
           [](const Simulation& s) {
             return column<double>(s.messages(), [&](std::uint32_t m) { return s.delivered(m); });
           })
      .def("rates_bps",
           [](Simulation& s) {
             return column<double>(s.allocator().flows(), [&](std::uint32_t f) { return s.allocator().rate(f); });
           })
      .def("flow_bits",
           [](Simulation& s) {
             return column<double>(s.allocator().flows(), [&](std::uint32_t f) { return s.flow_bits(f); });
           })
      .def("link_bits",
           [](const Simulation& s) {
             const auto bits = s.link_bits();
             return column<double>(bits.size(), [&](std::uint32_t l) { return bits[l]; });
           })
      .def_property_readonly("now_s", &Simulation::now)
      .def_property_readonly("undelivered", &Simulation::undelivered)
      .def_property_readonly("stuck", &Simulation::stuck)
      .def_property_readonly("events", &Simulation::events)
      .def_property_readonly("fillings", [](Simulation& s) { return s.allocator().fillings(); })
      .def_property_readonly("repairs", [](Simulation& s) { return s.allocator().repairs(); });
}

}  // namespace paralet::fluid
