// SPDX-License-Identifier: Apache-2.0
// Messages: matching, lengths, registered memory, flowlets.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/device_fixture.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("messages of all sizes go both ways") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  for (const std::size_t bytes : {0, 1, 3, 4095, 4096, 4097, 100'000, 3'000'001}) {
    CAPTURE(bytes);
    joined.check(bytes);
  }
}

TEST_CASE("a send may be submitted before its receive") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  Bytes out = test::random_fill(1, 50'000);
  Bytes in(out.size());
  const auto sent = joined.send(out);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(sent->state == State::kPending);
  CHECK(wait(joined.receive(in)) == State::kDone);
  CHECK(wait(sent) == State::kDone);
  CHECK(in == out);
}

TEST_CASE("sends and receives of one tag are matched in order") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  constexpr std::uint32_t kTags = 5;
  constexpr std::size_t kEach = 40;
  std::vector<Bytes> out;
  std::vector<Bytes> in(kTags * kEach, Bytes(9000));
  out.reserve(kTags * kEach);
  for (std::size_t i = 0; i < kTags * kEach; ++i) out.push_back(test::random_fill(i, 1 + i * 37));
  std::vector<RequestPtr> requests;
  // Receives tag by tag, sends round robin over the tags: they are matched in another order than they were submitted.
  for (std::uint32_t tag = 0; tag < kTags; ++tag) {
    for (std::size_t k = 0; k < kEach; ++k) requests.push_back(joined.receive(in[tag * kEach + k], tag));
  }
  for (std::size_t k = 0; k < kEach; ++k) {
    for (std::uint32_t tag = 0; tag < kTags; ++tag) requests.push_back(joined.send(out[tag * kEach + k], tag));
  }
  for (const auto& request : requests) REQUIRE(wait(request) == State::kDone);
  for (std::size_t i = 0; i < out.size(); ++i) {
    CAPTURE(i);
    CHECK(requests[i]->bytes == out[i].size());
    CHECK(std::equal(out[i].begin(), out[i].end(), in[i].begin()));
  }
}

TEST_CASE("a message shorter than its receive leaves the rest of the buffer unchanged") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  Bytes out = test::random_fill(1, 10'000);
  Bytes in(20'000, std::byte{0x55});
  const auto received = joined.receive(in);
  REQUIRE(wait(joined.send(out)) == State::kDone);
  REQUIRE(wait(received) == State::kDone);
  CHECK(received->bytes == out.size());
  CHECK(std::equal(out.begin(), out.end(), in.begin()));
  CHECK(std::all_of(in.begin() + 10'000, in.end(), [](std::byte b) { return b == std::byte{0x55}; }));
}

TEST_CASE("a message longer than its receive fails on both sides; later messages succeed") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  Bytes out(1001);
  Bytes in(1000, std::byte{0x55});
  const auto received = joined.receive(in);
  const auto sent = joined.send(out);
  const std::string expected = "a message of 1001 bytes met a receive of 1000: receive at least as much as is sent";
  CHECK(error_of(sent) == expected);
  CHECK(error_of(received) == expected);
  CHECK(sent->failure == Failure::kTransport);
  CHECK(in == Bytes(1000, std::byte{0x55}));
  joined.check(5000);
}

TEST_CASE("receives at different offsets share one registered region") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  Bytes region(64 * 1024);
  const std::uint32_t rkey = pair.b.register_memory(region.data(), region.size());
  Bytes out = test::random_fill(4, region.size());
  std::vector<RequestPtr> requests;
  for (std::size_t i = 0; i < 16; ++i) {
    auto request = std::make_shared<Request>();
    request->kind = Request::Kind::kReceive;
    request->connection = joined.from;
    request->data = region.data() + i * 4096;
    request->length = 4096;
    request->rkey = rkey;
    request->region_offset = i * 4096;
    pair.b.submit(request);
    requests.push_back(request);
    requests.push_back(submit(pair.a, joined.to, Request::Kind::kSend, std::span(out).subspan(i * 4096, 4096)));
  }
  for (const auto& request : requests) REQUIRE(wait(request) == State::kDone);
  CHECK(region == out);
  pair.b.deregister_memory(rkey);
}

TEST_CASE("give_up ends a send to a silent peer at once and releases its memory") {
  DeviceOptions deaf = options(kB);
  deaf.faults.drop = 1;
  deaf.retry_time = 600 * kSecond;
  Device b(deaf);
  DeviceOptions one = options(kA);
  one.retry_time = 600 * kSecond;
  Device a(one);
  const Joined joined(a, b);
  Bytes in(5'000'000);
  const auto received = joined.receive(in);
  auto out = std::make_unique<Bytes>(test::random_fill(2, in.size()));
  const auto sent = joined.send(*out);
  const auto retransmits = [&] {
    std::uint64_t sum = 0;
    for (const LaneCounters& lane : a.counters().lanes) sum += lane.qp.counters.retransmits;
    return sum;
  };
  REQUIRE(eventually([&] { return retransmits() > 0; }));
  a.close_connection(joined.to);
  CHECK(sent->state == State::kPending);
  a.give_up(joined.to);
  CHECK(sent->state == State::kFailed);
  CHECK(sent->error == "127.0.0.2 does not answer");
  CHECK(joined.to->state == Connection::State::kClosed);
  out.reset();  // AddressSanitizer reports a retransmission that still reads it
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

TEST_CASE("give_up protects the memory of open receives from later messages") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const Joined neighbour(pair.a, pair.b);
  constexpr std::size_t kBytes = 1'000'000;
  Bytes in(kBytes);
  const auto received = joined.receive_back(in);
  pair.a.give_up(joined.to);  // the peer has the receive's advertisement already
  Bytes out = test::random_fill(3, kBytes);
  CHECK(wait(joined.send_back(out)) == State::kDone);
  CHECK(error_of(received) == "its memory was taken back before the message came");
  CHECK(in == Bytes(kBytes));
  neighbour.check(100'000);
}

TEST_CASE("flowlets are counted and spread over the lanes") {
  DeviceOptions cut = options(kA, 4);
  cut.flowlet_bytes = 8192;
  cut.path_mtu = 4096;
  Device a(cut);
  Device b(options(kB));
  const Joined joined(a, b);
  Bytes out = test::random_fill(1, 1'000'000);
  Bytes in(out.size());
  const auto received = joined.receive(in);
  REQUIRE(wait(joined.send(out)) == State::kDone);
  REQUIRE(wait(received) == State::kDone);
  const DeviceCounters counters = a.counters();
  REQUIRE(counters.lanes.size() == 4);
  std::uint64_t flowlets = 0;
  std::uint64_t bytes = 0;
  for (const LaneCounters& lane : counters.lanes) {
    flowlets += lane.flowlets;
    bytes += lane.qp.counters.tx_bytes;
    CHECK(lane.flowlets > 0);
    CHECK(lane.peer == kB);
    CHECK(lane.qp.port >= wire::kFirstEntropyPort);
  }
  CHECK(flowlets == (out.size() + 8191) / 8192);
  CHECK(bytes >= out.size());
}

TEST_CASE("messages up to mice_bytes are one flowlet, whatever S is") {
  DeviceOptions cut = options(kA, 4);
  cut.flowlet_bytes = 4096;
  cut.mice_bytes = 50'000;
  Device a(cut);
  Device b(options(kB));
  const Joined joined(a, b);
  Bytes out(50'000);
  Bytes in(50'000);
  const auto received = joined.receive(in);
  REQUIRE(wait(joined.send(out)) == State::kDone);
  REQUIRE(wait(received) == State::kDone);
  std::uint64_t flowlets = 0;
  for (const LaneCounters& lane : a.counters().lanes) flowlets += lane.flowlets;
  CHECK(flowlets == 1);
}

TEST_CASE("a finished request may be submitted again") {
  DevicePair pair;
  const Joined link(pair.a, pair.b);
  Bytes out = test::random_fill(1, 50'000);
  Bytes in(out.size());
  const auto received = link.receive(in);
  const auto sent = link.send(out);
  for (int round = 0; round < 50; ++round) {
    REQUIRE(wait(received) == State::kDone);
    REQUIRE(wait(sent) == State::kDone);
    CHECK(received->bytes == out.size());
    CHECK(in == out);
    in.assign(in.size(), std::byte{0});
    pair.b.submit(received);
    pair.a.submit(sent);
  }
  REQUIRE(wait(received) == State::kDone);
  REQUIRE(wait(sent) == State::kDone);
}

TEST_CASE("500 open receives are matched in order") {
  DevicePair pair;
  const Joined link(pair.a, pair.b);
  constexpr std::size_t kCount = 500;
  std::vector<Bytes> in(kCount, Bytes(8));
  std::vector<Bytes> out(kCount, Bytes(8));
  std::vector<RequestPtr> requests;
  requests.reserve(2 * kCount);
  for (auto& bytes : in) requests.push_back(link.receive(bytes));
  for (std::size_t i = 0; i < kCount; ++i) {
    out[i] = test::random_fill(i, 8);
    requests.push_back(link.send(out[i]));
  }
  for (const auto& request : requests) REQUIRE(wait(request) == State::kDone);
  CHECK(in == out);
}

}  // namespace
}  // namespace paralet
