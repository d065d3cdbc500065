// SPDX-License-Identifier: Apache-2.0
// Many lanes and many peers. One process has one device, the hub. In the other process every peer has its own device
// and loopback address.
#pragma once

#include <cstddef>
#include <string>

#include "engine/policy_options.hpp"

namespace paralet::bench {

struct ScaleCase {
  unsigned lanes = 1;
  unsigned peers = 1;
  std::string back_end = "soft";
  LanesPer lanes_per = LanesPer::kPeer;
};

/// The hub sends to all peers round robin. No thread polls, so processor time is that of the work.
struct ScaleFlow {
  double gbps = 0;              ///< all peers together
  double hub_ns_per_byte = 0;   ///< processor time
  double peer_ns_per_byte = 0;  ///< of all peers together
};
ScaleFlow scale_flow(const ScaleCase& c);

/// The hub's memory per (peer, lane) that has carried a message and is idle: the QP, counters, and its share of the
/// connection and the TCP channel, without the kernel's sockets.
struct ScaleMemory {
  double allocated_bytes = 0;  ///< by malloc
  double resident_bytes = 0;
};
ScaleMemory scale_memory(const ScaleCase& c);

}  // namespace paralet::bench
