// SPDX-License-Identifier: Apache-2.0
// Probes of paths.
#include "prober/prober.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/binding.hpp"

namespace py = pybind11;

namespace paralet {
namespace {

prober::Limits limits_of(double rate, double router_rate, double router_burst, double timeout_s, unsigned attempts,
                         std::size_t window) {
  if (!(rate >= 0) || !(router_rate >= 0)) throw py::value_error("a rate must not be negative");
  if (!(router_burst >= 1)) throw py::value_error("router_burst must be at least 1");
  if (!(timeout_s > 0)) throw py::value_error("timeout_s must be above 0");
  if (attempts < 1) throw py::value_error("attempts must be at least 1");
  if (window < 1 || window > 65536) throw py::value_error("window must be between 1 and 65536");
  return {.rate = rate,
          .router_rate = router_rate,
          .router_burst = router_burst,
          .timeout = from_seconds(timeout_s),
          .attempts = attempts,
          .window = window};
}

const char* name_of(prober::Answer answer) {
  switch (answer) {
    case prober::Answer::kHop:
      return "hop";
    case prober::Answer::kDestination:
      return "destination";
    case prober::Answer::kNone:
      break;
  }
  return "none";
}

py::object text_of(const std::optional<IpAddress>& address) {
  return address ? py::object(py::str(format_address(*address))) : py::none();
}

/// A prober, and when it began: times in Python count from there.
struct PyProber {
  explicit PyProber(const prober::Limits& limits) : native(limits) {}

  std::size_t add_target(const std::string& from, const std::string& to, std::uint16_t destination_port, bool tcp,
                         std::uint32_t qpn) {
    const prober::Target target{.from = address_of(from),
                                .to = address_of(to),
                                .destination_port = destination_port,
                                .protocol = tcp ? prober::Protocol::kTcp : prober::Protocol::kUdp};
    if (target.from.is_ipv4() != target.to.is_ipv4()) {
      throw py::value_error(from + " and " + to + " are not of one IP version");
    }
    qpns.push_back(qpn);
    return native.add(target);
  }
  void add(std::size_t target, std::uint8_t ttl, const std::vector<std::uint16_t>& ports) {
    if (target >= qpns.size()) throw py::value_error("there is no target " + std::to_string(target));
    if (ttl == 0) throw py::value_error("a time to live is at least 1");
    for (const std::uint16_t port : ports) {
      if (port == 0) throw py::value_error("a source port is at least 1");
      native.add(prober::Probe{.target = target, .source_port = port, .ttl = ttl, .qpn = qpns[target]});
    }
  }
  bool run(double timeout_s) {
    const Nanos until = now() + *to_nanos(timeout_s);
    for (;;) {
      bool done = false;
      {
        const py::gil_scoped_release unlocked;
        done = native.run(std::min(until, now() + kSignalCheck));
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (done || now() >= until) return done;
    }
  }
  py::list observations() {
    py::list out;
    for (const prober::Observation& one : native.take_observations()) {
      const bool answered = one.answer != prober::Answer::kNone;
      out.append(py::make_tuple(
          one.probe.target, one.probe.source_port, one.probe.ttl, name_of(one.answer), text_of(one.router),
          answered ? py::object(py::float_(to_seconds(one.answered_at - one.sent_at))) : py::none(),
          to_seconds(one.sent_at - began)));
    }
    return out;
  }
  py::list failures() {
    py::list out;
    for (const prober::Failure& one : native.take_failures()) {
      out.append(
          py::make_tuple(one.probe.target, one.probe.source_port, one.probe.ttl, one.error, text_of(one.router)));
    }
    return out;
  }
  py::dict counters() const {
    const prober::ProberCounters counted = native.counters();
    py::dict out;
    out["sent"] = counted.sent;
    out["answered"] = counted.answered;
    out["mismatched"] = counted.mismatched;
    out["limited"] = counted.limited;
    return out;
  }

  prober::Prober native;
  std::vector<std::uint32_t> qpns;  ///< by target
  Nanos began = now();
};

}  // namespace

void bind_prober(py::module_& m) {
  py::class_<PyProber>(m, "Prober")
      .def(py::init([](double rate, double router_rate, double router_burst, double timeout_s, unsigned attempts,
                       std::size_t window) {
             return std::make_unique<PyProber>(limits_of(rate, router_rate, router_burst, timeout_s, attempts, window));
           }),
           py::kw_only(), py::arg("rate"), py::arg("router_rate"), py::arg("router_burst"), py::arg("timeout_s"),
           py::arg("attempts"), py::arg("window"))
      .def("add_target", &PyProber::add_target, py::arg("from_"), py::arg("to"), py::kw_only(),
           py::arg("destination_port"), py::arg("tcp"), py::arg("qpn"))
      .def("add", &PyProber::add, py::arg("target"), py::arg("ttl"), py::arg("ports"))
      .def("run", &PyProber::run, py::arg("timeout_s"))
      .def("drop_waiting", [](PyProber& p) { return p.native.drop_waiting(); })
      .def("observations", &PyProber::observations)
      .def("failures", &PyProber::failures)
      .def("counters", &PyProber::counters);
}

}  // namespace paralet
