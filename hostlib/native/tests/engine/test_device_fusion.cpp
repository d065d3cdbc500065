// SPDX-License-Identifier: Apache-2.0
// Several NICs as one device: lanes over all members, and what happens when one of them fails.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "base/file_descriptor.hpp"
#include "engine/fused_fixture.hpp"
#include "fused/fused_backend.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("lane i starts on member i mod k, and messages go over all members") {
  for (const unsigned members : {2U, 3U, 4U}) {
    CAPTURE(members);
    FusedPair pair(members, 5);
    const Joined joined(pair.a, pair.b);
    use_all(joined, members);
    for (unsigned i = 0; i < 5; ++i) {
      CHECK(members_of(pair.a)[i] == i % members);
      CHECK(members_of(pair.b)[i] == i % members);
    }
    for (const std::size_t bytes : {0U, 1U, 4096U, 300'001U}) joined.check(bytes);
  }
}

TEST_CASE("many receives of a fused device are advertised with the keys of all members") {
  FusedPair pair(2);
  const Joined joined(pair.a, pair.b);
  use_all(joined, 2);
  constexpr std::size_t kCount = 100;
  std::vector<MessagePtr> in;
  std::vector<MessagePtr> out;
  for (std::size_t i = 0; i < kCount; ++i) in.push_back(joined.receive(Bytes(3000)));
  for (std::size_t i = 0; i < kCount; ++i) out.push_back(joined.send(random_fill(i, 3000)));
  for (std::size_t i = 0; i < kCount; ++i) {
    require_done(in[i]);
    require_done(out[i]);
    CHECK(in[i]->memory == out[i]->memory);
  }
}

TEST_CASE("with another number of members, or with one NIC, only member 0 is used") {
  Deaths deaths{};
  Device two(fused_options(0, 2), fused_backend(0, 2, deaths));
  Device three(fused_options(1, 3), fused_backend(1, 3, deaths));
  Device one(options(kB, kLanes));
  const std::vector<unsigned> zeros(kLanes);
  const auto check = [&](Device& connecting, Device& listening) {
    const Joined joined(connecting, listening);
    joined.check(300'000);
    for (const unsigned member : members_of(connecting)) CHECK(member == 0);
    for (const unsigned member : members_of(listening)) CHECK(member == 0);
  };
  SUBCASE("another number") { check(two, three); }
  SUBCASE("one NIC listens") { check(two, one); }
  SUBCASE("one NIC connects") { check(one, two); }
}

TEST_CASE("when a member dies its lanes go over the other, nothing is lost, and they return") {
  for (const unsigned dead : {0U, 1U}) {
    CAPTURE(dead);
    FusedPair pair(2);
    const Joined joined(pair.a, pair.b);
    use_all(joined, 2);
    const auto receive = joined.receive(Bytes(3'000'000));
    const auto receive_back = joined.receive_back(Bytes(3'000'000));
    const auto send = joined.send(random_fill(7, 3'000'000));
    const auto send_back = joined.send_back(random_fill(8, 3'000'000));
    pair.deaths[dead] = true;
    for (const auto& request : {receive, receive_back, send, send_back}) require_done(request);
    CHECK(receive->memory == send->memory);
    CHECK(receive_back->memory == send_back->memory);
    const std::vector<unsigned> others(kLanes, 1 - dead);
    REQUIRE(eventually([&] {
      joined.check(100'000);
      return members_of(pair.a) == others && members_of(pair.b) == others;
    }));
    pair.deaths[dead] = false;
    const std::vector<unsigned> homes{0, 1, 0, 1};
    REQUIRE(eventually([&] {
      joined.check(100'000);
      return members_of(pair.a) == homes && members_of(pair.b) == homes;
    }));
    joined.check(1'000'000);
  }
}

TEST_CASE("a member that dies while only one side sends is left too") {
  FusedPair pair(2);
  const Joined joined(pair.a, pair.b);
  use_all(joined, 2);
  pair.deaths[1] = true;
  const std::vector<unsigned> others(kLanes, 0);
  REQUIRE(eventually([&] {
    const Bytes out = random_fill(9, 500'000);
    const auto received = joined.receive_back(Bytes(out.size()));
    require_done(joined.send_back(out));
    require_done(received);
    CHECK(received->memory == out);
    return members_of(pair.a) == others && members_of(pair.b) == others;
  }));
}

TEST_CASE("one member dies, returns, and then the other dies") {
  FusedPair pair(2);
  const Joined joined(pair.a, pair.b);
  use_all(joined, 2);
  for (const unsigned dead : {0U, 1U, 0U}) {
    CAPTURE(dead);
    pair.deaths[dead] = true;
    const std::vector<unsigned> others(kLanes, 1 - dead);
    REQUIRE(eventually([&] {
      joined.check(200'000);
      return members_of(pair.a) == others && members_of(pair.b) == others;
    }));
    pair.deaths[dead] = false;
    const std::vector<unsigned> homes{0, 1, 0, 1};
    REQUIRE(eventually([&] {
      joined.check(200'000);
      return members_of(pair.a) == homes && members_of(pair.b) == homes;
    }));
  }
}

TEST_CASE("a lane takes another port where its own is taken on the other member") {
  for (const unsigned side : {0U, 1U}) {
    CAPTURE(side);
    FusedPair pair(2);
    const Joined joined(pair.a, pair.b);
    use_all(joined, 2);
    const std::uint16_t port = (side == 0 ? pair.a : pair.b).counters().lanes.at(1).qp.port;
    const FileDescriptor taken(::socket(AF_INET, SOCK_DGRAM, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(0x7F000101 + side * 0x100);
    REQUIRE(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    pair.deaths[1] = true;
    const std::vector<unsigned> others(kLanes, 0);
    REQUIRE(eventually([&] {
      joined.check(200'000);
      return members_of(pair.a) == others && members_of(pair.b) == others;
    }));
  }
}

TEST_CASE("a peer that dies with all members is given up after the retry time") {
  Deaths deaths{};
  DeviceOptions short_time = fused_options(0, 2);
  short_time.retry_time = 300 * kMillisecond;
  std::vector<std::unique_ptr<Backend>> all;
  for (unsigned i = 0; i < 2; ++i) {
    SoftOptions member;
    member.address = member_address(0, i);
    member.retry_time = short_time.retry_time;
    member.min_timeout = 50 * kMillisecond;
    all.push_back(std::make_unique<MortalBackend>(member, deaths[i], nullptr));
  }
  Device a(short_time, std::make_unique<FusedBackend>(std::move(all)));
  Device b(fused_options(1, 2), fused_backend(1, 2, deaths));
  const Joined joined(a, b);
  use_all(joined, 2);
  deaths[0] = deaths[1] = true;
  const auto received = joined.receive(Bytes(100'000));
  const std::string error = error_of(joined.send(Bytes(100'000)));
  CHECK_MESSAGE(error.find("within the retry time") != std::string::npos, error);
}

TEST_CASE("a path that never opens is reported once, and messages go over the others") {
  for (const unsigned member : {0U, 1U}) {
    CAPTURE(member);
    Deaths deaths{};
    std::atomic<int> reports{0};
    DeviceOptions connecting = fused_options(0, 2);
    connecting.log = [&](const std::string& sentence) {
      if (sentence.find(format_address(member_address(1, member)) + " does not open") != std::string::npos) ++reports;
    };
    Device a(connecting, fused_backend(0, 2, deaths));
    Device b(fused_options(1, 2), fused_backend(1, 2, deaths));
    const auto listener = b.listen();
    handshake::Handle handle = *handshake::decode_handle(listener->handle);
    (member == 0 ? handle.tcp_port : handle.further.front().tcp_port) = 1;  // nobody listens there
    const auto first = a.connect(handshake::encode(handle));
    REQUIRE(open(first));
    const Joined joined(a, b);  // the same peer
    CHECK(eventually([&] { return reports == 1; }));
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);  // two more attempts at least
    while (std::chrono::steady_clock::now() < until) joined.check(100'000);
    CHECK(reports == 1);
    CHECK(flowlets_over(a, member) == 0);
  }
}

TEST_CASE("no path opens, and the connection fails with the reason") {
  FusedPair pair(2);
  const auto listener = pair.b.listen();
  handshake::Handle handle = *handshake::decode_handle(listener->handle);
  handle.tcp_port = handle.further.front().tcp_port = 1;  // nobody listens there
  CHECK(connect_error(pair.a, handshake::encode(handle)).find("Connection refused") != std::string::npos);
}

TEST_CASE("a close of the peer is noticed at once") {
  Deaths deaths{};
  auto b = std::make_unique<Device>(fused_options(1, 2), fused_backend(1, 2, deaths));
  Device a(fused_options(0, 2), fused_backend(0, 2, deaths));
  {
    const Joined joined(a, *b);
    use_all(joined, 2);
    const auto received = joined.receive_back(Bytes(100));
    b->close();
    CHECK(error_of(received).find("closed the connection") != std::string::npos);
  }
}

}  // namespace
}  // namespace paralet
