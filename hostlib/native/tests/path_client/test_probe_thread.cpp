// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"
#include "free_ports.hpp"
#include "path_client/probe_thread.hpp"
#include "wire/wire.hpp"

namespace paralet::path_client {
namespace {

constexpr std::uint32_t kProber = 0x7F000001;
constexpr std::uint32_t kProbed = 0x7F000002;

/// A socket that takes probes in silence, as a receiver does.
struct Silent {
  Silent() : socket(::socket(AF_INET, SOCK_DGRAM, 0)) {
    const SocketAddress any(kProbed, 0);
    REQUIRE(::bind(socket.get(), any.get(), any.length()) == 0);
    SocketAddress own;
    socklen_t length = SocketAddress::kRoom;
    REQUIRE(::getsockname(socket.get(), own.get(), &length) == 0);
    port = own.port();
  }
  /// By source port, the destination QPNs of the next packets.
  [[nodiscard]] std::map<std::uint16_t, std::uint32_t> qpns(std::size_t packets) const {
    std::map<std::uint16_t, std::uint32_t> out;
    for (std::size_t i = 0; i < packets; ++i) {
      std::array<std::byte, 256> packet;
      SocketAddress from;
      socklen_t length = SocketAddress::kRoom;
      REQUIRE(::recvfrom(socket.get(), packet.data(), packet.size(), 0, from.get(), &length) >= 12);
      out[from.port()] = wire::get_u32(packet.data() + 4);
    }
    return out;
  }
  FileDescriptor socket;
  std::uint16_t port = 0;
};

TEST_CASE("a probe carries the QPN of the lane that has its port, and a new one as soon as the QP is another") {
  const Silent peer;
  const PeerName name(kProbed, peer.port);
  ProbeTotals totals;
  ProbeThread thread({.from = kProber, .limits = {.rate = 0, .router_rate = 0, .attempts = 1}}, totals, [] {});
  const std::vector<std::uint16_t> ports = test::free_ports(3);
  const auto probed = [&](std::uint64_t ask) {
    thread.order(ProbeAsk{.ask = ask, .peer = name, .ttl = 4, .ports = ports});
    return peer.qpns(ports.size());
  };
  using Qpns = std::map<std::uint16_t, std::uint32_t>;
  CHECK(probed(1) == Qpns{{ports[0], kSomeQpn}, {ports[1], kSomeQpn}, {ports[2], kSomeQpn}});
  thread.order(PeerLanes{.peer = name, .qpns = {17, 18}, .ports = {ports[0], ports[1]}});
  // The first ask's packets may be sent again meanwhile: nobody answers them.
  const auto later = [&](std::uint64_t ask, const Qpns& wanted) {
    Qpns seen = probed(ask);
    for (int i = 0; i < 64 && seen != wanted; ++i) {
      for (const auto& [port, qpn] : peer.qpns(1)) seen[port] = qpn;
    }
    return seen;
  };
  CHECK(later(2, {{ports[0], 17}, {ports[1], 18}, {ports[2], 17}}) ==
        Qpns{{ports[0], 17}, {ports[1], 18}, {ports[2], 17}});
  thread.order(PeerLanes{.peer = name, .qpns = {17, 99}, .ports = {ports[0], ports[1]}});
  CHECK(later(3, {{ports[0], 17}, {ports[1], 99}, {ports[2], 17}}) ==
        Qpns{{ports[0], 17}, {ports[1], 99}, {ports[2], 17}});
}

}  // namespace
}  // namespace paralet::path_client
