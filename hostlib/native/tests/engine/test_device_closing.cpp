// SPDX-License-Identifier: Apache-2.0
// Closing connections and devices.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "engine/device_fixture.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("a close fails pending requests on both sides and names the side that closed") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const auto sending = joined.send(Bytes(4096));
  const auto receiving = joined.receive_back(Bytes(4096));
  const auto their_send = joined.send_back(Bytes(4096), 7);
  pair.a.close_connection(joined.to);
  CHECK(error_of(sending) == "the connection was closed");
  CHECK(error_of(receiving) == "the connection was closed");
  CHECK(sending->failure == Failure::kClosed);
  CHECK(error_of(their_send) == "127.0.0.1 closed the connection");
  CHECK(their_send->failure == Failure::kClosed);
  REQUIRE(eventually([&] { return joined.to->state == Connection::State::kClosed; }));
  CHECK(error_of(joined.send_back(Bytes(1))) == "127.0.0.1 closed the connection");
  CHECK(error_of(joined.send(Bytes(1))) == "the connection is not open");
  pair.b.close_connection(joined.from);
  CHECK(eventually([&] { return joined.from->state == Connection::State::kClosed; }));
  CHECK(pair.a.counters().connections == 0);
  CHECK(pair.b.counters().connections == 0);
}

TEST_CASE("a message sent before a close arrives") {
  DevicePair pair;
  for (int round = 0; round < 20; ++round) {
    const Joined joined(pair.a, pair.b);
    const Bytes out = random_fill(static_cast<std::uint64_t>(round), 200'000);
    const auto received = joined.receive(Bytes(out.size()));
    require_done(joined.send(out));
    pair.a.close_connection(joined.to);
    require_done(received);
    CHECK(received->memory == out);
  }
}

TEST_CASE("a close during messages, in any order, ends every request and touches no memory afterwards") {
  DevicePair pair;
  SplitMix64 random(9);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const Joined joined(pair.a, pair.b);
    std::vector<MessagePtr> requests;
    for (std::uint32_t tag = 0; tag < 6; ++tag) {
      const Bytes memory(random.below(400'000));
      const bool forth = random.uniform() < 0.5;
      if (random.uniform() < 0.9) {
        requests.push_back(forth ? joined.receive(memory, tag) : joined.receive_back(memory, tag));
      }
      if (random.uniform() < 0.9) requests.push_back(forth ? joined.send(memory, tag) : joined.send_back(memory, tag));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(1500)));
    const auto order = random.below(3);
    if (order != 1) pair.a.close_connection(joined.to);
    if (order != 0) pair.b.close_connection(joined.from);
    for (const auto& request : requests) {
      REQUIRE(wait(request) != State::kPending);
      if (request->state == State::kFailed) CHECK(request->failure == Failure::kClosed);
    }
    for (const auto& request : requests) request->memory = Bytes();  // AddressSanitizer reports later accesses
    pair.a.close_connection(joined.to);
    pair.b.close_connection(joined.from);
    REQUIRE(eventually([&] {
      return joined.to->state == Connection::State::kClosed && joined.from->state == Connection::State::kClosed;
    }));
  }
  CHECK(pair.a.counters().connections == 0);
  CHECK(pair.b.counters().connections == 0);
  const Joined after(pair.a, pair.b);
  after.check(10'000);
}

TEST_CASE("closing a device fails its peers' requests; the peers stay usable") {
  Device a(options(kA));
  auto b = std::make_unique<Device>(options(kB));
  auto joined = std::make_unique<Joined>(a, *b);
  const auto sending = joined->send(Bytes(100'000));
  const auto receiving = joined->receive_back(Bytes(100'000));
  b->close();
  CHECK(wait(sending) == State::kFailed);
  CHECK(sending->failure == Failure::kClosed);
  CHECK(wait(receiving) == State::kFailed);
  CHECK(receiving->failure == Failure::kClosed);
  b = std::make_unique<Device>(options(kB));
  const Joined again(a, *b);
  again.check(10'000);
}

TEST_CASE("a device may be destroyed during transfers") {
  for (int round = 0; round < 10; ++round) {
    auto a = std::make_unique<Device>(options(kA));
    auto b = std::make_unique<Device>(options(kB));
    const auto joined = std::make_unique<Joined>(*a, *b);
    const auto receiving = joined->receive(Bytes(1'000'000));
    const auto sending = joined->send(Bytes(1'000'000));
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    (round % 2 == 0 ? a : b).reset();
    CHECK(wait(sending) != State::kPending);
    CHECK(wait(receiving) != State::kPending);
  }
}

TEST_CASE("calls on a closed device report that it is closed") {
  Device a(options(kA));
  Device b(options(kB));
  const Joined joined(a, b);
  const auto handle = joined.listener->handle;
  a.close();
  a.close();
  CHECK(a.closed());
  CHECK_THROWS_WITH_AS(a.listen(), "the device is closed", DeviceError);
  CHECK_THROWS_WITH_AS(a.connect(handle), "the device is closed", DeviceError);
  CHECK(error_of(joined.send(Bytes(1))) == "the device is closed");
  CHECK(a.counters().lanes.empty());
  a.close_connection(joined.to);
  a.deregister_memory(1);
}

TEST_CASE("a closed device holds no file descriptor") {
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = open_files();
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  joined.check(1000);
  CHECK(open_files() > before);
  pair.a.close();
  pair.b.close();
  CHECK(open_files() == before);
  pair.a.stop_polling();
  CHECK_FALSE(pair.a.wait([] { return false; }, kMillisecond));
}

TEST_CASE("all requests submitted during a close end") {
  for (int round = 0; round < 20; ++round) {
    Device a(options(kA));
    Device b(options(kB));
    const Joined joined(a, b);
    std::vector<RequestPtr> requests;
    std::thread submitting([&] {
      for (int i = 0; i < 2000; ++i) requests.push_back(joined.send(Bytes(64)));
    });
    a.close(0);
    submitting.join();
    for (const auto& request : requests) REQUIRE(wait(request) != State::kPending);  // short ones may have gone ahead
  }
}

TEST_CASE("a connection closed before the peer's answer leaves no state on either side") {
  DevicePair pair;
  const Joined first(pair.a, pair.b);
  const auto listener = pair.b.listen();
  for (int i = 0; i < 20; ++i) {
    const auto connection = pair.a.connect(listener->handle);
    pair.a.close_connection(connection);
    REQUIRE(eventually([&] { return connection->state == Connection::State::kClosed; }));
    const auto accepted = accept(*listener);
    CHECK(eventually([&] { return accepted->failure == Failure::kClosed; }));
    pair.b.close_connection(accepted);
    CHECK(eventually([&] { return accepted->state == Connection::State::kClosed; }));
  }
  CHECK(pair.a.counters().connections == 1);
  CHECK(pair.b.counters().connections == 1);
}

}  // namespace
}  // namespace paralet
