// SPDX-License-Identifier: Apache-2.0
// Congestion notification packets (CNP, IBTA annex A17.9.3): a soft back end beside a peer that counts no marks, as a
// NIC. Time is an argument; only the arrival of packets over loopback is waited for.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "free_ports.hpp"
#include "soft/soft_backend.hpp"
#include "udp_endpoint.hpp"

namespace paralet {
namespace {

using test::Bytes;
using wire::Opcode;

constexpr std::uint32_t kOurs = 0x7F000001;
constexpr std::uint32_t kTheirs = 0x7F000002;
constexpr std::uint32_t kTheirQpn = 0x123456;
constexpr std::uint32_t kSmallMtu = 256;
constexpr Ece kNic{.vendor_id = 0x15B3, .options = 0x10000000, .comp_mask = 1};

SoftOptions ours() {
  SoftOptions out;
  out.address = kOurs;
  return out;
}

class Scene {
 public:
  explicit Scene(const Ece& ece = kNic) : qp_(backend.create_qp()) {
    REQUIRE(backend.connect_qp(qp_.qpn, remote(ece), test::free_port()));
  }

  [[nodiscard]] QpCounters counters() const { return backend.statistics(qp_.qpn).counters; }
  [[nodiscard]] double window() const { return backend.statistics(qp_.qpn).window; }

  /// Progress at the time `now_` until the condition holds.
  void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      backend.progress(now_, done_);
    }
  }

  /// An empty WRITE of the peer, which comes with or without a mark. It is acknowledged.
  void request(bool marked) {
    const wire::Header header = wire::data_header(Opcode::kWriteOnly, qp_.qpn, psn_++, true, 0, 0, 0, 0, 0);
    const std::uint64_t before = counters().rx_packets;
    send({header.bytes.data(), header.length}, marked ? marking_ : peer_);
    until([&] { return counters().rx_packets > before; });
    backend.settle(now_);
  }

  void notify(std::uint32_t qpn) {
    const wire::Header header = wire::cnp_header(qpn);
    send({header.bytes.data(), header.length}, peer_);
  }

  /// Posts a long WRITE, and acknowledges its packets as they come, after a CNP for each if `notified`.
  void transfer(std::size_t packets, bool notified) {
    static const Bytes data(std::size_t{1} << 20);
    REQUIRE(packets * kSmallMtu <= data.size());
    backend.post(qp_.qpn, {.data = data.data(), .length = static_cast<std::uint32_t>(packets * kSmallMtu), .rkey = 1});
    const std::uint64_t acknowledged = backend.statistics(qp_.qpn).acknowledged_packets + packets;
    for (int steps = 0; backend.statistics(qp_.qpn).acknowledged_packets < acknowledged; ++steps) {
      REQUIRE(steps < 1'000'000);
      const Nanos deadline = backend.deadline(now_);
      REQUIRE(deadline != kNever);
      now_ = std::max(now_, deadline) + kMicrosecond;
      backend.progress(now_, done_);
      backend.flush(now_);
      now_ += 100 * kMicrosecond;
      while (seen_ < counters().tx_packets) {
        Bytes datagram;
        until([&] {
          const auto bytes = peer_.receive();
          datagram.assign(bytes.begin(), bytes.end());
          return !datagram.empty();
        });
        wire::Packet packet;
        REQUIRE(wire::parse(datagram, packet) == wire::ParseError::kNone);
        if (static_cast<Opcode>(packet.opcode) == Opcode::kAcknowledge) continue;
        ++seen_;
        if (notified) notify(qp_.qpn);
        if (!packet.ack_request) continue;
        const wire::Header ack = wire::ack_header(qp_.qpn, packet.psn, 0x1F, 0);
        const std::uint64_t before = backend.statistics(qp_.qpn).acknowledged_packets + counters().stale_acks;
        send({ack.bytes.data(), ack.length}, peer_);
        until([&] { return backend.statistics(qp_.qpn).acknowledged_packets + counters().stale_acks > before; });
      }
    }
  }

  /// The packets that have come from the back end, in hexadecimal without their ICRC, up to the acknowledgement of the
  /// newest request.
  std::vector<std::string> heard() {
    std::vector<std::string> out;
    until([&] {
      for (auto datagram = peer_.receive(); !datagram.empty(); datagram = peer_.receive()) {
        wire::Packet packet;
        if (wire::parse(datagram, packet) == wire::ParseError::kNone) acknowledged_ = packet.psn + 1;
        out.push_back(test::to_hex(datagram.first(datagram.size() - wire::kIcrcBytes)));
      }
      return acknowledged_ == psn_;
    });
    return out;
  }

  void pass(Nanos time) { now_ += time; }
  [[nodiscard]] std::uint32_t qpn() const { return qp_.qpn; }

  SoftBackend backend{ours()};

 private:
  [[nodiscard]] RemoteQp remote(const Ece& ece) const {
    return {.address = kTheirs,
            .udp_port = peer_.port(),
            .qpn = kTheirQpn,
            .first_psn = 0,
            .path_mtu = kSmallMtu,
            .ece = ece};
  }
  void send(std::span<const std::byte> transport, const fuzz::UdpEndpoint& from) {
    Bytes packet(transport.begin(), transport.end());
    packet.resize(packet.size() + wire::kIcrcBytes);
    from.seal(packet, kOurs, backend.udp_port());
    from.send(kOurs, backend.udp_port(), packet);
  }

  fuzz::UdpEndpoint peer_{kTheirs};
  fuzz::UdpEndpoint marking_{kTheirs, wire::kEcnCe};
  QpIdentity qp_;
  std::uint32_t psn_ = 0;           ///< of the peer's next request
  std::uint32_t acknowledged_ = 0;  ///< one past the newest that the back end has acknowledged
  std::uint64_t seen_ = 0;          ///< packets of transfers
  Nanos now_ = kSecond;
  std::vector<Completion> done_;
};

std::size_t notifications(const std::vector<std::string>& packets) {
  return static_cast<std::size_t>(std::ranges::count(packets,
                                                     "8140ffff"
                                                     "40123456"
                                                     "00000000"
                                                     "00000000000000000000000000000000"));
}

TEST_CASE("a peer that counts no marks gets a congestion notification, at most one per 50 us") {
  Scene scene;
  scene.request(false);
  CHECK(notifications(scene.heard()) == 0);
  for (int i = 0; i < 3; ++i) scene.request(true);
  const auto packets = scene.heard();
  CHECK(notifications(packets) == 1);
  CHECK(packets.size() > 1);  // the others are acknowledgements
  scene.pass(49 * kMicrosecond);
  scene.request(true);
  CHECK(notifications(scene.heard()) == 0);
  scene.pass(1 * kMicrosecond);
  scene.request(true);
  scene.request(false);
  CHECK(notifications(scene.heard()) == 1);
}

TEST_CASE("a peer that counts marks gets no congestion notification") {
  Scene scene(soft_ece(kMarkCounts));
  scene.request(true);
  const auto packets = scene.heard();
  CHECK(notifications(packets) == 0);
  CHECK(packets.size() == 1);
}

TEST_CASE("congestion notifications make the window small, and it grows again when they end") {
  Scene scene;
  scene.transfer(200, false);
  const double before = scene.window();
  CHECK(before > 16);
  scene.transfer(400, true);
  const double slowed = scene.window();
  CHECK(slowed < 4);
  CHECK(scene.counters().tx_marked > 0);
  CHECK(scene.backend.discards().cnps >= scene.counters().tx_marked);
  scene.transfer(2000, false);
  CHECK(scene.window() > 2 * slowed);
}

TEST_CASE("notifications without packets in flight, for unknown QPs and for peers that count marks change nothing") {
  Scene idle;
  const double before = idle.window();
  for (int i = 0; i < 100; ++i) idle.notify(idle.qpn());
  idle.until([&] { return idle.backend.discards().cnps == 100; });
  idle.notify(idle.qpn() ^ 1);
  idle.until([&] { return idle.backend.discards().unknown_qp == 1; });
  CHECK(idle.window() == before);
  CHECK(idle.counters().tx_marked == 0);
}

}  // namespace
}  // namespace paralet
