// SPDX-License-Identifier: Apache-2.0
// Reads snapshots as another process does: through /proc, at the offsets in hostlib/snapshots.py.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/build.hpp"
#include "bytes.hpp"
#include "engine/counter_table.hpp"
#include "engine/device.hpp"
#include "engine/live_counters.hpp"

namespace paralet {
namespace {

using test::Bytes;

constexpr std::size_t kHeader = 64;
constexpr std::size_t kDeviceFields = 160;
const std::size_t kMessages = kHeader + kDeviceFields;  // where the device's counters begin
const std::size_t kDiscards = kMessages + 8 * message_counters().size();
const std::size_t kPathClient = kDiscards + 8 * discard_counters().size();
const std::size_t kDevice = kPathClient + 8 * path_client_counters().size() - kHeader;
constexpr std::size_t kConnection = 152;
constexpr std::size_t kLaneFields = 104;
const std::size_t kLane = kLaneFields + 8 * lane_counters().size();
constexpr std::size_t kMember = 40;

template <typename Number>
Number at(const Bytes& bytes, std::size_t offset) {
  Number number{};
  REQUIRE(offset + sizeof number <= bytes.size());
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

std::string text_at(const Bytes& bytes, std::size_t offset) {
  REQUIRE(offset + 16 <= bytes.size());
  return {reinterpret_cast<const char*>(bytes.data()) + offset};
}

/// CRC-32 of IEEE 802.3, bit by bit, independent of the library.
std::uint32_t crc32(std::span<const std::byte> bytes) {
  std::uint32_t state = 0xFFFFFFFF;
  for (const std::byte b : bytes) {
    state ^= std::to_integer<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0xEDB88320 : 0);
  }
  return ~state;
}

FileDescriptor open_by_name(const LiveCounters& live) {
  return FileDescriptor(::open(("/proc/self/fd/" + std::to_string(live.fd())).c_str(), O_RDONLY | O_CLOEXEC));
}

Bytes everything(const FileDescriptor& file) {
  Bytes bytes(1 << 17);
  const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), 0);
  REQUIRE(got >= 0);
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

/// A snapshot with a correct CRC; nullopt when it changed during the read.
std::optional<Bytes> whole(const FileDescriptor& file) {
  Bytes bytes = everything(file);
  REQUIRE(bytes.size() >= kHeader);
  const auto total = at<std::uint64_t>(bytes, 16);
  if (total > bytes.size()) return std::nullopt;
  bytes.resize(total);
  if (at<std::uint32_t>(bytes, 12) != crc32(std::span(bytes).subspan(16))) return std::nullopt;
  return bytes;
}

DeviceIdentity identity() {
  DeviceIdentity out;
  out.guid.fill(std::byte{0xAB});
  out.backend = BackendKind::kVerbs;
  out.policy = "adaptive";
  out.nics = {{.interface = "a-name-of-sixteen", .address = 0x7F000001, .udp_port = 4791}};
  out.path_mtu = 4096;
  out.lanes = 8;
  out.line_rate_bps = 25e9;
  return out;
}

/// Every number of lane i is i + 1000 times its position: first its fields, then its counters.
LaneCounters lane(unsigned i) {
  std::uint64_t n = 0;
  const auto next = [&n, i] { return i + std::uint64_t{1000} * n++; };
  LaneCounters out;
  out.peer = 0x7F000002;
  out.lane = i;
  out.qpn = 0x123456 + i;
  out.method = PortMethod::kModifyQp;
  out.qp.port = static_cast<std::uint16_t>(50000 + i);
  out.qp.window = static_cast<double>(next()) / 1000;
  out.qp.smoothed_rtt = static_cast<Nanos>(next());
  out.qp.min_rtt = static_cast<Nanos>(next());
  out.unfinished = static_cast<unsigned>(next());
  out.outstanding_bytes = next();
  out.waiting_since = static_cast<Nanos>(next());
  out.member = static_cast<unsigned>(next());
#define LANE_COUNTER(name, meaning) out.name = next();
#define QP_COUNTER(name, meaning) out.qp.counters.name = next();
#include "base/counters.inc"
  return out;
}

/// Every number after the GUID is 100 i plus its position in the record.
ConnectionCounters connection(unsigned i) {
  std::uint64_t n = std::uint64_t{100} * i;
  ConnectionCounters out;
  out.peer_guid.fill(std::byte{0xCD});
  out.peer = static_cast<std::uint32_t>(n++);
  out.peer_port = static_cast<std::uint16_t>(n++);
  out.id = static_cast<std::uint32_t>(n++);
  out.remote_id = static_cast<std::uint32_t>(n++);
  out.state = Connection::State::kClosing;
  ++n;
  out.send_tag = static_cast<std::uint32_t>(n++);
  out.advertised_tag = static_cast<std::uint32_t>(n++);
  out.receive_tag = static_cast<std::uint32_t>(n++);
  out.sends = n++;
  out.advertisements = n++;
  out.early = n++;
  out.in_flight = n++;
  out.posted = n++;
  out.unposted = n++;
  out.unfinished_bytes = n++;
  out.receives = n++;
  out.arrived_bytes = n++;
  out.progressed_at = static_cast<Nanos>(n++);
  out.heard_at = static_cast<Nanos>(n);
  return out;
}

DeviceCounters counters(unsigned lanes) {
  DeviceCounters out;
  for (unsigned i = 0; i < lanes; ++i) out.lanes.push_back(lane(i));
  out.connections = 1;
  out.peers = 2;
  std::uint64_t n = 3;
#define MESSAGE_COUNTER(name, meaning) out.messages.name = n++;
#define DISCARD_COUNTER(name, meaning) out.discards.name = n++;
#include "base/counters.inc"
  return out;
}

TEST_CASE("a snapshot has every counter at its documented offset") {
  LiveCounters live(identity());
  live.publish(kSecond, counters(3));
  const auto snapshot = whole(open_by_name(live));
  REQUIRE(snapshot);
  const Bytes& bytes = *snapshot;
  CHECK(std::memcmp(bytes.data(), "paralet\0", 8) == 0);
  CHECK(at<std::uint32_t>(bytes, 8) == 2);
  CHECK(bytes.size() == kHeader + kDevice + 3 * kLane);
  CHECK(at<std::uint64_t>(bytes, 24) == 1);
  CHECK(at<std::int64_t>(bytes, 32) == kSecond);
  CHECK(at<std::uint32_t>(bytes, 40) == static_cast<std::uint32_t>(::getpid()));
  CHECK(at<std::uint32_t>(bytes, 44) == kHeader);
  CHECK(at<std::uint32_t>(bytes, 48) == kDevice);
  CHECK(at<std::uint32_t>(bytes, 52) == kLane);
  CHECK(at<std::uint32_t>(bytes, 56) == 3);

  CHECK(at<std::uint32_t>(bytes, 60) == (build_version_number() << 8U | 3));
  CHECK(at<std::uint64_t>(bytes, kHeader) == 0xABABABABABABABABULL);
  CHECK(text_at(bytes, kHeader + 16) == "a-name-of-sixte");
  CHECK(text_at(bytes, kHeader + 32) == "adaptive");
  CHECK(at<std::uint32_t>(bytes, kHeader + 48) == 0x7F000001);
  CHECK(at<std::uint32_t>(bytes, kHeader + 52) == 4791);
  CHECK(at<std::uint32_t>(bytes, kHeader + 56) == 4096);
  CHECK(at<std::uint32_t>(bytes, kHeader + 60) == 8);
  CHECK(at<std::uint64_t>(bytes, kHeader + 64) == 25'000'000'000);
  for (unsigned n = 1; n <= 2; ++n) CHECK(at<std::uint64_t>(bytes, kHeader + 64 + std::size_t{8} * n) == n);
  CHECK(at<std::uint32_t>(bytes, kHeader + 120) == message_counters().size());
  CHECK(at<std::uint32_t>(bytes, kHeader + 124) == discard_counters().size());
  CHECK(at<std::uint32_t>(bytes, kHeader + 128) == path_client_counters().size());
  for (std::size_t place = kMessages; place < kPathClient; place += 8) {
    CHECK(at<std::uint64_t>(bytes, place) == 3 + (place - kMessages) / 8);
  }

  for (unsigned i = 0; i < 3; ++i) {
    const std::size_t row = kHeader + kDevice + i * kLane;
    CHECK(at<std::uint32_t>(bytes, row) == 0x7F000002);
    CHECK(at<std::uint32_t>(bytes, row + 4) == i);
    CHECK(at<std::uint32_t>(bytes, row + 8) == 0x123456 + i);
    CHECK(at<std::uint32_t>(bytes, row + 12) == 50000 + i);
    CHECK(text_at(bytes, row + 16) == "modify_qp");
    for (std::size_t place = 48; place < kLane; place += 8) {
      CHECK(at<std::uint64_t>(bytes, row + place) == i + 1000 * (place - 48) / 8);
    }
  }
}

TEST_CASE("the counters of policy controller follow the device's; they are zero with other policies") {
  LiveCounters live(identity());
  DeviceCounters with = counters(1);
  live.publish(kSecond, with);
  const auto none = whole(open_by_name(live));
  REQUIRE(none);
  const auto numbers = [](const Bytes& bytes) {
    std::vector<std::uint64_t> out = {at<std::uint64_t>(bytes, kHeader + 104), at<std::uint64_t>(bytes, kHeader + 112)};
    for (std::size_t place = kPathClient; place < kHeader + kDevice; place += 8) {
      out.push_back(at<std::uint64_t>(bytes, place));
    }
    return out;
  };
  CHECK(numbers(*none) == std::vector<std::uint64_t>(2 + path_client_counters().size(), 0));
  std::uint64_t n = 3;
  PathClientCounters client{.connected = true, .since = 2};
#define PATH_CLIENT_COUNTER(name, meaning) client.name = n++;
#include "base/counters.inc"
  with.path_client = client;
  live.publish(2 * kSecond, with);
  const auto all = whole(open_by_name(live));
  REQUIRE(all);
  const std::vector<std::uint64_t> got = numbers(*all);
  for (std::size_t place = 0; place < got.size(); ++place) CHECK(got[place] == place + 1);
}

TEST_CASE("connections under way follow the device's fields") {
  LiveCounters live(identity());
  DeviceCounters with = counters(2);
  with.under_way = {connection(1), connection(2)};
  with.under_way_omitted = 5;
  live.publish(kSecond, with);
  const auto snapshot = whole(open_by_name(live));
  REQUIRE(snapshot);
  const Bytes& bytes = *snapshot;
  REQUIRE(bytes.size() == kHeader + kDevice + 2 * kConnection + 2 * kLane);
  CHECK(at<std::uint32_t>(bytes, 48) == kDevice + 2 * kConnection);
  CHECK(at<std::uint32_t>(bytes, kHeader + 132) == kConnection);
  CHECK(at<std::uint32_t>(bytes, kHeader + 136) == 2);
  CHECK(at<std::uint64_t>(bytes, kHeader + 152) == 5);
  for (unsigned i = 1; i <= 2; ++i) {
    const std::size_t row = kHeader + kDevice + (i - 1) * kConnection;
    CHECK(at<std::uint64_t>(bytes, row) == 0xCDCDCDCDCDCDCDCDULL);
    for (unsigned n = 0; n < 8; ++n)
      CHECK(at<std::uint32_t>(bytes, row + 16 + std::size_t{4} * n) == (n == 4 ? 2 : 100 * i + n));
    for (unsigned n = 8; n < 19; ++n)
      CHECK(at<std::uint64_t>(bytes, row + 48 + std::size_t{8} * (n - 8)) == 100 * i + n);
  }
  CHECK(at<std::uint32_t>(bytes, kHeader + kDevice + 2 * kConnection) == 0x7F000002);  // the first lane
}

TEST_CASE("the members of a fused device end its record") {
  DeviceIdentity device = identity();
  device.nics.push_back({.interface = "eth1", .address = 0x0A010001, .udp_port = 50001});
  LiveCounters live(device);
  live.publish(kSecond, counters(1));
  const auto snapshot = whole(open_by_name(live));
  REQUIRE(snapshot);
  const std::size_t first = kHeader + kDevice;
  REQUIRE(snapshot->size() == first + 2 * kMember + kLane);
  CHECK(at<std::uint32_t>(*snapshot, kHeader + 140) == kMember);
  CHECK(at<std::uint32_t>(*snapshot, kHeader + 144) == 2);
  CHECK(text_at(*snapshot, first) == "a-name-of-sixte");
  const std::size_t second = first + kMember;
  CHECK(text_at(*snapshot, second) == "eth1");
  IpAddress::Bytes address{};
  std::memcpy(address.data(), snapshot->data() + second + 16, address.size());
  CHECK(IpAddress(address) == IpAddress(0x0A010001));
  CHECK(at<std::uint32_t>(*snapshot, second + 32) == 50001);
}

TEST_CASE("IPv6 addresses have a field of their own, which is zero where the address is an IPv4 one") {
  const auto ipv6_at = [](const Bytes& bytes, std::size_t offset) {
    IpAddress::Bytes out{};
    REQUIRE(offset + out.size() <= bytes.size());
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return IpAddress(out);
  };
  for (const bool ipv6 : {false, true}) {
    CAPTURE(ipv6);
    DeviceIdentity device = identity();
    DeviceCounters with = counters(1);
    with.under_way = {connection(1)};
    if (ipv6) {
      device.nics[0].address = *parse_address("fd00::1");
      with.lanes[0].peer = *parse_address("fd00::2");
      with.under_way[0].peer = *parse_address("fd00::3");
    }
    LiveCounters live(device);
    live.publish(kSecond, with);
    const auto snapshot = whole(open_by_name(live));
    REQUIRE(snapshot);
    const std::size_t one = kHeader + kDevice;  // the connection
    const std::size_t row = one + kConnection;  // the lane
    const auto expected = [ipv6](const char* text) { return ipv6 ? *parse_address(text) : IpAddress(); };
    CHECK(ipv6_at(*snapshot, kHeader + 88) == expected("fd00::1"));
    CHECK(ipv6_at(*snapshot, row + 32) == expected("fd00::2"));
    CHECK(ipv6_at(*snapshot, row - 16) == expected("fd00::3"));
    CHECK((at<std::uint32_t>(*snapshot, kHeader + 48) == 0) == ipv6);
    CHECK((at<std::uint32_t>(*snapshot, row) == 0) == ipv6);
    CHECK((at<std::uint32_t>(*snapshot, one + 16) == 0) == ipv6);
  }
}

TEST_CASE("an unchanged snapshot is not written") {
  LiveCounters live(identity());
  const FileDescriptor file = open_by_name(live);
  CHECK(everything(file).empty());
  live.publish(kSecond, counters(2));
  const Bytes first = everything(file);
  live.publish(2 * kSecond, counters(2));
  CHECK(everything(file) == first);
  DeviceCounters changed = counters(2);
  ++changed.lanes[1].qp.counters.stale_acks;
  live.publish(3 * kSecond, changed);
  const Bytes second = everything(file);
  CHECK(at<std::uint64_t>(second, 24) == 2);
  CHECK(at<std::int64_t>(second, 32) == 3 * kSecond);
}

TEST_CASE("the snapshot grows and shrinks with the number of lanes") {
  LiveCounters live(identity());
  const FileDescriptor file = open_by_name(live);
  std::uint64_t generation = 0;
  for (const unsigned lanes : {0, 300, 2, 301}) {
    live.publish(kSecond, counters(lanes));
    const auto snapshot = whole(file);
    REQUIRE(snapshot);
    CHECK(snapshot->size() == kHeader + kDevice + lanes * kLane);
    CHECK(at<std::uint64_t>(*snapshot, 24) == ++generation);
  }
}

TEST_CASE("a snapshot is due ten times a second, less often with thousands of lanes and connections") {
  LiveCounters live(identity());
  CHECK(live.due(0));
  live.publish(kSecond, counters(8));
  CHECK_FALSE(live.due(kSecond + LiveCounters::kEvery - 1));
  CHECK(live.due(kSecond + LiveCounters::kEvery));
  DeviceCounters large = counters(20'000);
  large.under_way.assign(1000, connection(1));
  live.publish(kSecond, large);
  CHECK_FALSE(live.due(kSecond + 21'000 * LiveCounters::kPerRecord - 1));
  CHECK(live.due(kSecond + 21'000 * LiveCounters::kPerRecord));
}

TEST_CASE("others may only read the file, and it never shrinks") {
  LiveCounters live(identity());
  live.publish(kSecond, counters(1));
  struct stat status {};
  REQUIRE(::fstat(live.fd(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0400);
  CHECK(status.st_nlink == 0);
  CHECK((::fcntl(live.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::ftruncate(live.fd(), 0) == -1);
}

TEST_CASE("a default-constructed LiveCounters is never due") {
  const LiveCounters none;
  CHECK_FALSE(none.due(kSecond));
  LiveCounters gone(identity());
  const int fd = gone.fd();
  gone = {};
  CHECK_FALSE(gone.due(kSecond));
  CHECK(::fcntl(fd, F_GETFD) == -1);
}

TEST_CASE("a limit on file sizes suppresses the snapshot and does not kill the process") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  LiveCounters live(identity());
  const FileDescriptor file = open_by_name(live);
  const rlimit small{.rlim_cur = 300, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  live.publish(kSecond, counters(2));
  const bool empty = everything(file).empty();
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(empty);
  live.publish(kSecond, counters(2));
  CHECK(whole(file));
}

TEST_CASE("a concurrent reader gets a consistent snapshot") {
  LiveCounters live(identity());
  live.publish(kSecond, counters(0));
  const FileDescriptor file = open_by_name(live);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (unsigned round = 1; !stop; ++round) {
      DeviceCounters same = counters(64 + round % 2);
      for (LaneCounters& each : same.lanes) each.flowlets = round;
      live.publish(kSecond, same);
    }
  });
  bool consistent = true;
  for (unsigned seen = 0; seen < 200;) {
    const auto snapshot = whole(file);
    if (!snapshot) continue;
    ++seen;
    const std::size_t lanes = (snapshot->size() - kHeader - kDevice) / kLane;
    for (std::size_t i = 1; i < lanes; ++i) {
      const auto flowlets = [&](std::size_t n) {
        return at<std::uint64_t>(*snapshot, kHeader + kDevice + n * kLane + kLaneFields);
      };
      consistent = consistent && flowlets(i) == flowlets(0);
    }
  }
  stop = true;
  writer.join();
  CHECK(consistent);
}

}  // namespace
}  // namespace paralet
