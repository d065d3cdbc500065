// SPDX-License-Identifier: Apache-2.0
// Changes of a lane's source port, with ports that can change and with ports that are fixed.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "engine/device_fixture.hpp"
#include "free_ports.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("pinned lanes use their ports and can be moved" * of_soft()) {
  DeviceOptions pinned = options(kA, 3);
  pinned.policy.kind = PolicyKind::kPinned;
  const auto free = free_ports(3);
  pinned.policy.ports[kB] = {free[0], free[1]};
  Device a(pinned);
  Device b(options(kB));
  const Joined joined(a, b);
  const auto ports = [&] {
    std::vector<std::uint16_t> out;
    for (const LaneCounters& lane : a.counters().lanes) out.push_back(lane.qp.port);
    return out;
  };
  CHECK(ports() == std::vector<std::uint16_t>{free[0], free[1], free[0]});
  CHECK(a.set_port(kB, 1, free[2]));
  CHECK_FALSE(a.set_port(kB, 3, free[2]));
  CHECK_FALSE(a.set_port(kA, 0, free[2]));
  CHECK(ports() == std::vector<std::uint16_t>{free[0], free[2], free[0]});
  CHECK(a.counters().lanes[1].moves == 1);
  joined.check(500'000);
}

TEST_CASE("a lane changes its port between flowlets only") {
  DeviceOptions slow = options(kA, 1);
  slow.line_rate_bps = 20e6;
  slow.flowlet_bytes = 100'000;
  Device a(slow);
  Device b(options(kB, 1));
  const Joined joined(a, b);
  const Bytes out = random_fill(1, 300'000);
  const auto received = joined.receive(Bytes(out.size()));
  const auto sent = joined.send(out);
  REQUIRE(eventually([&] { return a.counters().lanes[0].qp.counters.tx_packets > 3; }));
  const std::uint16_t before = a.counters().lanes[0].qp.port;
  const std::uint16_t after = free_port();  // not that of the lane
  CHECK(a.set_port(kB, 0, after));
  CHECK(a.counters().lanes[0].qp.port == before);
  CHECK(a.counters().lanes[0].moves == 0);
  require_done(sent);
  require_done(received);
  CHECK(received->memory == out);
  CHECK(a.counters().lanes[0].qp.port == after);
  CHECK(a.counters().lanes[0].moves == 1);
}

/// `soft` with source ports that are fixed when a QP connects, as on a NIC that derives them from the flow label.
class FixedPortBackend final : public SoftBackend {
 public:
  struct Qps {
    std::atomic<int> alive{0};
    std::atomic<int> most{1000};
    std::atomic<int> dead{0};  ///< packets from this source port are lost, 0: none
  };
  FixedPortBackend(const SoftOptions& options, Qps& qps) : SoftBackend(options), qps_(qps) {}
  QpIdentity create_qp() override {
    if (qps_.alive >= qps_.most) throw DeviceError("no more queue pairs");
    ++qps_.alive;
    return SoftBackend::create_qp();
  }
  void destroy_qp(std::uint32_t qpn) override {
    --qps_.alive;
    SoftBackend::destroy_qp(qpn);
  }
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t port) override {
    connecting_ = true;
    const bool connected = SoftBackend::connect_qp(qpn, remote, port);
    connecting_ = false;
    return connected;
  }
  PortChange set_port(std::uint32_t qpn, std::uint16_t port) override {
    return connecting_ ? SoftBackend::set_port(qpn, port) : PortChange::kRefused;
  }
  [[nodiscard]] PortMethod port_method() const override { return PortMethod::kFlowLabel; }

 protected:
  SendResult hand_to_kernel(int fd, const IpAddress& address, std::uint16_t port, std::span<iovec> pieces,
                            std::uint16_t segment_bytes) override {
    sockaddr_in own{};
    socklen_t length = sizeof own;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length);
    if (ntohs(own.sin_port) == qps_.dead) return SendResult::kSent;  // lost on its way
    return SoftBackend::hand_to_kernel(fd, address, port, pieces, segment_bytes);
  }

 private:
  Qps& qps_;
  bool connecting_ = false;
};

/// Two devices with two lanes each and a line rate at which a flowlet takes 4 ms.
struct FixedPortPair {
  static DeviceOptions slow(std::uint32_t address) {
    DeviceOptions out = options(address, 2);
    out.flowlet_bytes = 20'000;
    return out;
  }
  static std::unique_ptr<Backend> backend(std::uint32_t address, FixedPortBackend::Qps& qps) {
    SoftOptions out;
    out.address = address;
    out.line_rate_bps = 40e6;
    return std::make_unique<FixedPortBackend>(out, qps);
  }
  FixedPortBackend::Qps a_qps;
  FixedPortBackend::Qps b_qps;
  Device a{slow(kA), backend(kA, a_qps)};
  Device b{slow(kB), backend(kB, b_qps)};
};

LaneCounters lane_of(Device& device, unsigned index) { return device.counters().lanes.at(index); }

TEST_CASE("with fixed ports a lane moves to a fresh QP, and flowlets on the old QP arrive") {
  FixedPortPair pair;
  const Joined joined(pair.a, pair.b);
  const LaneCounters before = lane_of(pair.a, 0);
  const std::uint16_t other = lane_of(pair.a, 1).qp.port;
  const std::uint16_t of_b = lane_of(pair.b, 0).qp.port;
  const Bytes out = random_fill(3, 400'000);
  const auto received = joined.receive(Bytes(out.size()));
  const auto sent = joined.send(out);
  REQUIRE(eventually([&] { return lane_of(pair.a, 0).qp.counters.tx_packets > 3; }));
  const auto moved_to = [&](std::uint16_t port, std::uint64_t moves) {
    return eventually([&] {
      const LaneCounters lane = lane_of(pair.a, 0);
      return lane.qp.port == port && lane.moves == moves;
    });
  };
  const auto free = free_ports(2);
  CHECK(pair.a.set_port(kB, 0, free[0]));
  CHECK(pair.a.set_port(kB, 0, free[1]));  // follows the first move, which is in progress
  CHECK(moved_to(free[1], 2));
  require_done(sent);
  require_done(received);
  CHECK(received->memory == out);
  CHECK(eventually([&] { return pair.a_qps.alive == 2 && pair.b_qps.alive == 2; }));  // the old QPs were destroyed
  const LaneCounters after = lane_of(pair.a, 0);
  CHECK(after.qpn != before.qpn);
  CHECK(lane_of(pair.a, 1).qp.port == other);
  CHECK(lane_of(pair.b, 0).qp.port == of_b);  // the other side keeps its port
  CHECK(lane_of(pair.b, 0).moves == 0);
  // A lane's counters include its former QPs.
  CHECK(after.qp.counters.tx_bytes + lane_of(pair.a, 1).qp.counters.tx_bytes >= out.size());
  joined.check(100'000);
}

TEST_CASE("with fixed ports both sides may move a lane at the same time, repeatedly, during messages") {
  FixedPortPair pair;
  const Joined joined(pair.a, pair.b);
  const auto free = free_ports(32);
  std::jthread mover([&](const std::stop_token& stop) {
    for (std::size_t next = 0; !stop.stop_requested(); next += 2) {
      for (unsigned lane = 0; lane < 2; ++lane) {
        const std::uint16_t port = free[(next + lane) % free.size()];
        pair.a.set_port(kB, lane, port);
        pair.b.set_port(kA, lane, port);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  const bool moved = eventually([&] {
    joined.check(100'000);
    return lane_of(pair.a, 0).moves > 2 && lane_of(pair.b, 1).moves > 2;
  });
  mover.request_stop();
  mover.join();
  CHECK(moved);
  CHECK(eventually([&] { return pair.a_qps.alive == 2 && pair.b_qps.alive == 2; }));
}

TEST_CASE("with fixed ports flowlets on a dead path arrive on the fresh QP, once each") {
  for (const bool acknowledgements_only : {false, true}) {
    CAPTURE(acknowledgements_only);
    FixedPortPair pair;
    const Joined joined(pair.a, pair.b);
    joined.check(100'000);
    const std::uint16_t dead = lane_of(pair.a, 0).qp.port;
    if (acknowledgements_only) {
      pair.b_qps.dead = lane_of(pair.b, 0).qp.port;
    } else {
      pair.a_qps.dead = dead;
    }
    const Bytes out = random_fill(3, 400'000);
    const auto received = joined.receive(Bytes(out.size()));
    const auto sent = joined.send(out);
    const std::uint64_t before = lane_of(pair.a, 0).qp.counters.tx_packets;
    REQUIRE(eventually([&] { return lane_of(pair.a, 0).qp.counters.tx_packets > before + 3; }));
    const std::uint16_t fresh = free_port();
    CHECK(pair.a.set_port(kB, 0, fresh));
    if (acknowledgements_only) CHECK(pair.b.set_port(kA, 0, free_port()));
    require_done(sent);
    require_done(received);
    CHECK(received->memory == out);
    CHECK(eventually([&] { return pair.a_qps.alive == 2 && pair.b_qps.alive == 2; }));  // the dead QPs were destroyed
    CHECK(lane_of(pair.a, 0).qp.port == fresh);
    joined.check(100'000);
  }
}

TEST_CASE("a lane keeps its port when either NIC has no more QPs") {
  FixedPortPair pair;
  const Joined joined(pair.a, pair.b);
  const std::uint16_t before = lane_of(pair.a, 0).qp.port;
  const std::uint16_t after = free_port();
  for (FixedPortBackend::Qps* full : {&pair.a_qps, &pair.b_qps}) {
    full->most = 2;
    CHECK(pair.a.set_port(kB, 0, after));
    joined.check(50'000);
    CHECK(eventually([&] { return pair.a_qps.alive == 2; }));
    CHECK(lane_of(pair.a, 0).qp.port == before);
    full->most = 1000;
  }
  CHECK(pair.a.set_port(kB, 0, after));
  CHECK(eventually([&] { return lane_of(pair.a, 0).qp.port == after; }));
  joined.check(50'000);
}

TEST_CASE("devices may be closed while lanes move") {
  for (int i = 0; i < 5; ++i) {
    FixedPortPair pair;
    const Joined joined(pair.a, pair.b);
    joined.check(1000);
    CHECK(pair.a.set_port(kB, 0, free_port()));
    CHECK(pair.b.set_port(kA, 0, free_port()));
    (i % 2 == 0 ? pair.a : pair.b).close(0);
    (i % 2 == 0 ? pair.b : pair.a).close(0);
    CHECK(pair.a_qps.alive == 0);
    CHECK(pair.b_qps.alive == 0);
  }
}

}  // namespace
}  // namespace paralet
