// SPDX-License-Identifier: Apache-2.0
// Devices with IPv6 addresses. All share ::1, so only the first receives on port 4791.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "engine/device_fixture.hpp"
#include "free_ports.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

const IpAddress kLocal = *parse_address("::1");

/// False, and says so, where the kernel has no IPv6.
bool has_ipv6() {
  const bool has = interface_of(kLocal).has_value();
  if (!has) MESSAGE("skipped: the loopback interface has no address ::1");
  return has;
}

TEST_CASE("messages of all sizes pass between IPv6 addresses") {
  if (!has_ipv6()) return;
  Device a(options(kLocal));
  Device b(options(kLocal));
  const Joined joined(a, b);
  for (const std::size_t bytes : {0U, 1U, 5000U, 300'000U, 3'000'000U}) joined.check(bytes);
  const DeviceCounters counters = a.counters();
  CHECK(counters.discards.icrc == 0);
  CHECK(counters.discards.malformed == 0);
  REQUIRE(counters.lanes.size() == 4);
  CHECK(std::ranges::all_of(counters.lanes, [](const LaneCounters& lane) { return lane.peer == kLocal; }));
  CHECK(joined.from->peer_address == kLocal);
}

TEST_CASE("messages pass between IPv6 addresses over a link that loses, reorders, duplicates and damages packets" *
          of_soft()) {
  if (!has_ipv6()) return;
  DeviceOptions faulty = options(kLocal);
  faulty.faults = {.drop = 0.02, .duplicate = 0.02, .reorder = 0.02, .corrupt = 0.02, .seed = 7};
  Device a(faulty);
  Device b(faulty);
  const Joined joined(a, b);
  for (int i = 0; i < 10; ++i) joined.check(200'000);
  CHECK(b.counters().discards.icrc > 0);
}

TEST_CASE("a lane between IPv6 addresses has the chosen port, and moves") {
  if (!has_ipv6()) return;
  DeviceOptions pinned = options(kLocal, 2);
  pinned.policy.kind = PolicyKind::kPinned;
  const auto free = free_ports(3);
  pinned.policy.ports[kLocal] = {free[0], free[1]};
  Device a(pinned);
  Device b(options(kLocal, 2));
  const Joined joined(a, b);
  joined.check(300'000);
  const auto ports = [&] {
    std::vector<std::uint16_t> out;
    for (const LaneCounters& lane : a.counters().lanes) out.push_back(lane.qp.port);
    return out;
  };
  CHECK(ports() == std::vector<std::uint16_t>{free[0], free[1]});
  CHECK(a.set_port(kLocal, 1, free[2]));
  joined.check(300'000);
  CHECK(ports() == std::vector<std::uint16_t>{free[0], free[2]});
}

TEST_CASE("an IPv4 device and an IPv6 device do not connect, and the error says why") {
  if (!has_ipv6()) return;
  Device four(options(kA));
  Device six(options(kLocal));
  const auto to_six = four.connect(six.listen()->handle);
  CHECK_FALSE(open(to_six));
  CHECK(to_six->error == "cannot connect from 127.0.0.1 to ::1: one is an IPv4 address, the other an IPv6 address");
  const auto to_four = six.connect(four.listen()->handle);
  CHECK_FALSE(open(to_four));
  CHECK(to_four->error == "cannot connect from ::1 to 127.0.0.1: one is an IPv4 address, the other an IPv6 address");
}

TEST_CASE("a device with an IPv6 address takes its ports from the path service") {
  if (!has_ipv6()) return;
  DeviceOptions planned = options(kLocal);
  planned.policy.kind = PolicyKind::kController;
  planned.policy.path_client.service = "[::1]:4792";
  planned.policy.path_client.token = "0123456789abcdef";
  CHECK_NOTHROW(Device{planned});
}

}  // namespace
}  // namespace paralet
