// SPDX-License-Identifier: Apache-2.0
// The counters of a device as Python objects.
#include <pybind11/pybind11.h>

#include <span>

#include "base/build.hpp"
#include "engine/counter_table.hpp"
#include "engine/device.hpp"
#include "python/binding.hpp"

namespace py = pybind11;

namespace paralet {
namespace {

/// A table's counters by name.
template <typename Counters>
void put_counters(py::dict& row, std::span<const Counter<Counters>> table, const Counters& counters) {
  for (const Counter<Counters>& counter : table) row[counter.name] = counter.get(counters);
}

template <typename Counters>
py::dict row_of(std::span<const Counter<Counters>> table, const Counters& counters) {
  py::dict row;
  put_counters(row, table, counters);
  return row;
}

py::dict path_client_row(const PathClientCounters& client) {
  py::dict row;
  row["connected"] = client.connected;
  row["since_s"] = to_seconds(client.since);
  row["elephants"] = client.elephants;
  put_counters(row, path_client_counters(), client);
  return row;
}

py::dict lane_row(const LaneCounters& lane) {
  py::dict row;
  row["peer"] = format_address(lane.peer);
  row["lane"] = lane.lane;
  row["member"] = lane.member;
  row["port"] = lane.qp.port;
  row["port_method"] = to_string(lane.method);
  row["qpn"] = lane.qpn;
  put_counters(row, lane_counters(), lane);
  row["rtt_s"] = to_seconds(lane.qp.smoothed_rtt);
  row["min_rtt_s"] = to_seconds(lane.qp.min_rtt);
  row["window"] = lane.qp.window;
  return row;
}

/// What each counter of a table means, by name.
template <typename Counters>
py::dict meanings(std::span<const Counter<Counters>> table) {
  py::dict out;
  for (const Counter<Counters>& counter : table) out[counter.name] = counter.meaning;
  return out;
}

}  // namespace

py::dict counters_of(Device& device) {
  DeviceCounters c;
  {
    const py::gil_scoped_release unlocked;
    c = device.counters();
  }
  py::list lanes;
  for (const LaneCounters& lane : c.lanes) lanes.append(lane_row(lane));
  py::dict out;
  out["lanes"] = lanes;
  out["messages"] = row_of(message_counters(), c.messages);
  out["discards"] = row_of(discard_counters(), c.discards);
  out["qps"] = c.lanes.size();
  out["peers"] = c.peers;
  out["connections"] = c.connections;
  if (c.path_client) out["path_client"] = path_client_row(*c.path_client);
  return out;
}

void bind_counters(py::module_& m) {
  m.def("build", [] { return py::make_tuple(build_version(), build_commit()); });
  m.def("counters", [] {
    py::dict out;
    out["lane"] = meanings(lane_counters());
    out["messages"] = meanings(message_counters());
    out["discards"] = meanings(discard_counters());
    out["path_client"] = meanings(path_client_counters());
    return out;
  });
}

}  // namespace paralet
