// SPDX-License-Identifier: Apache-2.0
// Source ports that other programs hold.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/socket_address.hpp"
#include "engine/device_fixture.hpp"
#include "free_ports.hpp"
#include "soft/soft_backend.hpp"
#include "soft/udp_sockets.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

using PortSet = std::set<std::uint16_t>;

/// `soft` on a host where other programs hold all source ports but some. The packets of one port are lost.
class BusyHost final : public SoftBackend {
 public:
  BusyHost(const IpAddress& address, PortSet free) : SoftBackend(options_of(address)), free_(std::move(free)) {}
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t port) override {
    return free_.contains(port) && SoftBackend::connect_qp(qpn, remote, port);
  }
  PortChange set_port(std::uint32_t qpn, std::uint16_t port) override {
    return free_.contains(port) ? SoftBackend::set_port(qpn, port) : PortChange::kRefused;
  }
  std::atomic<int> lost{0};  ///< a port, 0: none

 protected:
  SendResult hand_to_kernel(int fd, const IpAddress& address, std::uint16_t port, std::span<iovec> pieces,
                            std::uint16_t segment_bytes) override {
    SocketAddress own;
    ::getsockname(fd, own.get(), own.length_place());
    if (own.port() == lost) return SendResult::kSent;
    return SoftBackend::hand_to_kernel(fd, address, port, pieces, segment_bytes);
  }

 private:
  static SoftOptions options_of(const IpAddress& address) {
    SoftOptions out;
    out.address = address;
    out.min_timeout = 5 * kMillisecond;
    return out;
  }
  const PortSet free_;
};

std::vector<std::uint16_t> source_ports(Device& device) {
  std::vector<std::uint16_t> out;
  for (const LaneCounters& lane : device.counters().lanes) out.push_back(lane.qp.port);
  return out;
}

PortSet used_ports(Device& device) {
  const std::vector<std::uint16_t> ports = source_ports(device);
  return {ports.begin(), ports.end()};
}

/// That other programs do not hold in truth.
PortSet three_ports() {
  const auto ports = free_ports(3);
  return {ports.begin(), ports.end()};
}

TEST_CASE("lanes find the only free source ports, each one of its own") {
  const PortSet free = three_ports();
  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    DeviceOptions three = options(kA, 3);
    three.policy.seed = seed;
    Device a(three, std::make_unique<BusyHost>(kA, free));
    Device b(options(kB, 3));
    const Joined joined(a, b);
    CHECK(used_ports(a) == free);
    joined.check(10'000);
  }
}

TEST_CASE("lanes share source ports where too few are free") {
  const PortSet free = three_ports();
  Device a(options(kA, 8), std::make_unique<BusyHost>(kA, free));
  Device b(options(kB, 8));
  const Joined joined(a, b);
  CHECK(source_ports(a).size() == 8);
  CHECK(used_ports(a) == free);
  joined.check(100'000);
}

TEST_CASE("without any free source port the error says so") {
  Device a(options(kA, 2), std::make_unique<BusyHost>(kA, PortSet{}));
  Device b(options(kB, 2));
  const auto listener = b.listen();
  CHECK(connect_error(a, listener->handle) ==
        "all UDP source ports 49152 to 65535 of 127.0.0.1 are taken by other programs");
}

TEST_CASE("a source port that cannot be bound for another reason than a taken port is not searched for") {
  SendSockets sockets(0xC0000201);
  CHECK_THROWS_WITH_AS(sockets.acquire({.port = 0xC000}),
                       "cannot send from UDP port 49152 of 192.0.2.1: Cannot assign requested address", DeviceError);
}

TEST_CASE("an adaptive lane on a dead path finds one of few free source ports") {
  PortSet free;
  for (unsigned port = 0xC000; port < 0x10000; port += 512) free.insert(static_cast<std::uint16_t>(port));
  DeviceOptions adaptive = options(kA, 1);
  adaptive.policy.kind = PolicyKind::kAdaptive;
  auto owned = std::make_unique<BusyHost>(kA, free);
  BusyHost& host = *owned;
  Device a(adaptive, std::move(owned));
  Device b(options(kB, 1));
  const Joined joined(a, b);
  joined.check(100);
  const std::uint16_t lost = source_ports(a).front();
  host.lost = lost;
  joined.check(100'000);
  CHECK(source_ports(a).front() != lost);
}

}  // namespace
}  // namespace paralet
