// SPDX-License-Identifier: Apache-2.0
// Connections and peers: shared QPs, negotiated lanes and MTU, idle peers.
#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/backlog.hpp"
#include "engine/device_fixture.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("connections to one peer share its QPs") {
  DevicePair pair;
  const auto listener = pair.b.listen();
  std::vector<ConnectionPtr> mine;
  std::vector<ConnectionPtr> theirs;
  mine.reserve(64);
  theirs.reserve(64);
  for (int i = 0; i < 64; ++i) mine.push_back(pair.a.connect(listener->handle));
  for (const auto& connection : mine) REQUIRE(open(connection));
  for (int i = 0; i < 64; ++i) theirs.push_back(accept(*listener));
  const DeviceCounters counters = pair.a.counters();
  CHECK(counters.connections == 64);
  CHECK(counters.peers == 1);
  CHECK(counters.lanes.size() == 4);
  CHECK(pair.b.counters().lanes.size() == 4);
  // Each connection is a separate stream. accept may return them in another order than connect.
  std::vector<MessagePtr> in;
  std::vector<MessagePtr> out;
  for (std::size_t i = 0; i < 64; ++i) {
    in.push_back(submit(pair.b, theirs[i], Request::Kind::kReceive, Bytes(8)));
    out.push_back(submit(pair.a, mine[i], Request::Kind::kSend, random_fill(i, 8)));
  }
  const auto contents = [](const std::vector<MessagePtr>& messages) {
    std::set<std::string> texts;
    for (const MessagePtr& message : messages) {
      require_done(message);
      texts.insert(to_hex(message->memory));
    }
    return texts;
  };
  CHECK(contents(in) == contents(out));
}

TEST_CASE("dead connections do not pile up before accept, and do not hold up another host's") {
  std::vector<std::string> lines;
  DeviceOptions with_log = options(kB + 1, 1);
  with_log.log = [&lines](const std::string& line) { lines.push_back(line); };
  Device host(with_log);
  const auto waiting = host.listen();
  Device dying(options(kA, 1));
  Device other(options(kB, 1));
  for (std::size_t i = 0; i < Backlog::kMostOfHost + 100; i += 50) {
    std::vector<ConnectionPtr> some;
    some.reserve(50);
    for (int k = 0; k < 50; ++k) some.push_back(dying.connect(waiting->handle));
    for (const ConnectionPtr& connection : some) REQUIRE(open(connection));
    for (const ConnectionPtr& connection : some) dying.close_connection(connection);
    for (const ConnectionPtr& connection : some) {
      REQUIRE(eventually([&] { return connection->state == Connection::State::kClosed; }));
    }
  }
  CHECK(host.counters().connections == Backlog::kMostOfHost);
  CHECK(lines == std::vector<std::string>{"more than 4096 connections from 127.0.0.1 wait to be accepted: those that "
                                          "have ended are forgotten, further ones are refused"});
  const auto alive = other.connect(waiting->handle);
  REQUIRE(open(alive));
  const auto accepted = accept(*waiting);
  CHECK(accepted->peer_address == IpAddress(kB));
  CHECK(accepted->failure == Failure::kNone);
}

TEST_CASE("a connection in the other direction uses the existing QPs") {
  DevicePair pair;
  const Joined there(pair.a, pair.b);
  const Joined back(pair.b, pair.a);
  there.check(10'000);
  back.check(10'000);
  CHECK(pair.a.counters().peers == 1);
  CHECK(pair.b.counters().lanes.size() == 4);
}

TEST_CASE("both sides may connect at the same time") {
  for (int round = 0; round < 5; ++round) {
    DevicePair pair;
    const auto listener_a = pair.a.listen();
    const auto listener_b = pair.b.listen();
    const auto a_to_b = pair.a.connect(listener_b->handle);
    const auto b_to_a = pair.b.connect(listener_a->handle);
    REQUIRE(open(a_to_b));
    REQUIRE(open(b_to_a));
    const auto at_b = accept(*listener_b);
    const auto at_a = accept(*listener_a);
    const auto got_one = submit(pair.b, at_b, Request::Kind::kReceive, Bytes(20'000));
    const auto got_other = submit(pair.a, at_a, Request::Kind::kReceive, Bytes(20'000));
    const auto one = submit(pair.a, a_to_b, Request::Kind::kSend, random_fill(1, 20'000));
    const auto other = submit(pair.b, b_to_a, Request::Kind::kSend, random_fill(2, 20'000));
    for (const auto& request : {got_one, got_other, one, other}) require_done(request);
    CHECK(got_one->memory == one->memory);
    CHECK(got_other->memory == other->memory);
  }
}

TEST_CASE("a device may connect to itself") {
  Device a(options(kA));
  const Joined joined(a, a);
  joined.check(100'000);
  CHECK(a.counters().connections == 2);
}

TEST_CASE("the connecting side sets the number of lanes") {
  for (const auto& lanes : {std::pair{8U, 2U}, std::pair{2U, 8U}, std::pair{1U, 1U}}) {
    const unsigned mine = lanes.first;
    const unsigned theirs = lanes.second;
    CAPTURE(mine);
    CAPTURE(theirs);
    Device a(options(kA, mine));
    Device b(options(kB, theirs));
    const Joined joined(a, b);
    CHECK(a.counters().lanes.size() == mine);
    CHECK(b.counters().lanes.size() == mine);
    joined.check(300'000);
  }
}

TEST_CASE("both sides use the smaller path MTU" * of_soft()) {
  DeviceOptions small = options(kA);
  small.path_mtu = 256;
  DeviceOptions large = options(kB);
  large.path_mtu = 4096;
  Device a(small);
  Device b(large);
  const Joined joined(a, b);
  joined.check(100'000);
  std::uint64_t packets = 0;
  for (const LaneCounters& lane : b.counters().lanes) packets += lane.qp.counters.tx_packets;
  CHECK(packets >= 100'000 / 256);
}

TEST_CASE("QPs of a peer without connections are dropped and created again on demand") {
  DeviceOptions quick = options(kA);
  quick.idle_peer = 50 * kMillisecond;
  Device a(quick);
  Device b(options(kB));
  const auto listener = b.listen();
  for (int round = 0; round < 3; ++round) {
    const auto connection = a.connect(listener->handle);
    REQUIRE(open(connection));
    const auto accepted = accept(*listener);
    CHECK(a.counters().lanes.size() == 4);
    a.close_connection(connection);
    REQUIRE(eventually([&] { return connection->state == Connection::State::kClosed; }));
    CHECK(eventually([&] { return a.counters().lanes.empty() && b.counters().lanes.empty(); }));
    CHECK(eventually([&] { return accepted->failure == Failure::kClosed; }));
  }
}

TEST_CASE("connecting while the peer drops idle QPs works") {
  DeviceOptions quick = options(kB);
  quick.idle_peer = 1 * kMillisecond;
  Device a(options(kA));
  Device b(quick);
  const auto listener = b.listen();
  SplitMix64 random(1);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    const auto connection = a.connect(listener->handle);
    REQUIRE(open(connection));
    accept(*listener);
    a.close_connection(connection);
    REQUIRE(eventually([&] { return connection->state == Connection::State::kClosed; }));
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(120'000)));
  }
}

}  // namespace
}  // namespace paralet
