// SPDX-License-Identifier: Apache-2.0
// Two devices that connect to each other at the same moment.
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "base/interfaces.hpp"
#include "engine/fused_fixture.hpp"
#include "free_ports.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

/// GUIDs are random, so a number of rounds has each of the two devices come first, whoever began.
constexpr int kRounds = 12;

using Ports = std::vector<std::uint16_t>;

/// A device that pins its lanes: over TCP it can have only one set of them to a peer.
DeviceOptions pinning(const IpAddress& own, const IpAddress& other, const Ports& ports, unsigned lanes = 2) {
  DeviceOptions out = options(own, lanes);
  out.policy.kind = PolicyKind::kPinned;
  out.policy.ports[other] = {ports.begin(), ports.begin() + lanes};
  return out;
}

void exchange(Device& one, const ConnectionPtr& to, Device& two, Listener& listener) {
  const ConnectionPtr from = accept(listener);
  for (const bool there : {true, false}) {
    const Bytes data = random_fill(1, 50'000);
    const auto receiving = submit(there ? two : one, there ? from : to, Request::Kind::kReceive, Bytes(data.size()));
    require_done(submit(there ? one : two, there ? to : from, Request::Kind::kSend, data));
    require_done(receiving);
    CHECK(receiving->memory == data);
  }
}

/// Both connect at once, and use both connections.
void cross(Device& a, Device& b, bool a_first) {
  const auto at_a = a.listen();
  const auto at_b = b.listen();
  Device& first = a_first ? a : b;
  Device& second = a_first ? b : a;
  const auto outgoing = first.connect((a_first ? at_b : at_a)->handle);
  const auto incoming = second.connect((a_first ? at_a : at_b)->handle);
  REQUIRE_MESSAGE(open(outgoing), outgoing->error);
  REQUIRE_MESSAGE(open(incoming), incoming->error);
  exchange(first, outgoing, second, a_first ? *at_b : *at_a);
  exchange(second, incoming, first, a_first ? *at_a : *at_b);
}

void check_one_set_of_lanes(Device& device) {
  CHECK(eventually([&device] { return device.counters().peers == 1; }));
  CHECK(device.counters().lanes.size() == device.options().policy.lanes);
}

TEST_CASE("devices that connect to each other at once share their lanes, also pinned ones") {
  const IpAddress local6 = *parse_address("::1");
  if (!interface_of(local6)) MESSAGE("skipped over IPv6: the loopback interface has no address ::1");
  for (const bool ipv6 : {false, true}) {
    if (ipv6 && !interface_of(local6)) continue;
    const IpAddress at_a = ipv6 ? local6 : IpAddress(kA);
    const IpAddress at_b = ipv6 ? local6 : IpAddress(kB);
    const Ports of_a = free_ports(2);
    const Ports of_b = free_ports(2);
    for (int round = 0; round < kRounds; ++round) {
      CAPTURE(round);
      Device a(pinning(at_a, at_b, of_a));
      Device b(pinning(at_b, at_a, of_b));
      cross(a, b, round % 2 == 0);
      check_one_set_of_lanes(a);
      check_one_set_of_lanes(b);
    }
  }
}

std::uint64_t packets_of(Device& device) {
  std::uint64_t sent = 0;
  for (const LaneCounters& lane : device.counters().lanes) sent += lane.qp.counters.tx_packets;
  return sent;
}

TEST_CASE("devices that have connected to each other at once send nothing over their lanes yet" * of_soft()) {
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    DeviceOptions patient = options(kA);
    patient.retry_time = 300 * kSecond;  // a quarter of it passes before a quiet peer is pinged
    Device a(patient);
    patient.address = IpAddress(kB);
    Device b(patient);
    const auto at_a = a.listen();
    const auto at_b = b.listen();
    const auto to_b = a.connect(at_b->handle);
    const auto to_a = b.connect(at_a->handle);
    REQUIRE_MESSAGE(open(to_b), to_b->error);
    REQUIRE_MESSAGE(open(to_a), to_a->error);
    CHECK(packets_of(a) + packets_of(b) == 0);
  }
}

TEST_CASE("devices with different numbers of lanes that connect to each other at once use both connections") {
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    const bool more = round / 2 % 2 == 0;
    Device a(options(kA, more ? 3 : 2));
    Device b(options(kB, more ? 2 : 3));
    cross(a, b, round % 2 == 0);
  }
}

TEST_CASE("devices that pin different numbers of lanes and connect to each other at once use both connections") {
  const Ports of_a = free_ports(3);
  const Ports of_b = free_ports(3);
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    const bool more = round / 2 % 2 == 0;
    Device a(pinning(kA, kB, of_a, more ? 3 : 2));
    Device b(pinning(kB, kA, of_b, more ? 2 : 3));
    cross(a, b, round % 2 == 0);
  }
}

TEST_CASE("fused devices that connect to each other at once share their lanes") {
  const Deaths deaths{};
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    Device a(fused_options(0, 2), fused_backend(0, 2, deaths));
    Device b(fused_options(1, 2), fused_backend(1, 2, deaths));
    cross(a, b, round % 2 == 0);
    check_one_set_of_lanes(a);
    check_one_set_of_lanes(b);
  }
}

TEST_CASE("a connection is opened though the peer's own, begun at once, is refused") {
  const Ports of_a = free_ports(2);
  const Ports of_b = free_ports(2);
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    Device a(pinning(kA, kB, of_a));
    Device b(pinning(kB, kA, of_b));
    const auto at_a = a.listen();
    const auto at_b = b.listen();
    const auto gone = b.listen();
    b.stop_listening(gone);
    const auto refused = a.connect(gone->handle);
    const auto opened = b.connect(at_a->handle);
    REQUIRE_MESSAGE(open(opened), opened->error);
    exchange(b, opened, a, *at_a);
    REQUIRE(!open(refused));
    CHECK(refused->error.starts_with("127.0.0.2 refused: nobody listens there any more"));
  }
}

}  // namespace
}  // namespace paralet
