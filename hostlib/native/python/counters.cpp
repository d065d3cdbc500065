// SPDX-License-Identifier: Apache-2.0
// The counters of a device as Python objects.
#include <pybind11/pybind11.h>

#include "engine/device.hpp"
#include "python/binding.hpp"

namespace py = pybind11;

namespace paralet {
namespace {

py::dict path_client_row(const PathClientCounters& c) {
  py::dict row;
  row["connected"] = c.connected;
  row["since_s"] = to_seconds(c.since);
  row["connections"] = c.connections;
  row["elephants"] = c.elephants;
  row["announced"] = c.announced;
  row["assigned"] = c.assigned;
  row["ecmp_starts"] = c.ecmp_starts;
  row["released"] = c.released;
  row["announces"] = c.announces;
  row["assigns"] = c.assigns;
  row["pushes"] = c.pushes;
  row["stale"] = c.stale;
  row["invalid"] = c.invalid;
  row["dropped"] = c.dropped;
  row["reverted"] = c.reverted;
  row["unbound"] = c.unbound;
  return row;
}

}  // namespace

py::dict counters_of(Device& device) {
  DeviceCounters c;
  {
    const py::gil_scoped_release unlocked;
    c = device.counters();
  }
  py::list lanes;
  for (const LaneCounters& lane : c.lanes) {
    const QpCounters& q = lane.qp.counters;
    py::dict row;
    row["peer"] = format_address(lane.peer);
    row["lane"] = lane.lane;
    row["member"] = lane.member;
    row["port"] = lane.qp.port;
    row["port_method"] = to_string(lane.method);
    row["qpn"] = lane.qpn;
    row["flowlets"] = lane.flowlets;
    row["moves"] = lane.moves;
    row["tx_bytes"] = q.tx_bytes;
    row["tx_packets"] = q.tx_packets;
    row["rx_bytes"] = q.rx_bytes;
    row["rx_packets"] = q.rx_packets;
    row["retransmits"] = q.retransmits;
    row["timeouts"] = q.timeouts;
    row["naks"] = q.naks_received;
    row["rnr"] = q.rnr_received;
    row["duplicates"] = q.duplicates;
    row["out_of_order"] = q.out_of_order;
    row["stale_acks"] = q.stale_acks;
    row["rx_marked"] = q.rx_marked;
    row["tx_marked"] = q.tx_marked;
    row["rtt_s"] = to_seconds(lane.qp.smoothed_rtt);
    row["min_rtt_s"] = to_seconds(lane.qp.min_rtt);
    row["window"] = lane.qp.window;
    lanes.append(row);
  }
  py::dict messages;
  messages["sends"] = c.messages.sends;
  messages["send_bytes"] = c.messages.send_bytes;
  messages["receives"] = c.messages.receives;
  messages["receive_bytes"] = c.messages.receive_bytes;
  messages["failed"] = c.messages.failed;
  py::dict discards;
  discards["malformed"] = c.discards.malformed;
  discards["icrc"] = c.discards.icrc;
  discards["unknown_qp"] = c.discards.unknown_qp;
  discards["wrong_source"] = c.discards.wrong_source;
  discards["send_errors"] = c.discards.send_errors;
  discards["injected"] = c.discards.injected;
  discards["cnps"] = c.discards.cnps;
  py::dict out;
  out["lanes"] = lanes;
  out["messages"] = messages;
  out["discards"] = discards;
  out["qps"] = c.lanes.size();
  out["peers"] = c.peers;
  out["connections"] = c.connections;
  if (c.path_client) out["path_client"] = path_client_row(*c.path_client);
  return out;
}

}  // namespace paralet
