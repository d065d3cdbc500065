// SPDX-License-Identifier: Apache-2.0
// What a device is and counts, for callers and for the snapshots of live counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "engine/handshake.hpp"
#include "engine/request.hpp"
#include "paths/path_client_counters.hpp"

namespace paralet {

/// A NIC of a device: its interface, its address, and the port on which it receives: of UDP, or of TCP by `transport`.
struct DeviceNic {
  std::string interface;
  IpAddress address;
  std::uint16_t udp_port = 0;
  Transport transport = Transport::kRoce;
};

/// Counters of one lane towards one peer.
struct LaneCounters {
  IpAddress peer;
  unsigned lane = 0;
  unsigned member = 0;  ///< of a fused device
  std::uint32_t qpn = 0;
  PortMethod method = PortMethod::kSocket;
#define LANE_COUNTER(name, meaning) std::uint64_t name = 0;
#include "base/counters.inc"
  QpStatistics qp;
  unsigned unfinished = 0;              ///< work posted and not finished: flowlets, receive advertisements, pings
  std::uint64_t outstanding_bytes = 0;  ///< of posted flowlets
  Nanos waiting_since = 0;  ///< since when nothing of the posted work was acknowledged; 0: nothing is posted
};

/// A connection with something under way. The oldest messages are the first 8 of their list.
struct ConnectionCounters {
  handshake::Guid peer_guid{};
  IpAddress peer;
  std::uint16_t peer_port = 0;  ///< the port on which the peer receives; 0: not known yet
  std::uint32_t id = 0;         ///< this side's name for the connection
  std::uint32_t remote_id = 0;  ///< the peer's name for it; 0: not known yet
  Connection::State state = Connection::State::kConnecting;
  std::uint32_t send_tag = 0;          ///< of the oldest send without a receive
  std::uint32_t advertised_tag = 0;    ///< of the oldest advertised receive without a send
  std::uint32_t receive_tag = 0;       ///< of the oldest open receive
  std::size_t sends = 0;               ///< without a receive
  std::size_t advertisements = 0;      ///< receives of the peer without a send
  std::size_t early = 0;               ///< advertisements that arrived before an earlier one
  std::size_t in_flight = 0;           ///< sends with a receive
  std::uint64_t posted = 0;            ///< flowlets of the oldest sends in flight on lanes
  std::uint64_t unposted = 0;          ///< flowlets of the oldest sends in flight that no lane has taken
  std::uint64_t unfinished_bytes = 0;  ///< of the oldest sends in flight
  std::size_t receives = 0;            ///< open
  std::uint64_t arrived_bytes = 0;     ///< of the oldest open receives
  Nanos progressed_at = 0;             ///< when a message last moved, to the precision of the snapshots
  Nanos heard_at = 0;                  ///< when something last came from the peer, 0: never
};

/// Finished requests. Bytes are message bytes: retransmissions do not count.
struct MessageCounters {
#define MESSAGE_COUNTER(name, meaning) std::uint64_t name = 0;
#include "base/counters.inc"
};

struct DeviceCounters {
  std::vector<LaneCounters> lanes;
  MessageCounters messages;
  Discards discards;
  std::size_t connections = 0;
  std::size_t peers = 0;
  std::optional<PathClientCounters> path_client;  ///< only with policy `controller`
  std::vector<ConnectionCounters> under_way;      ///< in snapshots only
  std::size_t under_way_omitted = 0;              ///< connections beyond kMostUnderWay
};

}  // namespace paralet
