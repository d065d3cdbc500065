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
  const Bytes out = random_fill(1, 50'000);
  const auto sent = joined.send(out);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(sent->state == State::kPending);
  const auto received = joined.receive(Bytes(out.size()));
  CHECK(wait(received) == State::kDone);
  CHECK(wait(sent) == State::kDone);
  CHECK(received->memory == out);
}

TEST_CASE("sends and receives of one tag are matched in order") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  constexpr std::uint32_t kTags = 5;
  constexpr std::size_t kEach = 40;
  const auto message = [](std::size_t i) { return random_fill(i, 1 + i * 37); };
  std::vector<MessagePtr> received;
  std::vector<MessagePtr> sent;
  // Receives tag by tag, sends round robin over the tags: they are matched in another order than they were submitted.
  for (std::uint32_t tag = 0; tag < kTags; ++tag) {
    for (std::size_t k = 0; k < kEach; ++k) received.push_back(joined.receive(Bytes(9000), tag));
  }
  for (std::size_t k = 0; k < kEach; ++k) {
    for (std::uint32_t tag = 0; tag < kTags; ++tag) sent.push_back(joined.send(message(tag * kEach + k), tag));
  }
  for (const auto& request : sent) require_done(request);
  for (std::size_t i = 0; i < received.size(); ++i) {
    CAPTURE(i);
    require_done(received[i]);
    const Bytes out = message(i);
    CHECK(received[i]->bytes == out.size());
    CHECK(std::equal(out.begin(), out.end(), received[i]->memory.begin()));
  }
}

TEST_CASE("a message shorter than its receive leaves the rest of the buffer unchanged") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const Bytes out = random_fill(1, 10'000);
  const auto received = joined.receive(Bytes(20'000, std::byte{0x55}));
  require_done(joined.send(out));
  require_done(received);
  CHECK(received->bytes == out.size());
  const Bytes& in = received->memory;
  CHECK(std::equal(out.begin(), out.end(), in.begin()));
  CHECK(std::all_of(in.begin() + 10'000, in.end(), [](std::byte b) { return b == std::byte{0x55}; }));
}

TEST_CASE("a message longer than its receive fails on both sides; later messages succeed") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const auto received = joined.receive(Bytes(1000, std::byte{0x55}));
  const auto sent = joined.send(Bytes(1001));
  const std::string expected = "a message of 1001 bytes met a receive of 1000: receive at least as much as is sent";
  CHECK(error_of(sent) == expected);
  CHECK(error_of(received) == expected);
  CHECK(sent->failure == Failure::kTransport);
  CHECK(received->memory == Bytes(1000, std::byte{0x55}));
  joined.check(5000);
}

TEST_CASE("receives at different offsets share one registered region") {
  Bytes region(64 * 1024);
  Bytes out;
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const std::uint32_t rkey = pair.b.register_memory(region.data(), region.size());
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
    const Bytes part = random_fill(i, 4096);
    out.insert(out.end(), part.begin(), part.end());
    requests.push_back(joined.send(part));
  }
  for (const auto& request : requests) require_done(request);
  CHECK(region == out);
  pair.b.deregister_memory(rkey);
}

TEST_CASE("give_up ends a send to a silent peer at once and releases its memory" * of_soft()) {
  DeviceOptions deaf = options(kB);
  deaf.faults.drop = 1;
  deaf.retry_time = 600 * kSecond;
  Device b(deaf);
  DeviceOptions patient = options(kA);
  patient.retry_time = 600 * kSecond;
  Device a(patient);
  const Joined joined(a, b);
  const auto received = joined.receive(Bytes(5'000'000));
  const auto sent = joined.send(random_fill(2, 5'000'000));
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
  sent->memory = Bytes();  // AddressSanitizer reports a retransmission that still reads it
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

TEST_CASE("give_up protects the memory of open receives from later messages") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const Joined neighbour(pair.a, pair.b);
  constexpr std::size_t kBytes = 1'000'000;
  const auto received = joined.receive_back(Bytes(kBytes));
  pair.a.give_up(joined.to);  // the peer has the receive's advertisement already
  CHECK(wait(joined.send_back(random_fill(3, kBytes))) == State::kDone);
  CHECK(error_of(received) == "its memory was taken back before the message came");
  CHECK(received->memory == Bytes(kBytes));
  neighbour.check(100'000);
}

TEST_CASE("flowlets are counted and spread over the lanes") {
  DeviceOptions cut = options(kA, 4);
  cut.flowlet_bytes = 8192;
  cut.path_mtu = 4096;
  Device a(cut);
  Device b(options(kB));
  const Joined joined(a, b);
  constexpr std::size_t kBytes = 1'000'000;
  const auto received = joined.receive(Bytes(kBytes));
  require_done(joined.send(random_fill(1, kBytes)));
  require_done(received);
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
  CHECK(flowlets == (kBytes + 8191) / 8192);
  CHECK(bytes >= kBytes);
}

TEST_CASE("messages up to mice_bytes are one flowlet, whatever S is") {
  DeviceOptions cut = options(kA, 4);
  cut.flowlet_bytes = 4096;
  cut.mice_bytes = 50'000;
  Device a(cut);
  Device b(options(kB));
  const Joined joined(a, b);
  const auto received = joined.receive(Bytes(50'000));
  require_done(joined.send(Bytes(50'000)));
  require_done(received);
  std::uint64_t flowlets = 0;
  for (const LaneCounters& lane : a.counters().lanes) flowlets += lane.flowlets;
  CHECK(flowlets == 1);
}

TEST_CASE("a finished request may be submitted again") {
  DevicePair pair;
  const Joined link(pair.a, pair.b);
  const auto received = link.receive(Bytes(50'000));
  const auto sent = link.send(random_fill(1, 50'000));
  for (int round = 0; round < 50; ++round) {
    require_done(received);
    require_done(sent);
    CHECK(received->bytes == sent->memory.size());
    CHECK(received->memory == sent->memory);
    std::ranges::fill(received->memory, std::byte{0});
    pair.b.submit(received);
    pair.a.submit(sent);
  }
  require_done(received);
  require_done(sent);
}

TEST_CASE("500 open receives are matched in order") {
  DevicePair pair;
  const Joined link(pair.a, pair.b);
  constexpr std::size_t kCount = 500;
  std::vector<MessagePtr> in;
  std::vector<MessagePtr> out;
  for (std::size_t i = 0; i < kCount; ++i) in.push_back(link.receive(Bytes(8)));
  for (std::size_t i = 0; i < kCount; ++i) out.push_back(link.send(random_fill(i, 8)));
  for (std::size_t i = 0; i < kCount; ++i) {
    require_done(in[i]);
    require_done(out[i]);
    CHECK(in[i]->memory == out[i]->memory);
  }
}

}  // namespace
}  // namespace paralet
