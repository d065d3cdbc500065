// SPDX-License-Identifier: Apache-2.0
// Devices whose lanes are TCP connections: what differs from `soft`. The other tests of devices run over TCP too.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"
#include "engine/device_fixture.hpp"
#include "free_ports.hpp"
#include "fused/fused_backend.hpp"
#include "tcp/tcp_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

DeviceOptions over_tcp(const IpAddress& address, unsigned lanes = 4) {
  DeviceOptions out = options(address, lanes);
  out.backend = BackendKind::kTcp;
  return out;
}

std::vector<std::uint16_t> lane_ports(Device& device) {
  std::vector<std::uint16_t> out;
  for (const LaneCounters& lane : device.counters().lanes) out.push_back(lane.qp.port);
  return out;
}

TEST_CASE("pinned lanes over TCP use their ports and can be moved") {
  DeviceOptions pinned = over_tcp(kA, 2);
  pinned.policy.kind = PolicyKind::kPinned;
  const auto free = free_ports(3);
  pinned.policy.ports[kB] = {free[0], free[1]};
  Device a(pinned);
  Device b(over_tcp(kB));
  const Joined joined(a, b);
  CHECK(lane_ports(a) == std::vector<std::uint16_t>{free[0], free[1]});
  joined.check(500'000);
  CHECK(a.set_port(kB, 1, free[2]));
  REQUIRE(eventually([&] { return lane_ports(a) == std::vector<std::uint16_t>{free[0], free[2]}; }));
  joined.check(500'000);
  CHECK(a.counters().lanes[1].moves == 1);
  CHECK(a.set_port(kB, 1, free[1]));  // the port that it had a moment ago
  REQUIRE(eventually([&] { return lane_ports(a) == std::vector<std::uint16_t>{free[0], free[1]}; }));
  joined.check(500'000);
}

TEST_CASE("the error for a TCP port that another program holds names the port") {
  const FileDescriptor held(::socket(AF_INET, SOCK_STREAM, 0));
  const std::uint16_t port = free_port();
  REQUIRE(::bind(held.get(), SocketAddress(kA, port).get(), SocketAddress::kRoom) == 0);
  DeviceOptions pinned = over_tcp(kA, 1);
  pinned.policy.kind = PolicyKind::kPinned;
  pinned.policy.ports[kB] = {port};
  Device a(pinned);
  Device b(over_tcp(kB, 1));
  const std::string why = "TCP source port " + std::to_string(port) +
                          " of 127.0.0.1 is taken by another program, or by another lane to the same peer";
  CHECK(connect_error(a, b.listen()->handle) == why);
  CHECK(connect_error(b, a.listen()->handle) == "127.0.0.1 refused: " + why);
}

TEST_CASE("a device with more pinned lanes uses those that its peer has set up") {
  const auto with_ports = [](std::uint32_t own, std::uint32_t peer, unsigned lanes) {
    DeviceOptions out = over_tcp(own, lanes);
    out.policy.kind = PolicyKind::kPinned;
    out.policy.ports[peer] = free_ports(lanes);
    return out;
  };
  Device a(with_ports(kA, kB, 2));
  Device b(with_ports(kB, kA, 3));
  const Joined first(a, b);
  const Joined second(b, a);
  first.check(100'000);
  second.check(100'000);
  for (Device* device : {&a, &b}) {
    CHECK(device->counters().peers == 1);
    CHECK(device->counters().lanes.size() == 2);
  }
}

TEST_CASE("devices with different lanes refuse each other, and both say why") {
  std::atomic<int> said{0};
  std::string sentence;
  const auto hears = [&](DeviceOptions given) {
    given.log = [&](const std::string& text) {
      sentence = text;
      ++said;
    };
    return given;
  };
  DeviceOptions udp = options(kB);
  udp.backend = BackendKind::kSoft;
  Device tcp(hears(over_tcp(kA)));
  Device soft(hears(udp));
  const std::string soft_says =
      "the lanes of 127.0.0.2 are RoCEv2 (back end soft or verbs), those of 127.0.0.1 TCP connections (back end tcp): "
      "name one back end for both, with PARALET_BACKEND";
  const std::string tcp_says =
      "the lanes of 127.0.0.1 are TCP connections (back end tcp), those of 127.0.0.2 RoCEv2 (back end soft or verbs): "
      "name one back end for both, with PARALET_BACKEND";
  CHECK(connect_error(tcp, soft.listen()->handle) == "127.0.0.2 refused: " + soft_says);
  REQUIRE(eventually([&] { return said == 1; }));
  CHECK(sentence == "127.0.0.2 refused 127.0.0.1: " + soft_says);
  CHECK(connect_error(soft, tcp.listen()->handle) == "127.0.0.1 refused: " + tcp_says);
  REQUIRE(eventually([&] { return said == 2; }));
  CHECK(sentence == "127.0.0.1 refused 127.0.0.2: " + tcp_says);
}

TEST_CASE("connections that are cut in the middle of messages lose nothing") {
  DeviceOptions one = over_tcp(kA);
  DeviceOptions other = over_tcp(kB);
  one.faults = other.faults = {.cut = 0.1, .seed = 1};
  Device a(one);
  Device b(other);
  const Joined joined(a, b);
  for (const std::size_t bytes : {0, 100, 300'000, 3'000'000}) joined.check(bytes);
  std::vector<MessagePtr> requests;
  for (std::uint64_t i = 0; i < 60; ++i) {
    requests.push_back(joined.receive(Bytes(10'000)));
    requests.push_back(joined.send(random_fill(i, 10'000)));
  }
  for (std::size_t i = 0; i < requests.size(); i += 2) {
    require_done(requests[i]);
    require_done(requests[i + 1]);
    CHECK(requests[i]->memory == requests[i + 1]->memory);
  }
  CHECK(a.counters().discards.injected + b.counters().discards.injected > 0);
}

TEST_CASE("adaptive lanes over TCP leave dead paths, and what was lost there arrives") {
  DeviceOptions adaptive = over_tcp(kA, 8);  // so many that some of their paths are dead
  adaptive.policy.kind = PolicyKind::kAdaptive;
  adaptive.policy.seed = 1;
  DeviceOptions other = over_tcp(kB, 8);
  other.faults = {.dead = 0.5, .dead_after = 1, .seed = 5};
  Device a(adaptive);
  Device b(other);
  const Joined joined(a, b);
  const std::vector<std::uint16_t> before = lane_ports(a);
  for (std::uint64_t i = 0; i < 100; ++i) {
    const auto received = joined.receive(Bytes(100'000));
    const auto sent = joined.send(random_fill(i, 100'000));
    require_done(sent);
    require_done(received);
    CHECK(received->memory == sent->memory);
  }
  CHECK(b.counters().discards.injected > 0);
  CHECK(lane_ports(a) != before);
}

TEST_CASE("a peer that is not heard is given up after retry_time") {
  DeviceOptions deaf = over_tcp(kB);
  deaf.faults = {.dead = 1, .dead_after = 0, .seed = 1};  // nothing of A arrives
  Device b(deaf);
  DeviceOptions one = over_tcp(kA);
  one.retry_time = 500 * kMillisecond;
  Device a(one);
  const Joined joined(a, b);
  const auto receiving = joined.receive_back(Bytes(100));  // its advertisement is never acknowledged
  CHECK(error_of(receiving).find("the peer did not answer within the retry time") != std::string::npos);
  CHECK(receiving->failure == Failure::kTransport);
}

/// A fused device of two members over TCP. What comes to member 1 is lost after some work requests of each lane if
/// `dies`.
std::unique_ptr<Device> fused_over_tcp(std::uint32_t first, bool dies) {
  DeviceOptions device = over_tcp(first);
  device.fused_with = {IpAddress(first + 0x100)};
  device.flowlet_bytes = 20'000;
  device.log = [](const std::string&) {};
  std::vector<std::unique_ptr<Backend>> members;
  for (const std::uint32_t member : {first, first + 0x100}) {
    TcpOptions settings;
    settings.sockets.address = member;
    settings.min_timeout = 50 * kMillisecond;
    if (dies && member != first) settings.faults = {.dead = 1, .dead_after = 30, .seed = 1};
    members.push_back(std::make_unique<TcpBackend>(settings));
  }
  return std::make_unique<Device>(device, std::make_unique<FusedBackend>(std::move(members)));
}

TEST_CASE("lanes of fused devices over TCP use all members") {
  const auto a = fused_over_tcp(0x7F000101, false);
  const auto b = fused_over_tcp(0x7F000102, false);
  const Joined joined(*a, *b);
  for (int i = 0; i < 10; ++i) joined.check(400'000);
  std::set<unsigned> used;
  for (const LaneCounters& lane : a->counters().lanes) {
    if (lane.qp.counters.tx_bytes > 20'000) used.insert(lane.member);
  }
  CHECK(used == std::set<unsigned>{0, 1});
}

TEST_CASE("lanes of a member that dies go over the other, and nothing is lost or comes twice") {
  const auto a = fused_over_tcp(0x7F000101, false);
  const auto b = fused_over_tcp(0x7F000102, true);
  const Joined joined(*a, *b);
  REQUIRE(eventually([&] {
    joined.check(400'000);
    const auto lanes = a->counters().lanes;
    return std::ranges::all_of(lanes, [](const LaneCounters& lane) { return lane.member == 0; });
  }));
  joined.check(1'000'000);
}

}  // namespace
}  // namespace paralet
