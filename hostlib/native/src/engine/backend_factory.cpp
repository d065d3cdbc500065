// SPDX-License-Identifier: Apache-2.0
#include "engine/backend_factory.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "backend/rc_timing.hpp"
#include "base/interfaces.hpp"
#include "engine/shard_count.hpp"
#include "fused/fused_backend.hpp"
#include "sharded/sharded_backend.hpp"
#include "soft/soft_backend.hpp"
#include "tcp/tcp_backend.hpp"
#include "verbs/verbs_backend.hpp"

namespace paralet {

namespace {

constexpr double kPacketBits = 8 * 4200;  // of a packet with 4,096 bytes of payload
constexpr double kInitialPackets = 4;     // in flight before a path is measured, all lanes together
// The packets of 256 KiB and one for the rest: a receiver that gets a message in pieces wakes up once per piece.
constexpr double kWholeMessage = 65;

/// Packets that one lane may have in flight. With a line rate: twice what the line holds with a standing queue. Without
/// one: what the caches of two cores hold, because data that waits longer in a socket is fetched from memory again.
double max_window(const DeviceOptions& options, Nanos target) {
  constexpr double kCachedPackets = 1024;
  constexpr double kSlowestRtt = 1e-3;
  const double packets = options.line_rate_bps > 0
                             ? 2 * options.line_rate_bps * (kSlowestRtt + 4 * to_seconds(target)) / kPacketBits
                             : kCachedPackets / options.policy.lanes;
  return std::clamp(packets, options.line_rate_bps > 0 ? 16.0 : kWholeMessage, 512.0);
}

/// The delay of a queue of DeviceOptions::queue_bytes. A shorter one cannot be told from how long the kernels take,
/// nor, where the base round trip is bounded but not given (soft_options), from the path itself.
Nanos network_queue(const DeviceOptions& options, Nanos target) {
  constexpr double kUnknownRate = 1e9;
  const Nanos least = options.line_rate_bps > 0 && !options.base_rtt ? target / 4 : 100 * kMicrosecond;
  double rate_bps = options.line_rate_bps;
  if (rate_bps <= 0) {
    const auto interface = interface_of(options.address);
    rate_bps = interface ? nic_rate_bps(interface->name).value_or(kUnknownRate) : kUnknownRate;
  }
  return std::max(least, from_seconds(8 * static_cast<double>(options.queue_bytes) / rate_bps));
}

/// The segments of lanes by their source ports, which `check_segments` has compared.
SegmentTable segments_of(const DeviceOptions& options) {
  std::map<std::pair<IpAddress, std::uint16_t>, SegmentTable::Segments> out;
  for (const auto& [peer, lanes] : options.segments) {
    const auto& ports = options.policy.ports.at(peer);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) out.try_emplace({peer, ports.at(lane)}, lanes[lane]);
  }
  return SegmentTable(std::move(out));
}

SoftOptions soft_options(const DeviceOptions& options) {
  const Nanos target = target_queue(options);
  SoftOptions out;
  out.address = options.address;
  out.line_rate_bps = options.line_rate_bps;
  out.min_timeout = options.min_timeout.value_or(std::max(kMinAckTimeout, 4 * target));
  out.retry_time = options.retry_time;
  out.congestion.law = options.congestion_control;
  out.congestion.fixed_window = options.window_packets.value_or(64);
  out.congestion.target_queue = target;
  out.congestion.network_queue = network_queue(options, target);
  out.congestion.max_window = max_window(options, target);
  if (options.base_rtt) {
    out.congestion.max_base = *options.base_rtt;
  } else if (options.line_rate_bps > 0) {
    // A QP that first measured while a queue stood aims higher by as much as this bound admits. The bound must be small
    // against what flow scaling takes from the larger of two windows: with 1/8 two flows shared a link 1 to 2.
    out.congestion.max_base = target / 32;
  }
  // Without a line rate, scheduling delay does not reduce the window further: keep as much in flight as TCP would.
  if (options.line_rate_bps <= 0) out.congestion.delay_floor = std::max(kWholeMessage, out.congestion.max_window / 4);
  // The lanes of a device start together. The data that they send at once must not grow with their number.
  out.congestion.initial_window = std::max(1.0, kInitialPackets / options.policy.lanes);
  out.traffic_class = options.traffic_class;
  out.segments = segments_of(options);
  out.faults = options.faults;
  out.log = options.log;
  return out;
}

TcpOptions tcp_options(const DeviceOptions& options) {
  TcpOptions out;
  out.sockets.address = options.address;
  out.sockets.traffic_class = options.traffic_class;
  out.sockets.congestion = options.tcp_congestion;
  out.sockets.retry_time = options.retry_time;
  out.faults = options.faults;
  out.line_rate_bps = options.line_rate_bps;
  out.min_timeout = options.min_timeout.value_or(kMinAckTimeout);
  return out;
}

VerbsOptions verbs_options(const DeviceOptions& options) {
  VerbsOptions out;
  out.address = options.address;
  out.gid_index = options.rdma.gid_index;
  out.traffic_class = options.traffic_class;
  out.service_level = options.rdma.service_level;
  out.pkey_index = static_cast<std::uint16_t>(options.rdma.pkey_index);
  out.min_timeout = options.min_timeout;
  out.retry_time = options.retry_time;
  out.log = options.log;
  return out;
}

}  // namespace

// A dozen packets at line rate, so that slow links keep enough in flight to stay busy, and at least the time a
// scheduler takes to run the peer's process.
Nanos target_queue(const DeviceOptions& options) {
  const Nanos packets = options.line_rate_bps > 0 ? from_seconds(12 * kPacketBits / options.line_rate_bps) : 0;
  return options.target_queue.value_or(std::max(2 * kMillisecond, packets));
}

namespace {

std::unique_ptr<Backend> make_shard(const DeviceOptions& options, const QpnShare& qpns) {
  switch (options.backend) {
    case BackendKind::kSoft: {
      SoftOptions soft = soft_options(options);
      soft.qpns = qpns;
      return std::make_unique<SoftBackend>(soft);
    }
    case BackendKind::kTcp: {
      TcpOptions tcp = tcp_options(options);
      tcp.qpns = qpns;
      return std::make_unique<TcpBackend>(tcp);
    }
    case BackendKind::kVerbs:
      break;
  }
  return open_verbs(verbs_options(options));
}

std::unique_ptr<Backend> make_one(const DeviceOptions& options) {
  const unsigned count = shard_count(options);
  if (count == 1) return make_shard(options, {});
  DeviceOptions one = options;
  one.line_rate_bps /= count;  // the rate is of all shards together
  std::vector<std::unique_ptr<Backend>> shards;
  for (unsigned i = 0; i < count; ++i) {
    shards.push_back(make_shard(one, {.shard = i, .shards = count}));
    ++one.faults.seed;  // shards have different faults
  }
  return std::make_unique<ShardedBackend>(std::move(shards));
}

}  // namespace

std::unique_ptr<Backend> make_backend(const DeviceOptions& options) {
  if (options.fused_with.empty()) return make_one(options);
  std::vector<std::unique_ptr<Backend>> members;
  DeviceOptions member = options;
  member.line_rate_bps /= static_cast<double>(1 + options.fused_with.size());  // the rate is of all members together
  members.push_back(make_one(member));
  for (const IpAddress& address : options.fused_with) {
    member.address = address;
    members.push_back(make_one(member));
  }
  return std::make_unique<FusedBackend>(std::move(members));
}

}  // namespace paralet
