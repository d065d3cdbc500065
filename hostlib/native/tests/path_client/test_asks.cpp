// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "path_client/asks.hpp"

namespace paralet::path_client {
namespace {

constexpr PeerName kAskedPeer = 0x0A000102;
constexpr std::uint32_t kRouter = 0xAC100001;

ProbeAsk ask_for(std::uint64_t number, std::vector<std::uint16_t> ports, double rate = 0) {
  return {.ask = number, .peer = kAskedPeer, .ttl = 3, .ports = std::move(ports), .rate = rate};
}

ProbedPort hop(std::uint16_t port) {
  return {.port = port, .answer = PortAnswer::kHop, .router = kRouter, .round_trip = kMillisecond};
}

std::vector<std::uint16_t> leaving(Asks& asks, Nanos now) {
  std::vector<std::uint16_t> out;
  while (const auto due = asks.next(now)) out.push_back(due->port);
  return out;
}

using SourcePorts = std::vector<std::uint16_t>;

TEST_CASE("an ask is answered once, when all of its ports are settled, in the order of the ask") {
  Asks asks;
  REQUIRE(asks.add(ask_for(7, {50001, 50000}), 0));
  CHECK(leaving(asks, 0) == SourcePorts{50001, 50000});
  asks.settled(7, hop(50000));
  CHECK(asks.take_answered().empty());
  asks.settled(7, hop(50001));
  const auto answered = asks.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].ask == 7);
  CHECK(answered[0].answers == std::vector<ProbedPort>{hop(50001), hop(50000)});
  CHECK(asks.take_answered().empty());
  CHECK(asks.deadline() == kNever);
}

TEST_CASE("a port that nobody answers is probed three times") {
  Asks asks;
  asks.add(ask_for(1, {50000}), 0);
  const ProbedPort none{.port = 50000, .answer = PortAnswer::kNone};
  for (unsigned i = 0; i < Asks::kAttempts; ++i) {
    CHECK(asks.take_answered().empty());
    CHECK(leaving(asks, 0) == SourcePorts{50000});
    asks.settled(1, none);
  }
  CHECK(leaving(asks, 0).empty());
  const auto answered = asks.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].answers == std::vector<ProbedPort>{none});
}

TEST_CASE("a port that is probed again may be answered by any probe that has left since the ask came") {
  Asks asks;
  asks.add(ask_for(1, {50000}), 5);
  for (Nanos now = 7; now < 9; ++now) {
    const auto due = asks.next(now);
    REQUIRE(due);
    CHECK(due->since == 5);
    asks.settled(1, {.port = 50000, .answer = PortAnswer::kNone});
  }
}

TEST_CASE("a port that is asked for once is probed once") {
  Asks asks;
  ProbeAsk ask = ask_for(1, {50000});
  ask.once = true;
  asks.add(ask, 0);
  const auto due = asks.next(0);
  REQUIRE(due);
  CHECK(due->once);
  const ProbedPort none{.port = 50000, .answer = PortAnswer::kNone};
  asks.settled(1, none);
  CHECK(leaving(asks, 0).empty());
  const auto answered = asks.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].answers == std::vector<ProbedPort>{none});
}

TEST_CASE("ports are probed two at a time until one of the routers that are sought has answered") {
  Asks asks;
  ProbeAsk ask = ask_for(1, {50000, 50001, 50002, 50003, 50004});
  ask.until = {IpAddress(kRouter + 7), IpAddress(kRouter)};
  asks.add(ask, 0);
  CHECK(leaving(asks, 0) == SourcePorts{50000, 50001});
  CHECK(asks.deadline() == Asks::kLongest);
  ProbedPort other = hop(50001);
  other.router = IpAddress(kRouter + 1);
  asks.settled(1, other);
  CHECK(asks.deadline() <= 0);
  CHECK(leaving(asks, 0) == SourcePorts{50002});
  CHECK(asks.take_answered().empty());
  asks.settled(1, hop(50000));
  const auto answered = asks.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].answers == std::vector<ProbedPort>{hop(50000), other});
  asks.settled(1, hop(50002));  // it was under way
  CHECK(leaving(asks, 0).empty());
  CHECK(asks.take_answered().empty());
  CHECK(asks.deadline() == kNever);
}

TEST_CASE("a search ends when no port is left, and says what came of each") {
  Asks asks;
  ProbeAsk ask = ask_for(1, {50000, 50001, 50002});
  ask.until = {IpAddress(kRouter)};
  ask.once = true;
  asks.add(ask, 0);
  std::vector<ProbedPort> none;
  for (const std::uint16_t port : ask.ports) none.push_back({.port = port, .answer = PortAnswer::kNone});
  CHECK(leaving(asks, 0).size() == 2);
  asks.settled(1, none[0]);
  asks.settled(1, none[1]);
  CHECK(leaving(asks, 0) == SourcePorts{50002});
  asks.settled(1, none[2]);
  const auto answered = asks.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].answers == none);
}

TEST_CASE("a probe that failed is not tried again") {
  Asks asks;
  asks.add(ask_for(1, {50000}), 0);
  leaving(asks, 0);
  asks.settled(1, {.port = 50000, .answer = PortAnswer::kFailed});
  CHECK(asks.take_answered().size() == 1);
}

TEST_CASE("an ask's rate paces its packets, and no other ask's") {
  Asks asks;
  asks.add(ask_for(1, {50000, 50001, 50002}, 10), kSecond);
  asks.add(ask_for(2, {50003, 50004}), kSecond);
  CHECK(leaving(asks, kSecond) == SourcePorts{50000, 50003, 50004});
  CHECK(asks.deadline() > kSecond);
  CHECK(asks.deadline() <= kSecond + kSecond / 10 + kMillisecond);
  CHECK(leaving(asks, asks.deadline()) == SourcePorts{50001});
}

TEST_CASE("after five seconds an ask is answered with what is known, and its probes concern nobody") {
  Asks asks;
  asks.add(ask_for(1, {50000, 50001, 50002, 50003}, 1), 0);
  CHECK(leaving(asks, 0) == SourcePorts{50000});
  asks.settled(1, hop(50000));
  CHECK(leaving(asks, 2 * kSecond) == SourcePorts{50001});
  asks.settled(1, {.port = 50001, .answer = PortAnswer::kNone});
  CHECK(leaving(asks, 4 * kSecond) == SourcePorts{50002});
  CHECK(asks.expire(Asks::kLongest - 1).empty());
  CHECK(asks.deadline() <= Asks::kLongest);
  const auto dropped = asks.expire(Asks::kLongest);
  REQUIRE(dropped.size() == 1);
  CHECK(dropped[0].port == 50002);
  const auto answered = asks.take_answered();
  REQUIRE(answered.size() == 1);
  const auto& answers = answered[0].answers;
  CHECK(answers[0] == hop(50000));
  CHECK(answers[1].answer == PortAnswer::kNone);
  CHECK(answers[2].answer == PortAnswer::kFailed);  // its answer may yet come: nothing is known
  CHECK(answers[3].answer == PortAnswer::kFailed);
  asks.settled(1, hop(50002));
  CHECK(asks.take_answered().empty());
}

TEST_CASE("an ask beyond the limit is answered at once, and a number that is open is refused") {
  Asks asks;
  for (std::uint64_t i = 0; i < Asks::kMostOpen; ++i) REQUIRE(asks.add(ask_for(i, {50000}), 0));
  CHECK_FALSE(asks.add(ask_for(3, {50001}), 0));
  CHECK(asks.take_answered().empty());
  CHECK(asks.add(ask_for(64, {50001, 50002}), 0));
  const auto answered = asks.take_answered();
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].ask == 64);
  CHECK(answered[0].answers.size() == 2);
  CHECK(answered[0].answers[0].answer == PortAnswer::kFailed);
}

TEST_CASE("what concerns no probe that is out changes nothing") {
  Asks asks;
  asks.add(ask_for(1, {50000}), 0);
  asks.settled(1, hop(50000));  // not out yet
  asks.settled(1, hop(50009));
  asks.settled(2, hop(50000));
  CHECK(asks.take_answered().empty());
  CHECK(leaving(asks, 0) == SourcePorts{50000});
}

}  // namespace
}  // namespace paralet::path_client
