// SPDX-License-Identifier: Apache-2.0
#include "engine/live_counters.hpp"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/build.hpp"
#include "engine/counter_table.hpp"

namespace paralet {
namespace {

using Text = std::array<char, 16>;  // padded with zeros; the last byte is zero
using Ipv6 = IpAddress::Bytes;      // zeros: the address is an IPv4 one, which has a field of its own

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t crc;  // CRC-32 (as in zlib) of all bytes after this field
  std::uint64_t total_bytes;
  std::uint64_t generation;
  std::int64_t time_ns;
  std::uint32_t pid;
  std::uint32_t header_bytes;
  std::uint32_t device_bytes;
  std::uint32_t lane_bytes;
  std::uint32_t lane_count;
  std::uint32_t build;  // paralet's version in the upper three bytes, and 1 for soft, 2 for tcp, 3 for verbs
};

struct DeviceRecord {
  std::array<std::byte, 16> guid;
  Text interface;
  Text policy;
  std::uint32_t address;
  std::uint32_t udp_port;
  std::uint32_t path_mtu;
  std::uint32_t lanes;
  std::uint64_t line_rate_bps;
  std::uint64_t connections;
  std::uint64_t peers;
  Ipv6 ipv6;
  // Zero without policy `controller`.
  std::uint64_t connected;
  std::uint64_t since_ns;
  // What follows, in this order: counters (base/counters.inc) of 8 bytes each, then records.
  std::uint32_t message_counters;
  std::uint32_t discard_counters;
  std::uint32_t path_client_counters;
  std::uint32_t connection_bytes;
  std::uint32_t connection_count;
  std::uint32_t member_bytes;
  std::uint32_t member_count;  // the members of a fused device, if it is one
  std::uint32_t protocol;      // of lanes: IPPROTO_UDP for RoCEv2, or IPPROTO_TCP
  std::uint64_t connections_omitted;
};

struct ConnectionRecord {
  std::array<std::byte, 16> peer_guid;
  std::uint32_t peer;
  std::uint32_t peer_port;
  std::uint32_t id;
  std::uint32_t remote_id;
  std::uint32_t state;  // 0: connecting, 1: open, 2: closing
  std::uint32_t send_tag;
  std::uint32_t advertised_tag;
  std::uint32_t receive_tag;
  std::uint64_t sends;
  std::uint64_t advertisements;
  std::uint64_t early;
  std::uint64_t in_flight;
  std::uint64_t posted;
  std::uint64_t unposted;
  std::uint64_t unfinished_bytes;
  std::uint64_t receives;
  std::uint64_t arrived_bytes;
  std::uint64_t progressed_ns;
  std::uint64_t heard_ns;
  Ipv6 peer_ipv6;
};

struct MemberRecord {
  Text interface;
  IpAddress::Bytes address;  // an IPv4 one as ::ffff:a.b.c.d
  std::uint32_t udp_port;
  std::uint32_t reserved;
};

struct LaneRecord {
  std::uint32_t peer;
  std::uint32_t lane;
  std::uint32_t qpn;
  std::uint32_t port;
  Text port_method;
  Ipv6 peer_ipv6;
  std::uint64_t window_millipackets;
  std::uint64_t smoothed_rtt_ns;
  std::uint64_t min_rtt_ns;
  std::uint64_t unfinished;
  std::uint64_t outstanding_bytes;
  std::uint64_t waiting_since_ns;
  std::uint64_t member;
  // Its counters follow: those of LANE_COUNTER and QP_COUNTER, 8 bytes each.
};

// The sizes that hostlib/snapshots.py names, without padding, whose bytes would be undefined.
static_assert(sizeof(Header) == 64 && std::has_unique_object_representations_v<Header>);
static_assert(sizeof(DeviceRecord) == 160 && std::has_unique_object_representations_v<DeviceRecord>);
static_assert(sizeof(ConnectionRecord) == 152 && std::has_unique_object_representations_v<ConnectionRecord>);
static_assert(sizeof(MemberRecord) == 40 && std::has_unique_object_representations_v<MemberRecord>);
static_assert(sizeof(LaneRecord) == 104 && std::has_unique_object_representations_v<LaneRecord>);

constexpr std::array<char, 8> kMagic{'p', 'a', 'r', 'a', 'l', 'e', 't', '\0'};
constexpr std::size_t kBody = sizeof(Header);
constexpr std::size_t kCrcFrom = offsetof(Header, crc) + sizeof(Header::crc);

Text text(std::string_view words) {
  Text out{};
  std::copy_n(words.begin(), std::min(words.size(), out.size() - 1), out.begin());
  return out;
}

std::uint64_t nanoseconds(Nanos t) { return t > 0 ? static_cast<std::uint64_t>(t) : 0; }

std::uint64_t rounded(double value) { return value > 0 ? static_cast<std::uint64_t>(std::llround(value)) : 0; }

Ipv6 ipv6_of(const IpAddress& address) { return address.is_ipv4() ? Ipv6{} : address.bytes(); }

LaneRecord record(const LaneCounters& lane) {
  return {.peer = lane.peer.ipv4(),
          .lane = lane.lane,
          .qpn = lane.qpn,
          .port = lane.qp.port,
          .port_method = text(to_string(lane.method)),
          .peer_ipv6 = ipv6_of(lane.peer),
          .window_millipackets = rounded(1000 * lane.qp.window),
          .smoothed_rtt_ns = nanoseconds(lane.qp.smoothed_rtt),
          .min_rtt_ns = nanoseconds(lane.qp.min_rtt),
          .unfinished = lane.unfinished,
          .outstanding_bytes = lane.outstanding_bytes,
          .waiting_since_ns = nanoseconds(lane.waiting_since),
          .member = lane.member};
}

ConnectionRecord record(const ConnectionCounters& connection) {
  return {.peer_guid = connection.peer_guid,
          .peer = connection.peer.ipv4(),
          .peer_port = connection.peer_port,
          .id = connection.id,
          .remote_id = connection.remote_id,
          .state = static_cast<std::uint32_t>(connection.state),
          .send_tag = connection.send_tag,
          .advertised_tag = connection.advertised_tag,
          .receive_tag = connection.receive_tag,
          .sends = connection.sends,
          .advertisements = connection.advertisements,
          .early = connection.early,
          .in_flight = connection.in_flight,
          .posted = connection.posted,
          .unposted = connection.unposted,
          .unfinished_bytes = connection.unfinished_bytes,
          .receives = connection.receives,
          .arrived_bytes = connection.arrived_bytes,
          .progressed_ns = nanoseconds(connection.progressed_at),
          .heard_ns = nanoseconds(connection.heard_at),
          .peer_ipv6 = ipv6_of(connection.peer)};
}

MemberRecord record(const DeviceNic& member) {
  return {.interface = text(member.interface),
          .address = member.address.bytes(),
          .udp_port = member.udp_port,
          .reserved = 0};
}

/// Those of a fused device.
std::span<const DeviceNic> members_of(const DeviceIdentity& device) {
  return device.nics.size() > 1 ? std::span(device.nics) : std::span<const DeviceNic>();
}

/// A table's number of counters.
template <typename Counters>
std::uint32_t number_of(std::span<const Counter<Counters>> table) {
  return static_cast<std::uint32_t>(table.size());
}

DeviceRecord record(const DeviceIdentity& device, const DeviceCounters& counters, const PathClientCounters& client) {
  const DeviceNic& nic = device.nics.front();
  return {.guid = device.guid,
          .interface = text(nic.interface),
          .policy = text(device.policy),
          .address = nic.address.ipv4(),
          .udp_port = nic.udp_port,
          .path_mtu = device.path_mtu,
          .lanes = device.lanes,
          .line_rate_bps = rounded(device.line_rate_bps),
          .connections = counters.connections,
          .peers = counters.peers,
          .ipv6 = ipv6_of(nic.address),
          .connected = client.connected ? 1U : 0U,
          .since_ns = nanoseconds(client.since),
          .message_counters = number_of(message_counters()),
          .discard_counters = number_of(discard_counters()),
          .path_client_counters = number_of(path_client_counters()),
          .connection_bytes = sizeof(ConnectionRecord),
          .connection_count = static_cast<std::uint32_t>(counters.under_way.size()),
          .member_bytes = sizeof(MemberRecord),
          .member_count = static_cast<std::uint32_t>(members_of(device).size()),
          .protocol = nic.transport == Transport::kTcp ? IPPROTO_TCP : IPPROTO_UDP,
          .connections_omitted = counters.under_way_omitted};
}

/// Bytes of the device's record with its counters, its connections and its members.
std::size_t device_bytes(const DeviceIdentity& device, const DeviceCounters& counters) {
  const std::size_t counted = message_counters().size() + discard_counters().size() + path_client_counters().size();
  return sizeof(DeviceRecord) + counted * sizeof(std::uint64_t) + counters.under_way.size() * sizeof(ConnectionRecord) +
         members_of(device).size() * sizeof(MemberRecord);
}

/// Bytes of a lane's record with its counters.
std::size_t lane_bytes() { return sizeof(LaneRecord) + lane_counters().size() * sizeof(std::uint64_t); }

/// Appends a record.
template <typename Record>
void put(std::byte*& out, const Record& record) {
  std::memcpy(out, &record, sizeof record);
  out += sizeof record;
}

/// Appends the counters of a table.
template <typename Counters>
void put_counters(std::byte*& out, std::span<const Counter<Counters>> table, const Counters& counters) {
  for (const Counter<Counters>& counter : table) put(out, counter.get(counters));
}

FileDescriptor open_file() {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, since Linux 6.3; may be insisted on (vm.memfd_noexec)
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  FileDescriptor file(::memfd_create(LiveCounters::kName, kFlags | kNoExecSeal));
  if (!file.valid()) file = FileDescriptor(::memfd_create(LiveCounters::kName, kFlags));
  // Others of this user may read, and may map what they read: it does not shrink under them.
  if (file.valid() && (::fchmod(file.get(), S_IRUSR) != 0 || ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0))
    file.reset();
  return file;
}

/// A hash of 64 bits, by which the publisher sees that nothing changed. Two states with one hash would delay what is
/// published until the next change; with 64 bits this is too unlikely to guard against.
std::size_t hash_of(std::span<const std::byte> bytes) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// Whether a file may have this size. A write beyond RLIMIT_FSIZE sends SIGXFSZ, which kills the process.
bool allowed(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes <= limit.rlim_cur;
}

}  // namespace

LiveCounters::LiveCounters(DeviceIdentity identity) : file_(open_file()), identity_(std::move(identity)) {}

std::vector<std::byte> LiveCounters::encode(const DeviceCounters& counters) const {
  std::vector<std::byte> fresh(kBody + device_bytes(identity_, counters) + counters.lanes.size() * lane_bytes());
  const PathClientCounters client = counters.path_client.value_or(PathClientCounters{});
  std::byte* out = fresh.data() + kBody;
  put(out, record(identity_, counters, client));
  put_counters(out, message_counters(), counters.messages);
  put_counters(out, discard_counters(), counters.discards);
  put_counters(out, path_client_counters(), client);
  for (const ConnectionCounters& connection : counters.under_way) put(out, record(connection));
  for (const DeviceNic& member : members_of(identity_)) put(out, record(member));
  for (const LaneCounters& lane : counters.lanes) {
    put(out, record(lane));
    put_counters(out, lane_counters(), lane);
  }
  return fresh;
}

void LiveCounters::publish(Nanos now, const DeviceCounters& counters) {
  next_ = now + std::max(kEvery, static_cast<Nanos>(counters.lanes.size() + counters.under_way.size()) * kPerRecord);
  std::vector<std::byte> fresh = encode(counters);
  const std::size_t content = hash_of(std::span(fresh).subspan(kBody));
  if (content == published_) return;
  if (!file_.valid() || !allowed(fresh.size())) return;
  Header header{.magic = kMagic,
                .version = kVersion,
                .crc = 0,
                .total_bytes = fresh.size(),
                .generation = ++generation_,
                .time_ns = now,
                .pid = static_cast<std::uint32_t>(::getpid()),
                .header_bytes = sizeof(Header),
                .device_bytes = static_cast<std::uint32_t>(device_bytes(identity_, counters)),
                .lane_bytes = static_cast<std::uint32_t>(lane_bytes()),
                .lane_count = static_cast<std::uint32_t>(counters.lanes.size()),
                .build = build_version_number() << 8U | (static_cast<std::uint32_t>(identity_.backend) + 1)};
  std::memcpy(fresh.data(), &header, sizeof header);
  header.crc =
      crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(fresh.data()) + kCrcFrom, fresh.size() - kCrcFrom);
  std::memcpy(fresh.data(), &header, sizeof header);
  // One call. A concurrent reader that gets a mixture of two snapshots sees a wrong CRC and reads again. A write that
  // failed (no memory) leaves `published_` unchanged, so that the next call tries again.
  const ssize_t written = ::pwrite(file_.get(), fresh.data(), fresh.size(), 0);
  if (written == static_cast<ssize_t>(fresh.size())) published_ = content;
}

}  // namespace paralet
