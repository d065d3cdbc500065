// SPDX-License-Identifier: Apache-2.0
// Many lanes and many peers. One process has one device, the hub; in the other every peer has a device, and so a
// loopback address, of its own.
#pragma once

#include <cstddef>

namespace paralet::bench {

struct ScaleCase {
  unsigned lanes = 1;
  unsigned peers = 1;
};

/// The hub sends to all peers in turn. Nobody polls, so that processor time is that of the work.
struct ScaleFlow {
  double gbps = 0;              ///< all peers together
  double hub_ns_per_byte = 0;   ///< processor time
  double peer_ns_per_byte = 0;  ///< of all peers together
};
ScaleFlow scale_flow(const ScaleCase& c);

/// What the hub needs for each (peer, lane) that has carried a message and is idle: QP, its share of connection and
/// control channel, counters. Without the kernel's sockets.
struct ScaleMemory {
  double allocated_bytes = 0;  ///< by malloc
  double resident_bytes = 0;
};
ScaleMemory scale_memory(const ScaleCase& c);

}  // namespace paralet::bench
