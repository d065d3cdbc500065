// SPDX-License-Identifier: Apache-2.0
#include "engine/observation.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

namespace paralet {
namespace {

/// Messages of a list that are looked at. NCCL has at most 8 under way on a connection (NCCL_STEPS, src/include/net.h).
constexpr std::size_t kOldest = 8;

template <typename Use>
void for_oldest(const RequestList& list, Use use) {
  std::size_t seen = 0;
  for (const Request* request = list.front(); request != nullptr && seen < kOldest; request = request->next, ++seen) {
    use(*request);
  }
}

}  // namespace

Observation::Observation(const Context& context, Shard& shard, Peers& peers, Results& results, const PathPolicy& policy)
    : shard_(shard),
      peers_(peers),
      results_(results),
      policy_(&policy),
      live_counters_({.guid = context.guid,
                      .backend = context.options.backend,
                      .policy = to_string(context.options.policy.kind),
                      .nics = context.nics,
                      .path_mtu = context.path_mtu,
                      .lanes = context.options.policy.lanes,
                      .line_rate_bps = context.options.line_rate_bps}) {}

DeviceCounters Observation::counters() const {
  DeviceCounters out;
  for (const auto& peer : peers_.all) {
    if (!peer->ready()) continue;
    for (unsigned i = 0; i < peer->lanes.size(); ++i) {
      const Lane& lane = peer->lanes[i];
      QpStatistics qp = shard_.backend().statistics(lane.qp.qpn);
      if (lane.former) qp.counters += *lane.former;
      if (lane.renewal && lane.renewal->switched())
        qp.counters += shard_.backend().statistics(lane.renewal->qp.qpn).counters;
      out.lanes.push_back({.peer = peer->address,
                           .lane = i,
                           .member = member_of(lane.qp.qpn),
                           .qpn = lane.qp.qpn & 0xFFFFFF,
                           .method = shard_.backend().port_method(),
                           .flowlets = lane.flowlets,
                           .moves = lane.moves,
                           .qp = qp,
                           .unfinished = lane.unfinished,
                           .outstanding_bytes = lane.outstanding_bytes,
                           .waiting_since = lane.waiting_since});
    }
  }
  out.messages = results_.counters();
  out.discards = shard_.backend().discards();
  out.connections = peers_.connections.size();
  out.peers = peers_.all.size();
  out.path_client = policy_->counters();
  return out;
}

void Observation::tick(Nanos t) {
  if (!live_counters_.due(t)) return;
  sample_progress(t);
  DeviceCounters now = counters();
  collect_under_way(now);
  live_counters_.publish(t, now);
}

bool Observation::awaits(const Peer& peer) const {
  return std::ranges::any_of(peers_.connections, [&peer](const auto& entry) {
    const Connection& connection = *entry.second;
    return connection.peer == &peer && under_way(connection);
  });
}

bool Observation::under_way(const Connection& connection) {
  return connection.state != Connection::State::kOpen || !connection.sends.empty() || !connection.in_flight.empty() ||
         !connection.receives.empty();
}

/// New sends and receives of this side do not count as progress: the oldest may still wait.
Connection::Progress Observation::progress_of(const Connection& connection) {
  const auto size = [](const auto& list) { return static_cast<std::uint32_t>(list.size()); };
  const std::uint32_t matched = connection.advertised.taken() + connection.eager_sends.sent();
  Connection::Progress out{.sent = matched - size(connection.in_flight),
                           .matched = matched,
                           .received = connection.received,
                           .open = connection.state == Connection::State::kOpen};
  for_oldest(connection.in_flight, [&out](const Request& send) { out.flowlets += send.finished; });
  for_oldest(connection.receives, [&out](const Request& receive) { out.flowlets += receive.arrived; });
  return out;
}

/// Notes when connections and lanes last moved. A wait begins with the first sample that sees it.
void Observation::sample_progress(Nanos t) {
  for (const auto& peer : peers_.all) {
    if (!peer->ready()) continue;
    for (Lane& lane : peer->lanes) {
      if (lane.unfinished == 0) {
        lane.waiting_since = 0;
        continue;
      }
      // Back ends that do not see acknowledgements of packets show those of whole flowlets and advertisements.
      const std::uint64_t acknowledged = shard_.backend().statistics(lane.qp.qpn).acknowledged_packets + lane.flowlets;
      const bool moved = acknowledged != lane.acknowledged_seen || lane.unfinished < lane.unfinished_seen;
      if (lane.waiting_since == 0 || moved) lane.waiting_since = t;
      lane.acknowledged_seen = acknowledged;
      lane.unfinished_seen = lane.unfinished;
    }
  }
  for (const auto& [id, connection] : peers_.connections) {
    if (!under_way(*connection)) {
      connection->progressed_at = 0;
      continue;
    }
    const Connection::Progress progress = progress_of(*connection);
    if (connection->progressed_at == 0 || progress != connection->progress) connection->progressed_at = t;
    connection->progress = progress;
  }
}

ConnectionCounters Observation::counters_of(const Connection& connection) {
  ConnectionCounters out{.peer = connection.peer_address,
                         .id = connection.id,
                         .remote_id = connection.remote_id,
                         .state = connection.state,
                         .sends = connection.sends.size(),
                         .advertisements = connection.advertised.size(),
                         .early = connection.advertised.early(),
                         .in_flight = connection.in_flight.size(),
                         .receives = connection.receives.size(),
                         .progressed_at = connection.progressed_at};
  if (const Peer* peer = connection.peer; peer != nullptr) {
    out.peer_guid = peer->device;
    out.peer_port = peer->udp_port;
    out.heard_at = peer->heard_at;
  }
  if (const Request* send = connection.sends.front(); send != nullptr) out.send_tag = send->tag;
  if (out.advertisements > 0) out.advertised_tag = connection.advertised.oldest_tag();
  if (const Request* receive = connection.receives.front(); receive != nullptr) out.receive_tag = receive->tag;
  for_oldest(connection.in_flight, [&out](const Request& send) {
    out.posted += send.posted;
    out.unposted += send.flowlets->count - send.next_flowlet;
    out.unfinished_bytes += std::min(send.length, (send.flowlets->count - send.finished) * send.flowlets->size_bytes);
  });
  for_oldest(connection.receives, [&out](const Request& receive) { out.arrived_bytes += receive.arrived_bytes; });
  return out;
}

/// The connections with something under way. If there are more than kMostUnderWay, those that have waited longest.
void Observation::collect_under_way(DeviceCounters& counters) const {
  constexpr std::size_t kMost = LiveCounters::kMostUnderWay;
  std::vector<const Connection*> waiting;
  for (const auto& [id, connection] : peers_.connections) {
    if (under_way(*connection)) waiting.push_back(connection.get());
  }
  if (waiting.size() > kMost) {
    const auto longest_first = [](const Connection* a, const Connection* b) {
      return std::tie(a->progressed_at, a->id) < std::tie(b->progressed_at, b->id);
    };
    std::ranges::nth_element(waiting, waiting.begin() + kMost, longest_first);
    counters.under_way_omitted = waiting.size() - kMost;
    waiting.resize(kMost);
  }
  counters.under_way.reserve(waiting.size());
  for (const Connection* connection : waiting) counters.under_way.push_back(counters_of(*connection));
}

}  // namespace paralet
