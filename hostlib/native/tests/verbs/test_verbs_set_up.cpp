// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end over a fake libibverbs: messages pass while calls about queue pairs take long.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <array>
#include <chrono>
#include <memory>
#include <thread>

#include "verbs_scene.hpp"

namespace paralet {
namespace {

using fake_verbs::nic;
using fake_verbs::record;
using test::Bytes;
using test::HeldCall;
using test::is_open;
using test::VerbsPair;
using State = Request::State;

// -- calls about queue pairs that take long ----------------------------------------------------------------------

/// Messages between the two devices while the call is held, and that it is held all the time.
void check_messages(VerbsPair& pair) {
  REQUIRE(HeldCall::holds());
  for (int i = 0; i < 20; ++i) pair.check(1000);
  CHECK(record().held == 1);
}

TEST_CASE("messages pass while the queue pairs of another peer are created and connected") {
  struct Case {
    fake_verbs::Call call;
    unsigned before;  // calls of the other side
    bool connects;    // this side connects to the third device, or accepts its connection
  };
  constexpr std::array kCases{Case{fake_verbs::Call::kCreate, 0, true}, Case{fake_verbs::Call::kCreate, 1, false},
                              Case{fake_verbs::Call::kConnect, 0, false}, Case{fake_verbs::Call::kConnect, 1, true}};
  for (const Case& each : kCases) {
    CAPTURE(static_cast<int>(each.call));
    CAPTURE(each.connects);
    fake_verbs::reset();
    VerbsPair pair(1);
    Device third(test::verbs_options(1));
    const auto listener = each.connects ? third.listen() : pair.two.listen();
    const HeldCall held(each.call, each.before);
    const auto connection = (each.connects ? pair.one : third).connect(listener->handle);
    check_messages(pair);
    CHECK(!is_open(*connection));
    HeldCall::release();
    CHECK(test::eventually([&] { return is_open(*connection); }));
  }
}

TEST_CASE("messages pass while a lane gets a fresh queue pair") {
  struct Case {
    fake_verbs::Call call;
    unsigned before;
  };
  // The side that asks creates first, the other side connects first.
  constexpr std::array kCases{Case{fake_verbs::Call::kCreate, 0}, Case{fake_verbs::Call::kCreate, 1},
                              Case{fake_verbs::Call::kConnect, 0}, Case{fake_verbs::Call::kConnect, 1}};
  for (const Case& each : kCases) {
    CAPTURE(static_cast<int>(each.call));
    CAPTURE(each.before);
    fake_verbs::reset();
    VerbsPair pair(1);
    pair.check(100);
    const HeldCall held(each.call, each.before);
    REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
    check_messages(pair);
    CHECK(pair.one.counters().lanes.at(0).qp.port != 0xE333);
    HeldCall::release();
    CHECK(test::eventually([&] { return pair.one.counters().lanes.at(0).qp.port == 0xE333; }));
    pair.check(100'000);
    CHECK(test::eventually([] { return record().queue_pairs == 2; }));
  }
}

TEST_CASE("messages pass while a queue pair is destroyed") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  const HeldCall held(fake_verbs::Call::kDestroy, 0);
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));  // both sides replace their queue pairs
  check_messages(pair);
  pair.check(100'000);
  HeldCall::release();
  CHECK(test::eventually([] { return record().queue_pairs == 2; }));
}

TEST_CASE("messages pass while the port of a queue pair changes, and large ones wait for the new port") {
  fake_verbs::reset();
  nic().sport_error = 0;
  VerbsPair pair(1);
  pair.check(100);
  const std::uint16_t before = pair.one.counters().lanes.at(0).qp.port;
  const HeldCall held(fake_verbs::Call::kSetPort, 0);
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE444));  // follows the change in progress
  check_messages(pair);
  Bytes out = test::random_fill(1, 100'000);
  Bytes in(out.size());
  const auto received = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  const auto sent = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out});
  for (int i = 0; i < 20; ++i) pair.check({.bytes = std::span(out).first(100)}, {.bytes = std::span(in).first(100)});
  CHECK(sent->state == State::kPending);
  CHECK(pair.one.counters().lanes.at(0).qp.port == before);
  CHECK(pair.one.counters().lanes.at(0).moves == 0);
  HeldCall::release();
  CHECK(VerbsPair::end(sent) == State::kDone);
  CHECK(VerbsPair::end(received) == State::kDone);
  CHECK(in == out);
  CHECK(pair.one.counters().lanes.at(0).qp.port == 0xE444);
  CHECK(pair.one.counters().lanes.at(0).moves == 2);
}

TEST_CASE("a queue pair may be replaced while its port changes") {
  fake_verbs::reset();
  nic().sport_error = 0;
  VerbsPair pair(1);
  pair.check(100);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  const HeldCall held(fake_verbs::Call::kSetPort, 0);
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  REQUIRE(HeldCall::holds());
  fake_verbs::set_path(before.qp.port, fake_verbs::Path::kDead);
  Bytes out = test::random_fill(1, 500);
  Bytes in(out.size());
  const auto received = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  const auto sent = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out});
  REQUIRE(test::eventually([] { return record().lost > 0; }));
  fake_verbs::break_queue_pairs(before.qp.port);
  CHECK(VerbsPair::end(sent) == State::kDone);
  CHECK(VerbsPair::end(received) == State::kDone);
  CHECK(in == out);
  HeldCall::release();
  pair.check(100'000);
  const LaneCounters after = pair.one.counters().lanes.at(0);
  CHECK(after.qpn != before.qpn);
  CHECK(after.qp.port == 0xE333);
  CHECK(after.moves == 1);
  CHECK(test::eventually([] { return record().queue_pairs == 2; }));
}

TEST_CASE("messages pass while the queue pair of fences is created, and the fences follow") {
  fake_verbs::reset();
  Bytes memory(4096);
  fake_verbs::share_device_memory(901, memory.data(), memory.size());
  VerbsPair pair(1);
  pair.check(100);
  const std::uint32_t rkey = pair.two.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0});
  for (const auto call : {fake_verbs::Call::kCreate, fake_verbs::Call::kConnect}) {
    CAPTURE(static_cast<int>(call));
    const HeldCall held(call, 0);
    std::vector<std::shared_ptr<Request>> fences;
    fences.reserve(3);
    for (int i = 0; i < 3; ++i) {
      fences.push_back(VerbsPair::submit(pair.two, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey}));
    }
    check_messages(pair);
    for (const auto& fence : fences) CHECK(fence->state == State::kPending);
    HeldCall::release();
    for (const auto& fence : fences) CHECK(VerbsPair::end(fence) == State::kDone);
    // A fence that fails ends the queue pair, so that the next one needs another.
    const auto wrong = VerbsPair::submit(pair.two, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey + 1000});
    CHECK(VerbsPair::end(wrong) == State::kFailed);
  }
  CHECK(record().reads == 6);
  pair.two.deregister_memory(rkey);
}

TEST_CASE("a device may be closed while its fences wait for their queue pair") {
  fake_verbs::reset();
  Bytes memory(4096);
  fake_verbs::share_device_memory(901, memory.data(), memory.size());
  Device device(test::verbs_options(1));
  const std::uint32_t rkey = device.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0});
  const HeldCall held(fake_verbs::Call::kCreate, 0);
  const auto fence = VerbsPair::submit(device, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey});
  REQUIRE(HeldCall::holds());
  std::thread closing([&] { device.close(0); });
  CHECK(VerbsPair::end(fence) == State::kFailed);
  HeldCall::release();
  closing.join();
  CHECK(record().queue_pairs == 0);
}

TEST_CASE("both sides may ask for a fresh queue pair while one is created") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  const HeldCall held(fake_verbs::Call::kCreate, 0);
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  REQUIRE(HeldCall::holds());
  REQUIRE(pair.two.set_port(fake_verbs::kAddress, 0, 0xE444));  // its request waits for the queue pair of the first
  CHECK(test::eventually([] { return record().queue_pairs == 3; }));
  for (int i = 0; i < 20; ++i) pair.check(1000);
  HeldCall::release();
  CHECK(test::eventually([&] {
    return pair.one.counters().lanes.at(0).qp.port == 0xE333 && pair.two.counters().lanes.at(0).qp.port == 0xE444;
  }));
  pair.check(100'000);
  CHECK(test::eventually([] { return record().queue_pairs == 2; }));
}

TEST_CASE("a connection of the peer waits for the end of this side's set-up, and sends no ping before it") {
  fake_verbs::reset();
  DeviceOptions options = test::verbs_options(1);
  options.retry_time = 60 * kSecond;  // a ping is due after a part of it
  Device one(options);
  Device two(options);
  const auto at_one = one.listen();
  const auto at_two = two.listen();
  const HeldCall held(fake_verbs::Call::kConnect, 1);  // of `one`; `two` is ready and uses the same queue pairs
  const auto there = one.connect(at_two->handle);
  REQUIRE(HeldCall::holds());
  const auto back = two.connect(at_one->handle);
  CHECK(two.counters().peers == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // housekeeping runs
  CHECK(!is_open(*back));
  HeldCall::release();
  CHECK(test::eventually([&] { return is_open(*there) && is_open(*back); }));
  CHECK(record().queue_pairs == 2);
}

TEST_CASE("a connection back waits for the end of this side's set-up, which the peer's has begun") {
  for (const auto call : {fake_verbs::Call::kCreate, fake_verbs::Call::kConnect}) {
    CAPTURE(static_cast<int>(call));
    fake_verbs::reset();
    Device one(test::verbs_options(1));
    Device two(test::verbs_options(1));
    const auto at_one = one.listen();
    const auto at_two = two.listen();
    // Of `two`, which has heard the hello of `one`: its create is the second.
    const HeldCall held(call, call == fake_verbs::Call::kCreate ? 1 : 0);
    const auto there = one.connect(at_two->handle);
    REQUIRE(HeldCall::holds());
    const auto back = two.connect(at_one->handle);
    CHECK(two.counters().peers == 1);
    HeldCall::release();
    CHECK(test::eventually([&] { return is_open(*there) && is_open(*back); }));
    CHECK(record().queue_pairs == 2);
  }
}

TEST_CASE("devices that connect to each other at once open both connections, whichever call takes long") {
  for (const auto call : {fake_verbs::Call::kCreate, fake_verbs::Call::kConnect, fake_verbs::Call::kDestroy}) {
    for (unsigned before = 0; before < 4; ++before) {
      CAPTURE(static_cast<int>(call));
      CAPTURE(before);
      fake_verbs::reset();
      Device one(test::verbs_options(1));
      Device two(test::verbs_options(1));
      const auto at_one = one.listen();
      const auto at_two = two.listen();
      const HeldCall held(call, before);  // the set-ups may end with fewer calls
      const auto there = one.connect(at_two->handle);
      const auto back = two.connect(at_one->handle);
      const auto both_open = [&] { return is_open(*there) && is_open(*back); };
      CHECK(test::eventually([&] { return record().held == 1 || both_open(); }));
      HeldCall::release();
      CHECK(test::eventually(both_open));
      CHECK(test::eventually([] { return record().queue_pairs == 2; }));
    }
  }
}

TEST_CASE("a peer that goes away during the set-up leaves no queue pair") {
  for (const auto call : {fake_verbs::Call::kCreate, fake_verbs::Call::kConnect}) {
    CAPTURE(static_cast<int>(call));
    fake_verbs::reset();
    Device one(test::verbs_options(2));
    std::shared_ptr<Connection> connection;
    {
      Device two(test::verbs_options(2));
      const auto listener = two.listen();
      const bool creates = call == fake_verbs::Call::kCreate;
      const HeldCall held(call, creates ? 1 : 3);  // of the second lane of `one`
      connection = one.connect(listener->handle);
      REQUIRE(HeldCall::holds());
      two.close(0);
      if (!creates) {  // `one` knows that the other side has gone
        CHECK(test::eventually([&] { return connection->state == Connection::State::kClosed; }));
      }
    }
    CHECK(test::eventually([&] { return connection->state == Connection::State::kClosed; }));
    CHECK(connection->failure != Failure::kNone);
    CHECK(test::eventually([] { return record().queue_pairs == 0; }));
    CHECK(test::eventually([&] { return one.counters().peers == 0; }));
  }
}

TEST_CASE("a device may be closed during the set-up of a peer") {
  for (const auto call : {fake_verbs::Call::kCreate, fake_verbs::Call::kConnect}) {
    CAPTURE(static_cast<int>(call));
    fake_verbs::reset();
    Device two(test::verbs_options(2));
    const auto listener = two.listen();
    Device one(test::verbs_options(2));
    const HeldCall held(call, call == fake_verbs::Call::kCreate ? 0 : 2);  // of the first lane of `one`
    const auto connection = one.connect(listener->handle);
    REQUIRE(HeldCall::holds());
    const auto second = one.connect(listener->handle, 1);  // waits for the same peer
    std::thread closing([&] { one.close(0); });
    CHECK(test::eventually([&] { return connection->state == Connection::State::kClosed; }));
    HeldCall::release();
    closing.join();
    CHECK(second->state == Connection::State::kClosed);
    CHECK(test::eventually([] { return record().queue_pairs == 0; }));
  }
}

}  // namespace
}  // namespace paralet
