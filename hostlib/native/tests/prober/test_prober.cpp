// SPDX-License-Identifier: Apache-2.0
// Probes over the loopback interface, where no router is: the destination answers, or nobody.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

#include "base/socket_address.hpp"
#include "engine/device_fixture.hpp"
#include "free_ports.hpp"
#include "prober/prober.hpp"

namespace paralet::prober {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

constexpr Limits kFast{.rate = 0, .router_rate = 0, .timeout = 50 * kMillisecond, .attempts = 2};
const IpAddress kLoopback6(IpAddress::Bytes{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1});

/// A bound socket that receives nothing, and its port.
struct Bound {
  explicit Bound(const IpAddress& address, int type = SOCK_DGRAM) : socket(::socket(family_of(address), type, 0)) {
    SocketAddress local(address, 0);
    REQUIRE(::bind(socket.get(), local.get(), local.length()) == 0);
    REQUIRE(::getsockname(socket.get(), local.get(), local.length_place()) == 0);
    port = local.port();
  }
  FileDescriptor socket;
  std::uint16_t port = 0;
};

std::vector<Observation> probe(Prober& prober, const Target& target, std::uint16_t source_port) {
  prober.add(Probe{.target = prober.add(target), .source_port = source_port, .ttl = 9});
  const Nanos until = now() + 10 * kSecond;
  REQUIRE(prober.run(until));
  CHECK(now() < until);  // it waits no longer than for the last answer
  return prober.take_observations();
}

TEST_CASE("a closed port shows that a probe has reached its destination, by UDP and TCP, IPv4 and IPv6") {
  for (const IpAddress& address : {IpAddress(kA), kLoopback6}) {
    for (const Protocol protocol : {Protocol::kUdp, Protocol::kTcp}) {
      CAPTURE(format_address(address));
      Prober prober(kFast);
      const auto seen = probe(
          prober, {.from = address, .to = address, .destination_port = free_port(), .protocol = protocol}, free_port());
      REQUIRE(seen.size() == 1);
      CHECK(seen[0].answer == Answer::kDestination);
      CHECK(seen[0].router == address);
      CHECK(seen[0].answered_at > seen[0].sent_at);
      CHECK(prober.counters().mismatched == 0);
    }
  }
}

TEST_CASE("a TCP port that listens is the destination, and its connection is reset") {
  const Bound listening(kA, SOCK_STREAM);
  REQUIRE(::listen(listening.socket.get(), 1) == 0);
  Prober prober(kFast);
  const auto seen = probe(
      prober, {.from = kA, .to = kA, .destination_port = listening.port, .protocol = Protocol::kTcp}, free_port());
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].answer == Answer::kDestination);
}

TEST_CASE("a port that takes the probe is silence, which is repeated and told") {
  const Bound open(kA);
  Prober prober(kFast);
  const auto seen = probe(prober, {.from = kA, .to = kA, .destination_port = open.port}, free_port());
  REQUIRE(seen.size() == 2);
  CHECK(seen[1].answer == Answer::kNone);
  CHECK_FALSE(seen[1].router);
  CHECK(prober.counters().sent == 2);
}

TEST_CASE("a source port that another program holds is a failure with its reason") {
  const Bound other(kA);
  Prober prober(kFast);
  CHECK(probe(prober, {.from = kA, .to = kA, .destination_port = free_port()}, other.port).empty());
  const auto failures = prober.take_failures();
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].error == EADDRINUSE);
  CHECK_FALSE(failures[0].router);
}

TEST_CASE("nobody sends from an address that this host does not have") {
  Prober prober(kFast);
  CHECK(probe(prober, {.from = 0xC0000201, .to = kA, .destination_port = 9}, 50000).empty());
  REQUIRE(prober.take_failures().size() == 1);
}

TEST_CASE("a caller with a loop of its own is told when to call again") {
  const Bound open(kA);
  Prober prober(kFast);
  CHECK(prober.poll(now()) == kNever);
  prober.add(Probe{.target = prober.add(Target{.from = kA, .to = kA, .destination_port = open.port}),
                   .source_port = free_port(),
                   .ttl = 1});
  Nanos at = now();
  for (int i = 0; i < 10 && !prober.idle(); ++i) at = prober.poll(at);
  CHECK(prober.idle());
  CHECK(prober.take_observations().size() == 2);
}

TEST_CASE("soft drops probes for each of two reasons, and messages arrive among them" * of_soft()) {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const Discards before = pair.b.counters().discards;
  const std::uint32_t qpn = pair.b.counters().lanes[0].qpn;
  const Target target{.from = kA, .to = kB, .destination_port = pair.b.udp_port()};
  Prober prober({.rate = 0, .router_rate = 0, .timeout = 50 * kMillisecond, .attempts = 1});
  const std::size_t number = prober.add(target);
  constexpr std::uint64_t kProbes = 200;
  for (const std::uint16_t port : free_ports(kProbes)) {
    prober.add(Probe{.target = number, .source_port = port, .ttl = 3, .qpn = qpn});
  }
  while (!prober.run(now() + kMillisecond)) joined.check(10'000);
  const std::uint64_t sent = prober.counters().sent;
  CHECK(sent > kProbes / 2);  // other programs may have taken some of the ports since free_ports looked at them
  CHECK(eventually([&] { return pair.b.counters().discards.malformed - before.malformed == sent; }));

  // The wrong ICRC alone is enough: the same from a port of the QP's peer, in the default partition.
  const Bound sender(kA);
  Payload payload = payload_of(target, {.source_port = sender.port, .ttl = 3, .qpn = qpn}, 7);
  wire::put_u16(payload.data() + 2, wire::kDefaultPkey);
  const SocketAddress to(kB, target.destination_port);
  REQUIRE(::sendto(sender.socket.get(), payload.data(), payload.size(), 0, to.get(), to.length()) == kPayloadBytes);
  CHECK(eventually([&] { return pair.b.counters().discards.icrc - before.icrc == 1; }));
  joined.check(100'000);
}

}  // namespace
}  // namespace paralet::prober
