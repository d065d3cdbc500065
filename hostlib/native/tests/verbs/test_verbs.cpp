// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end over a fake libibverbs: its calls, and how it handles the results.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "verbs/verbs_backend.hpp"
#include "verbs_scene.hpp"
#include "wire/flow_label.hpp"

namespace paralet {
namespace {

using fake_verbs::nic;
using fake_verbs::record;
using test::Bytes;
using test::HeldCall;
using test::VerbsPair;
using State = Request::State;

VerbsOptions backend_options() {
  VerbsOptions out;
  out.address = fake_verbs::kAddress;
  return out;
}

/// Index of the first call that starts with `beginning`. The test fails when there is none.
std::size_t place_of(const std::string& beginning) {
  const auto calls = record().calls;
  const auto found = std::ranges::find_if(calls, [&](const auto& call) { return call.starts_with(beginning); });
  REQUIRE_MESSAGE(found != calls.end(), beginning);
  return static_cast<std::size_t>(found - calls.begin());
}

std::size_t times(const std::string& beginning) {
  const auto calls = record().calls;
  return static_cast<std::size_t>(
      std::ranges::count_if(calls, [&](const auto& call) { return call.starts_with(beginning); }));
}

TEST_CASE("messages of all sizes arrive") {
  fake_verbs::reset();
  VerbsPair pair;
  for (const std::size_t length : {0U, 1U, 64U, 65U, 4096U, 1'000'000U}) pair.check(length);
}

// -- the completion queue ----------------------------------------------------------------------------------------

TEST_CASE("the NIC never holds more work than its completion queue has room for, with any number of queue pairs") {
  fake_verbs::reset();
  nic().completions = 64;
  const auto backend = open_verbs(backend_options());
  Bytes target(64);
  const std::uint32_t rkey = backend->register_memory(target.data(), target.size());
  std::vector<QpIdentity> qps(16);
  std::ranges::generate(qps, [&] { return backend->create_qp(); });
  for (std::size_t i = 0; i < qps.size(); ++i) {
    const QpIdentity& peer = qps[i ^ 1];
    REQUIRE(backend->connect_qp(qps[i].qpn,
                                {.address = fake_verbs::kAddress,
                                 .udp_port = 4791,
                                 .qpn = peer.qpn,
                                 .first_psn = peer.first_psn,
                                 .path_mtu = 1024},
                                0xC111));
    backend->adopt_qp(qps[i].qpn);
  }
  std::vector<ReceiveBuffer> buffers(200);
  Bytes room(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) backend->post_receive({&room[i], 1, i});
  fake_verbs::hold_completions(true);
  constexpr std::size_t kEach = 50;
  const Bytes payload(64, std::byte{7});
  for (std::size_t i = 0; i < kEach; ++i) {
    for (const QpIdentity& qp : qps) {
      backend->post(qp.qpn, {.kind = WorkKind::kWrite,
                             .cookie = 1 + i,
                             .data = payload.data(),
                             .length = static_cast<std::uint32_t>(payload.size()),
                             .remote_address = backend->remote_address(rkey),
                             .rkey = backend->remote_key(rkey)});
      backend->flush(now());
    }
  }
  CHECK(record().most_work <= 64);
  CHECK(record().most_work > 32);  // the room is used
  fake_verbs::hold_completions(false);
  std::map<std::uint32_t, std::size_t> done;
  std::vector<Completion> completions;
  for (int round = 0; round < 10'000 && completions.size() < qps.size() * kEach; ++round) {
    backend->progress(now(), completions);
    backend->flush(now());
  }
  for (const Completion& completion : completions) {
    CHECK(completion.status == Status::kSuccess);
    CHECK(completion.cookie == ++done[completion.qpn]);  // in order
  }
  CHECK(completions.size() == qps.size() * kEach);
  CHECK(record().most_work <= 64);
}

TEST_CASE("the port's rate cuts messages into flowlets of 4 BDP / m") {
  for (const auto& [width, speed, flowlets] :
       {std::tuple(2, 32, 8U), {2, 0, 1U}, {0, 32, 1U}}) {  // 100 Gbit/s, unknown
    fake_verbs::reset();
    nic().link_width = static_cast<std::uint8_t>(width);
    nic().link_speed = static_cast<std::uint8_t>(speed);
    DeviceOptions options = test::verbs_options(8);
    options.base_rtt = 10 * kMicrosecond;
    VerbsPair pair(options);
    pair.check(8 * 63'488);  // 62,500 bytes in whole packets
    unsigned sent = 0;
    for (const LaneCounters& lane : pair.one.counters().lanes) sent += static_cast<unsigned>(lane.flowlets);
    CHECK(sent == flowlets);
  }
}

TEST_CASE("the speed of an XDR port is read where the library knows it") {
  for (const auto& [bytes, flowlets] : {std::tuple(56, 5U), {52, 8U}, {0, 8U}}) {
    const int known = bytes;  // clang 14 captures no structured bindings
    CAPTURE(known);
    fake_verbs::reset();
    nic().link_width = 1;    // lane
    nic().link_speed = 128;  // 100 Gbit/s, the most that 8 bits can say
    nic().link_speed_ex = 256;
    nic().port_attributes = static_cast<std::size_t>(bytes);
    DeviceOptions options = test::verbs_options(8);
    options.base_rtt = 10 * kMicrosecond;
    VerbsPair pair(options);
    pair.check(8 * 63'488);  // 4 BDP / m: 62,500 bytes at 100 Gbit/s, 125,000 at 200, in whole packets
    unsigned sent = 0;
    for (const LaneCounters& lane : pair.one.counters().lanes) sent += static_cast<unsigned>(lane.flowlets);
    CHECK(sent == flowlets);
  }
}

// -- silence -----------------------------------------------------------------------------------------------------

/// Two connected queue pairs of one back end.
std::pair<std::uint32_t, std::uint32_t> connected_pair(Backend& backend) {
  const std::array qps{backend.create_qp(), backend.create_qp()};
  for (std::size_t i = 0; i < qps.size(); ++i) {
    const QpIdentity& peer = qps[1 - i];
    REQUIRE(backend.connect_qp(qps[i].qpn,
                               {.address = fake_verbs::kAddress,
                                .udp_port = 4791,
                                .qpn = peer.qpn,
                                .first_psn = peer.first_psn,
                                .path_mtu = 1024},
                               0xC111));
    backend.adopt_qp(qps[i].qpn);
  }
  return {qps[0].qpn, qps[1].qpn};
}

TEST_CASE("the silence of a queue pair counts as timeouts, which stay counted") {
  fake_verbs::reset();
  const auto backend = open_verbs(backend_options());
  const std::uint32_t qpn = connected_pair(*backend).first;
  std::vector<Completion> completions;
  fake_verbs::hold_completions(true);
  backend->post(qpn, {.kind = WorkKind::kWrite});
  backend->flush(now());
  CHECK(test::eventually([&] {
    backend->progress(now(), completions);
    return backend->statistics(qpn).counters.timeouts >= 2;
  }));
  CHECK(backend->estimate(qpn).smoothed_rtt >= 3 * 67 * kMillisecond);  // the second timeout is twice the first
  const std::uint64_t timeouts = backend->statistics(qpn).counters.timeouts;
  fake_verbs::hold_completions(false);
  CHECK(test::eventually([&] {
    backend->progress(now(), completions);
    return completions.size() == 1;
  }));
  CHECK(backend->statistics(qpn).counters.timeouts >= timeouts);
}

/// Messages while the path of a lane's port is bad. Whether all arrive, once each, and the lane leaves the port.
void check_black_hole(unsigned lanes, bool mlx5, fake_verbs::Path path) {
  CAPTURE(lanes);
  CAPTURE(mlx5);
  CAPTURE(static_cast<int>(path));
  fake_verbs::reset();
  if (mlx5) nic().sport_error = 0;
  DeviceOptions options = test::verbs_options(lanes);
  options.policy.kind = PolicyKind::kAdaptive;
  options.policy.seed = lanes;
  options.min_timeout = 10 * kMillisecond;
  VerbsPair pair(options);
  pair.check(100);
  const std::uint16_t bad = pair.one.counters().lanes.at(0).qp.port;
  fake_verbs::set_path(bad, path);
  std::vector<Bytes> out;
  std::vector<Bytes> in(4 * lanes, Bytes(30'000));
  for (std::size_t i = 0; i < in.size(); ++i) out.push_back(test::random_fill(i, in[i].size()));
  const auto moved = [&] { return pair.one.counters().lanes.at(0).qp.port != bad; };
  for (int round = 0; round < 100 && !moved(); ++round) {
    std::vector<std::shared_ptr<Request>> requests;
    for (std::size_t i = 0; i < in.size(); ++i) {
      std::ranges::fill(in[i], std::byte{0});
      requests.push_back(VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in[i]}));
      requests.push_back(VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out[i]}));
    }
    for (const auto& request : requests) REQUIRE_MESSAGE(VerbsPair::end(request) == State::kDone, request->error);
    REQUIRE(in == out);
  }
  CHECK(moved());
  CHECK(pair.one.counters().lanes.at(0).moves >= 1);
  CHECK(test::eventually([&] { return record().queue_pairs == 2 * lanes; }));  // replaced ones are gone
  fake_verbs::set_path(bad, fake_verbs::Path::kGood);
  pair.check(100'000);
}

TEST_CASE("adaptive lanes leave a dead path, and no flowlet is lost or counted twice") {
  for (const unsigned lanes : {1U, 4U, 32U}) {
    for (const bool mlx5 : {false, true}) {
      for (const auto path : {fake_verbs::Path::kDead, fake_verbs::Path::kMute}) check_black_hole(lanes, mlx5, path);
    }
  }
}

// test_send_queue.cpp has what adaptive lanes make of the times of such a mix.
TEST_CASE("short and long messages pass together over adaptive lanes") {
  fake_verbs::reset();
  nic().rtt_ns = 4'000'000;
  nic().ns_per_byte = 40;
  DeviceOptions options = test::verbs_options(4);
  options.policy.kind = PolicyKind::kAdaptive;
  options.policy.seed = 1;
  VerbsPair pair(options);
  std::vector<Bytes> out;
  std::vector<Bytes> in;
  for (std::size_t i = 0; i < 56; ++i) {
    out.push_back(test::random_fill(i, i % 7 == 0 ? 500'000 : 100));
    in.emplace_back(out.back().size());
  }
  std::vector<std::shared_ptr<Request>> requests;
  for (std::size_t i = 0; i < in.size(); ++i) {
    requests.push_back(VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in[i]}));
    requests.push_back(VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out[i]}));
  }
  for (const auto& request : requests) REQUIRE_MESSAGE(VerbsPair::end(request) == State::kDone, request->error);
  CHECK(in == out);
}

// -- receives ----------------------------------------------------------------------------------------------------

TEST_CASE("after 10,000 failed peers the shared receive queue is as full as before") {
  fake_verbs::reset();
  const auto backend = open_verbs(backend_options());
  std::vector<ReceiveBuffer> buffers(100);
  Bytes room(buffers.size() * 64);
  for (std::size_t i = 0; i < buffers.size(); ++i) backend->post_receive({&room[i * 64], 64, i});
  REQUIRE(record().receives == buffers.size());
  std::vector<Completion> completions;
  const Bytes payload(8, std::byte{1});
  for (int i = 0; i < 10'000; ++i) {
    const auto [from, to] = connected_pair(*backend);
    for (int message = 0; message < 3; ++message) {
      backend->post(from, {.kind = WorkKind::kSend, .data = payload.data(), .length = 8});
    }
    backend->flush(now());
    backend->destroy_qp(to);  // with completions that nobody has polled
    backend->destroy_qp(from);
    backend->progress(now(), completions);
    for (const Completion& completion : completions) {
      if (completion.kind == Completion::Kind::kReceivedSend) {
        backend->post_receive({&room[completion.cookie * 64], 64, completion.cookie});
      }
    }
    completions.clear();
    if (i % 1000 == 0) REQUIRE(record().receives == buffers.size());
  }
  CHECK(record().receives == buffers.size());
}

TEST_CASE("other queue pairs go on while the NIC has not returned what a destroyed one held") {
  fake_verbs::reset();
  const auto backend = open_verbs(backend_options());
  std::vector<ReceiveBuffer> buffers(10);
  Bytes room(buffers.size() * 64);
  for (std::size_t i = 0; i < buffers.size(); ++i) backend->post_receive({&room[i * 64], 64, i});
  const auto [dying, its_peer] = connected_pair(*backend);
  const auto [from, to] = connected_pair(*backend);
  const Bytes payload(8, std::byte{1});
  std::vector<Completion> completions;
  const Nanos t = now();  // the clock stands still: no deadline passes
  backend->post(its_peer, {.kind = WorkKind::kSend, .data = payload.data(), .length = 8});
  backend->flush(t);
  fake_verbs::hold_flushes(true);
  backend->destroy_qp(dying);
  CHECK(record().queue_pairs == 4);
  for (std::uint64_t message = 1; message <= 3; ++message) {
    backend->post(from, {.kind = WorkKind::kSend, .cookie = message, .data = payload.data(), .length = 8});
    backend->flush(t);
    backend->progress(t, completions);
    const auto received = [to = to](const Completion& each) {
      return each.qpn == to && each.kind == Completion::Kind::kReceivedSend;
    };
    CHECK(std::ranges::count_if(completions, received) == static_cast<std::ptrdiff_t>(message));
  }
  CHECK(record().queue_pairs == 4);
  fake_verbs::hold_flushes(false);
  backend->progress(t, completions);
  CHECK(test::eventually([] { return record().queue_pairs == 3; }));
  for (const Completion& each : completions) {
    if (each.kind == Completion::Kind::kReceivedSend) backend->post_receive({&room[each.cookie * 64], 64, each.cookie});
  }
  CHECK(record().receives == buffers.size());
}

TEST_CASE("a queue pair that the NIC never returns is destroyed after a deadline") {
  fake_verbs::reset();
  const auto backend = open_verbs(backend_options());
  const auto [dying, its_peer] = connected_pair(*backend);
  fake_verbs::hold_flushes(true);
  backend->destroy_qp(dying);
  CHECK(record().queue_pairs == 2);
  std::vector<Completion> completions;
  backend->progress(now() + kSecond, completions);
  CHECK(test::eventually([] { return record().queue_pairs == 1; }));
}

// -- calls about queue pairs that take long ----------------------------------------------------------------------

bool open(const Connection& connection) { return connection.state == Connection::State::kOpen; }

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
    CHECK(!open(*connection));
    HeldCall::release();
    CHECK(test::eventually([&] { return open(*connection); }));
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

TEST_CASE("a connection of the peer waits for the end of this side's set-up") {
  fake_verbs::reset();
  Device one(test::verbs_options(1));
  Device two(test::verbs_options(1));
  const auto at_one = one.listen();
  const auto at_two = two.listen();
  const HeldCall held(fake_verbs::Call::kConnect, 1);  // of `one`; `two` is ready and uses the same queue pairs
  const auto there = one.connect(at_two->handle);
  REQUIRE(HeldCall::holds());
  const auto back = two.connect(at_one->handle);
  CHECK(two.counters().peers == 1);
  CHECK(!open(*back));
  HeldCall::release();
  CHECK(test::eventually([&] { return open(*there) && open(*back); }));
  CHECK(record().queue_pairs == 2);
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

/// Ends hold_registrations and hold_deregistrations, so that a test that fails can close its devices.
struct Release {
  Release() = default;
  Release(const Release&) = delete;
  Release& operator=(const Release&) = delete;
  ~Release() {
    fake_verbs::hold_registrations(0);
    fake_verbs::hold_deregistrations(0);
  }
};

// -- registered memory -------------------------------------------------------------------------------------------

TEST_CASE("ibv_fork_init comes before all other calls") {
  VerbsPair pair(1);
  CHECK(record().fork_safe);
}

TEST_CASE("the same memory is registered with the NIC once, until its last deregistration") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  Bytes memory(100'000);
  const std::size_t before = record().regions;
  std::vector<std::uint32_t> rkeys;
  rkeys.reserve(3);
  for (int i = 0; i < 3; ++i) rkeys.push_back(pair.two.register_memory(memory.data(), memory.size()));
  CHECK(record().regions == before + 1);
  const std::uint32_t part = pair.two.register_memory(memory.data(), 50'000);  // of another length
  CHECK(record().regions == before + 2);
  pair.two.deregister_memory(part);
  Bytes out = test::random_fill(1, memory.size());
  for (const std::uint32_t rkey : rkeys) {
    CHECK(record().regions == before + 1);
    pair.check({.bytes = out}, {.bytes = memory, .rkey = rkey});
    pair.two.deregister_memory(rkey);
  }
  CHECK(record().regions == before);
}

TEST_CASE("messages pass while a registration takes long") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  Bytes memory(123'456);
  fake_verbs::hold_registrations(memory.size());
  std::atomic<std::uint32_t> rkey{0};
  std::thread slow([&] { rkey = pair.two.register_memory(memory.data(), memory.size()); });
  for (int i = 0; i < 20; ++i) pair.check(1000);
  CHECK(rkey == 0);
  fake_verbs::hold_registrations(0);
  slow.join();
  CHECK(rkey != 0);
  Bytes out = test::random_fill(1, memory.size());
  pair.check({.bytes = out}, {.bytes = memory, .rkey = rkey});
}

TEST_CASE("messages pass while the memory of another message is registered for it alone") {
  for (const Request::Kind slow : {Request::Kind::kSend, Request::Kind::kReceive}) {
    fake_verbs::reset();
    VerbsPair pair(1);
    pair.check(100);
    Bytes out = test::random_fill(1, 123'456);
    Bytes in(out.size());
    const bool sends = slow == Request::Kind::kSend;
    Device& mine = sends ? pair.one : pair.two;
    Device& other = sends ? pair.two : pair.one;
    // The other half has a registration already, so that only this half's is held.
    const std::uint32_t rkey = other.register_memory((sends ? in : out).data(), in.size());
    const Release release;
    fake_verbs::hold_registrations(in.size());
    const auto half =
        VerbsPair::submit(other, sends ? pair.from : pair.to, sends ? Request::Kind::kReceive : Request::Kind::kSend,
                          {.bytes = sends ? in : out, .rkey = rkey});
    std::shared_ptr<Request> held;
    std::thread submitting(
        [&] { held = VerbsPair::submit(mine, sends ? pair.to : pair.from, slow, {.bytes = sends ? out : in}); });
    CHECK(test::eventually([] { return record().registering == 1; }));
    bool passing = true;
    for (int i = 0; passing && i < 20; ++i) {
      Bytes small = test::random_fill(2, 1000);
      Bytes received(small.size());
      const auto get = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = received}, 7);
      const auto put = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = small}, 7);
      passing = VerbsPair::end(get) == State::kDone && VerbsPair::end(put) == State::kDone && small == received;
    }
    CHECK(passing);
    CHECK(record().registering == 1);
    fake_verbs::hold_registrations(0);
    submitting.join();
    CHECK(VerbsPair::end(held) == State::kDone);
    CHECK(VerbsPair::end(half) == State::kDone);
    CHECK(in == out);
    other.deregister_memory(rkey);
  }
}

/// Memory of two devices that no message has to register.
struct RegisteredPair {
  explicit RegisteredPair(VerbsPair& pair)
      : pair_(pair),
        from_(pair.one.register_memory(out_.data(), out_.size())),
        to_(pair.two.register_memory(in_.data(), in_.size())) {}
  RegisteredPair(const RegisteredPair&) = delete;
  RegisteredPair& operator=(const RegisteredPair&) = delete;
  ~RegisteredPair() {
    pair_.one.deregister_memory(from_);
    pair_.two.deregister_memory(to_);
  }
  /// Whether messages of this tag pass from one device to the other.
  [[nodiscard]] bool pass(std::uint32_t tag) {
    bool passing = true;
    for (int i = 0; passing && i < 20; ++i) {
      std::ranges::fill(in_, std::byte{0});
      const auto get = VerbsPair::submit(pair_.two, pair_.from, Request::Kind::kReceive, {in_, to_}, tag);
      const auto put = VerbsPair::submit(pair_.one, pair_.to, Request::Kind::kSend, {out_, from_}, tag);
      passing = VerbsPair::end(put) == State::kDone && VerbsPair::end(get) == State::kDone && in_ == out_;
    }
    return passing;
  }

 private:
  VerbsPair& pair_;
  Bytes out_ = test::random_fill(5, 1000);
  Bytes in_ = Bytes(1000);
  std::uint32_t from_;
  std::uint32_t to_;
};

TEST_CASE("messages pass while a message's own registration ends, and the message ends after it") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  RegisteredPair others(pair);
  Bytes out = test::random_fill(1, 123'456);
  Bytes in(out.size());
  const std::size_t before = record().regions;
  const Release release;
  fake_verbs::hold_deregistrations(in.size());
  const auto received = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  const auto sent = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out});
  REQUIRE(test::eventually([] { return record().deregistering == 2; }));
  CHECK(others.pass(7));
  CHECK(sent->state == State::kPending);
  CHECK(received->state == State::kPending);
  CHECK(record().deregistering == 2);
  fake_verbs::hold_deregistrations(0);
  CHECK(VerbsPair::end(sent) == State::kDone);
  CHECK(VerbsPair::end(received) == State::kDone);
  CHECK(in == out);
  CHECK(record().regions == before);
}

TEST_CASE("messages pass while memory is deregistered") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  RegisteredPair others(pair);
  Bytes memory(123'456);
  const std::uint32_t rkey = pair.two.register_memory(memory.data(), memory.size());
  const Release release;
  fake_verbs::hold_deregistrations(memory.size());
  std::thread slow([&] { pair.two.deregister_memory(rkey); });
  const bool held = test::eventually([] { return record().deregistering == 1; });
  if (held) CHECK(others.pass(7));
  CHECK(record().deregistering == 1);
  fake_verbs::hold_deregistrations(0);
  slow.join();
  REQUIRE(held);
}

TEST_CASE("messages pass while the memory of a connection that is given up is deregistered") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  RegisteredPair others(pair);
  const auto second = pair.one.connect(pair.listener->handle);
  std::shared_ptr<Connection> accepted;
  REQUIRE(test::eventually([&] {
    accepted = pair.listener->accept();
    return accepted != nullptr;
  }));
  Bytes memory(123'456);
  const std::uint32_t rkey = pair.two.register_memory(memory.data(), memory.size());
  const auto open = VerbsPair::submit(pair.two, accepted, Request::Kind::kReceive, {.bytes = memory, .rkey = rkey});
  const Release release;
  fake_verbs::hold_deregistrations(memory.size());
  std::atomic<bool> given_up{false};
  std::thread slow([&] {
    pair.two.give_up(accepted);
    given_up = true;
  });
  const bool held = test::eventually([] { return record().deregistering == 1; });
  if (held) CHECK(others.pass(7));
  CHECK(!given_up);  // the NIC may still write to the memory
  fake_verbs::hold_deregistrations(0);
  slow.join();
  REQUIRE(held);
  pair.two.close_connection(accepted);
  CHECK(VerbsPair::end(open) == State::kFailed);
}

TEST_CASE("receives are advertised while the memory of their advertisements is registered") {
  fake_verbs::reset();
  VerbsPair pair(1);
  RegisteredPair others(pair);
  const Release release;
  fake_verbs::hold_registrations(sizeof(AdvertisementBatch::bytes));
  std::vector<Bytes> out;
  std::vector<Bytes> in(30, Bytes(300));
  std::vector<std::shared_ptr<Request>> requests;
  for (std::size_t i = 0; i < in.size(); ++i) {
    out.push_back(test::random_fill(i, in[i].size()));
    requests.push_back(VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in[i]}));
  }
  REQUIRE(test::eventually([] { return record().registering == 1; }));
  CHECK(others.pass(7));
  CHECK(record().registering == 1);
  for (Bytes& bytes : out) {
    requests.push_back(VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = bytes}));
  }
  for (std::size_t i = in.size(); i < requests.size(); ++i) CHECK(VerbsPair::end(requests[i]) == State::kDone);
  fake_verbs::hold_registrations(0);
  for (const auto& request : requests) CHECK(VerbsPair::end(request) == State::kDone);
  CHECK(in == out);
  CHECK(others.pass(8));
}

TEST_CASE("a peer that fails while its advertisements are registered leaves no memory registered") {
  fake_verbs::reset();
  const auto of_a_device = [] {
    const Device alone(test::verbs_options(1));
    return record().regions;
  };
  const std::size_t left = of_a_device();
  VerbsPair pair(1);
  const Release release;
  fake_verbs::hold_registrations(sizeof(AdvertisementBatch::bytes));
  Bytes in(50'000);
  const auto received = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  REQUIRE(test::eventually([] { return record().registering == 1; }));
  pair.one.close(0);
  CHECK(test::eventually([&] { return pair.from->state == Connection::State::kClosed; }));
  fake_verbs::hold_registrations(0);
  CHECK(VerbsPair::end(received) == State::kFailed);
  CHECK(test::eventually([&] { return pair.two.counters().peers == 0; }));
  CHECK(test::eventually([&] { return record().regions == left; }));
}

TEST_CASE("a message that is refused leaves no memory registered") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  pair.one.close_connection(pair.to);
  Bytes bytes(100'000);
  const std::size_t before = record().regions;
  for (const auto kind : {Request::Kind::kSend, Request::Kind::kReceive}) {
    CHECK(VerbsPair::end(VerbsPair::submit(pair.one, pair.to, kind, {.bytes = bytes})) == State::kFailed);
    CHECK(record().regions == before);
  }
}

TEST_CASE("closing a device waits for a registration in progress") {
  fake_verbs::reset();
  Device device(test::verbs_options(1));
  Bytes memory(123'456);
  fake_verbs::hold_registrations(memory.size());
  std::thread slow([&] { CHECK(device.register_memory(memory.data(), memory.size()) != 0); });
  REQUIRE(test::eventually([] { return fake_verbs::record().registering == 1; }));
  std::thread closing([&] { device.close(0); });
  fake_verbs::hold_registrations(0);
  slow.join();
  closing.join();
}

TEST_CASE("registrations have relaxed ordering, or do without where the device refuses it") {
  for (const bool takes : {true, false}) {
    CAPTURE(takes);
    fake_verbs::reset();
    nic().relaxed_ordering = takes;
    VerbsPair pair(1);
    for (const std::size_t length : {65U, 100'000U}) pair.check(length);
    CHECK((record().relaxed > 0) == takes);
  }
}

TEST_CASE("memory is registered on kernels with any page size") {
  for (const std::uint64_t page_bytes : {4096U, 16384U, 65536U}) {
    fake_verbs::reset();
    nic().page_bytes = page_bytes;
    VerbsOptions options = backend_options();
    options.page_bytes = page_bytes;
    const auto backend = open_verbs(options);
    Bytes memory(200'000);
    for (const std::size_t offset : {0U, 4096U, 5000U, 70'000U}) {
      CAPTURE(page_bytes);
      const std::uint32_t rkey = backend->register_memory(memory.data() + offset, 100'000);
      CHECK((reinterpret_cast<std::uint64_t>(memory.data() + offset) - backend->remote_address(rkey)) % page_bytes ==
            0);
      CHECK(backend->remote_address(rkey) < page_bytes);  // peers need not know more of the address
      backend->deregister_memory(rkey);
    }
  }
}

// -- memory of other devices -------------------------------------------------------------------------------------

TEST_CASE("messages use another device's memory through its dma-buf, and no processor touches it") {
  fake_verbs::reset();
  Bytes source(1 << 20);
  Bytes target(1 << 20);
  fake_verbs::share_device_memory(901, source.data(), source.size());
  fake_verbs::share_device_memory(902, target.data(), target.size());
  VerbsPair pair;
  // The addresses are only names: they are never dereferenced.
  constexpr std::uint64_t kOffset = 4096;
  const std::uint64_t length = source.size() - kOffset;
  const std::uint32_t from = pair.one.register_device_memory(source.data() + kOffset, length, DmaBuf{901, kOffset});
  const std::uint32_t to = pair.two.register_device_memory(target.data() + kOffset, length, DmaBuf{902, kOffset});
  std::uint64_t offset = 0;
  for (const std::size_t size : {0U, 8U, 64U, 65U, 500'000U}) {
    std::ranges::copy(test::random_fill(size, size), source.data() + kOffset + offset);
    pair.check({.bytes = std::span(source).subspan(kOffset + offset, size), .rkey = from, .offset = offset},
               {.bytes = std::span(target).subspan(kOffset + offset, size), .rkey = to, .offset = offset});
    offset += size;
  }
  CHECK(record().inlined_from_device == 0);
  pair.one.deregister_memory(from);
  pair.two.deregister_memory(to);
}

TEST_CASE("a fence completes with a READ of the memory") {
  fake_verbs::reset();
  Bytes memory(4096);
  fake_verbs::share_device_memory(901, memory.data(), memory.size());
  Device device(test::verbs_options(2));
  const auto fence = [&](std::uint32_t rkey) {
    return VerbsPair::submit(device, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey, .offset = 100});
  };
  const std::uint32_t rkey = device.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0});
  for (int i = 0; i < 3; ++i) CHECK(VerbsPair::end(fence(rkey)) == State::kDone);
  CHECK(record().reads == 3);
  CHECK(record().queue_pairs == 1);
  CHECK(device.counters().messages.receives == 0);

  const auto wrong = fence(rkey + 1000);
  CHECK(VerbsPair::end(wrong) == State::kFailed);
  CHECK(wrong->failure == Failure::kDevice);
  CHECK(VerbsPair::end(fence(rkey)) == State::kDone);                 // a failed fence does not affect later ones
  CHECK(test::eventually([] { return record().queue_pairs == 1; }));  // its own is destroyed when it is drained

  device.close(0);
  const auto late = fence(rkey);
  CHECK(VerbsPair::end(late) == State::kFailed);
}

TEST_CASE("closing the device ends a pending fence") {
  fake_verbs::reset();
  Bytes memory(4096);
  fake_verbs::share_device_memory(901, memory.data(), memory.size());
  Device device(test::verbs_options(2));
  const std::uint32_t rkey = device.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0});
  fake_verbs::hold_completions(true);
  const auto fence = VerbsPair::submit(device, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey});
  device.close(0);
  CHECK(VerbsPair::end(fence) == State::kFailed);
  CHECK(fence->error == "the device was closed");
}

TEST_CASE("dma-buf support is detected as NCCL does it, and nothing stays registered") {
  fake_verbs::reset();
  for (const auto& [error, takes] :
       {std::pair(0, true), {EBADF, true}, {EOPNOTSUPP, false}, {EPROTONOSUPPORT, false}}) {
    nic().dmabuf_error = error;
    CHECK(verbs_ports().at(0).dmabuf == takes);
  }
  CHECK(record().regions == 0);
}

TEST_CASE("registering an invalid dma-buf is an error with a reason") {
  fake_verbs::reset();
  Device device(test::verbs_options(2));
  std::byte name{};
  CHECK_THROWS_WITH_AS(device.register_device_memory(&name, 4096, DmaBuf{903, 0}),
                       "fake0 cannot register a dma-buf: Bad file descriptor", DeviceError);
  DeviceOptions soft;
  soft.address = fake_verbs::kAddress;
  Device other(soft);
  CHECK_THROWS_WITH_AS(other.register_device_memory(&name, 4096, DmaBuf{903, 0}),
                       "this back end takes host memory only", DeviceError);
}

TEST_CASE("queue pairs have the partition key that the options name") {
  for (const unsigned index : {0U, 7U}) {
    fake_verbs::reset();
    DeviceOptions options = test::verbs_options(2);
    options.rdma.pkey_index = index;
    VerbsPair pair(options);
    pair.check(100);
    CHECK(record().pkeys == std::vector<unsigned>(4, index));
  }
}

TEST_CASE("a device has the GID of its IPv6 address, and reaches the GIDs of its peers' addresses") {
  fake_verbs::reset();
  const IpAddress local = *parse_address("::1");
  if (!interface_of(local)) {
    MESSAGE("skipped: the loopback interface has no address ::1");
    return;
  }
  DeviceOptions options = test::verbs_options(2);
  options.address = local;
  VerbsPair pair(options);
  for (const std::size_t length : {0U, 100U, 100'000U}) pair.check(length);
  const std::string gid(local.bytes().begin(), local.bytes().end());
  CHECK(record().gids == std::vector<std::pair<unsigned, std::string>>(4, {5U, gid}));
  CHECK(pair.to->peer_address == local);
}

TEST_CASE("ports are listed by the addresses of their GIDs, but the link-local ones") {
  fake_verbs::reset();
  const auto ports = verbs_ports();
  REQUIRE(ports.size() == 2);
  CHECK(ports[0].address == IpAddress(fake_verbs::kAddress));
  CHECK(ports[0].gid_index == 3);
  CHECK(ports[1].address == *parse_address("::1"));
  CHECK(ports[1].gid_index == 5);
}

TEST_CASE("an InfiniBand port is refused in a sentence") {
  fake_verbs::reset();
  nic().infiniband = true;
  CHECK_THROWS_WITH_AS(
      open_verbs(backend_options()),
      "no RDMA device has a RoCEv2 GID for 127.0.0.1; port 1 of fake0 has InfiniBand as its link layer, "
      "and this transport needs Ethernet (RoCEv2)",
      DeviceError);
}

TEST_CASE("a GID index without a RoCEv2 GID is refused in a sentence") {
  fake_verbs::reset();
  VerbsOptions options = backend_options();
  options.gid_index = 7;
  CHECK_THROWS_WITH_AS(open_verbs(options),
                       "GID index 7 of fake0, which has 127.0.0.1, is not a RoCEv2 GID: `paralet doctor` lists them",
                       DeviceError);
}

// -- events of the NIC --------------------------------------------------------------------------------------------

/// An event comes while a receive is pending. Whether the receive fails for that reason. Its own device may see the
/// event first, or learn it from the other device, which has the same NIC.
bool fails(int event, std::uint32_t number, const std::string& reason) {
  DeviceOptions options = test::verbs_options(1);
  options.retry_time = 200 * kMillisecond;
  options.log = [](const std::string&) {};
  VerbsPair pair(options);
  pair.check(100);
  Bytes in(100);
  const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  fake_verbs::happen(event, number);
  REQUIRE(VerbsPair::end(receive) == State::kFailed);
  CHECK(test::eventually([&] { return pair.from->state == Connection::State::kClosed; }));
  INFO(receive->error);
  return receive->error.ends_with("lane 0 to 127.0.0.1: " + reason);
}

TEST_CASE("a failed NIC and a port that goes down end the requests and connections of the device") {
  fake_verbs::reset();
  CHECK(fails(IBV_EVENT_DEVICE_FATAL, 0, "the RDMA device failed"));
  CHECK(fails(IBV_EVENT_PORT_ERR, 1, "the RDMA port is down and did not come back within the retry time"));
}

TEST_CASE("a failed queue pair ends the requests of its lane") {
  fake_verbs::reset();
  CHECK(fails(IBV_EVENT_QP_FATAL, 18, "the RDMA device failed"));
}

TEST_CASE("a link that flaps is ridden out, and both edges are reported") {
  fake_verbs::reset();
  DeviceOptions options = test::verbs_options(1);
  std::mutex mutex;
  std::vector<std::string> said;
  options.log = [&](const std::string& sentence) {
    const std::lock_guard lock(mutex);
    said.push_back(sentence);
  };
  const auto times_said = [&](const std::string& part) {
    const std::lock_guard lock(mutex);
    return std::ranges::count_if(said, [&](const auto& each) { return each.find(part) != std::string::npos; });
  };
  VerbsPair pair(options);
  pair.check(100);
  for (int flap = 1; flap <= 2; ++flap) {
    Bytes in(100'000);
    Bytes out = test::random_fill(1, in.size());
    const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
    fake_verbs::happen(IBV_EVENT_PORT_ERR, 1);
    fake_verbs::happen(IBV_EVENT_PORT_ERR, 1);  // drivers may repeat it
    CHECK(test::eventually([&] { return times_said("port 1 of fake0 (127.0.0.1) went down: ") == 2 * flap; }));
    fake_verbs::happen(IBV_EVENT_PORT_ACTIVE, 1);
    CHECK(test::eventually([&] { return times_said("port 1 of fake0 (127.0.0.1) is up again after ") == 2 * flap; }));
    const auto send = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out});
    CHECK(VerbsPair::end(send) == State::kDone);
    CHECK(VerbsPair::end(receive) == State::kDone);
    CHECK(in == out);
  }
  CHECK(times_said("") == 8);  // of two devices
}

/// Messages while the path of a lane's port is bad, and the NIC breaks the queue pairs that send with that port.
/// Whether all arrive once the path is good.
void check_break(unsigned lanes, bool mlx5, fake_verbs::Path path) {
  CAPTURE(lanes);
  CAPTURE(mlx5);
  CAPTURE(static_cast<int>(path));
  fake_verbs::reset();
  if (mlx5) nic().sport_error = 0;
  VerbsPair pair(test::verbs_options(lanes));
  pair.check(100);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  std::vector<Bytes> out;
  std::vector<Bytes> in(8 * lanes, Bytes(30'000));
  for (std::size_t i = 0; i < in.size(); ++i) out.push_back(test::random_fill(i, in[i].size()));
  std::vector<std::shared_ptr<Request>> requests;
  const auto exchange = [&] {
    requests.clear();
    for (std::size_t i = 0; i < in.size(); ++i) {
      std::ranges::fill(in[i], std::byte{0});
      requests.push_back(VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in[i]}));
      requests.push_back(VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out[i]}));
    }
  };
  const auto pending = [](const std::shared_ptr<Request>& request) { return request->state == State::kPending; };
  const auto lost = [] { return record().lost > 0; };
  for (int round = 0; round < 3; ++round) {
    fake_verbs::set_path(pair.one.counters().lanes.at(0).qp.port, path);
    exchange();
    // Lanes pull by their estimates, so the others may carry all before the first one pulls.
    for (int again = 0; again < 1000 && !lost(); ++again) {
      REQUIRE(test::eventually([&] { return lost() || std::ranges::none_of(requests, pending); }));
      if (!lost()) exchange();
    }
    REQUIRE(lost());
    fake_verbs::break_queue_pairs(before.qp.port);
    fake_verbs::set_path(before.qp.port, fake_verbs::Path::kGood);
    for (const auto& request : requests) REQUIRE_MESSAGE(VerbsPair::end(request) == State::kDone, request->error);
    REQUIRE(in == out);
  }
  const LaneCounters after = pair.one.counters().lanes.at(0);
  CHECK(after.qpn != before.qpn);
  CHECK(after.qp.port == before.qp.port);
  CHECK(after.moves == 0);
  CHECK(test::eventually([&] { return record().queue_pairs == 2 * lanes; }));  // broken ones are gone
}

TEST_CASE("a queue pair that the NIC breaks is replaced, and no flowlet is lost or counted twice") {
  for (const unsigned lanes : {1U, 4U}) {
    for (const bool mlx5 : {false, true}) {
      for (const auto path : {fake_verbs::Path::kDead, fake_verbs::Path::kMute}) check_break(lanes, mlx5, path);
    }
  }
}

TEST_CASE("a lane whose queue pairs keep breaking gives its peer up, and says why") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  const std::uint16_t port = pair.one.counters().lanes.at(0).qp.port;
  fake_verbs::set_path(port, fake_verbs::Path::kDead);
  Bytes in(100);
  Bytes out(100);
  const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  const auto send = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out});
  REQUIRE(test::eventually([&] {
    if (record().lost > 0) fake_verbs::break_queue_pairs(port);
    return send->state != State::kPending;
  }));
  CHECK(send->failure == Failure::kDevice);
  CHECK(send->error == "lane 0 to 127.0.0.1: the RDMA device ended its queue pair 9 times in a row and gave no reason");
  CHECK(VerbsPair::end(receive) == State::kFailed);
}

/// Ends all TCP connections of this process, as the kernel does when nothing has come through for too long.
void end_tcp_connections() {
  constexpr int kMostDescriptors = 1024;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.sin_family == AF_INET) {
      ::shutdown(fd, SHUT_RDWR);
    }
  }
}

TEST_CASE("a peer that is lost while the port is down, or soon after, is reported as the port's failure") {
  for (const bool back : {false, true}) {
    CAPTURE(back);
    fake_verbs::reset();
    std::atomic<int> edges{0};
    DeviceOptions options = test::verbs_options(1);
    options.retry_time = 60 * kSecond;
    options.log = [&](const std::string&) { ++edges; };
    VerbsPair pair(options);
    pair.check(100);
    Bytes in(100);
    const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
    fake_verbs::happen(IBV_EVENT_PORT_ERR, 1);
    if (back) fake_verbs::happen(IBV_EVENT_PORT_ACTIVE, 1);
    REQUIRE(test::eventually([&] { return edges == (back ? 4 : 2); }));  // of two devices
    end_tcp_connections();
    REQUIRE(VerbsPair::end(receive) == State::kFailed);
    CHECK(receive->failure == Failure::kDevice);
    const std::string trouble = back ? "the RDMA port was down" : "the RDMA port is down";
    CHECK(receive->error == trouble + ", and 127.0.0.1 went away: the peer closed the connection");
  }
}

TEST_CASE("another port of the NIC that goes down has no effect") {
  fake_verbs::reset();
  VerbsPair pair(1);
  fake_verbs::happen(IBV_EVENT_PORT_ERR, 2);
  pair.check(100);
}

// -- enhanced connection establishment ---------------------------------------------------------------------------

TEST_CASE("ECE is offered, agreed on before the queue pairs are connected, and the result is returned") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  CHECK(times("set_ece") == 2);
  // QP 17 connects: it offers ECE and applies what QP 18 agreed to.
  CHECK(place_of("query_ece 17") < place_of("set_ece 18 0x35"));
  CHECK(place_of("set_ece 18") < place_of("rtr 18"));
  CHECK(place_of("rtr 18") < place_of("query_ece 18"));
  CHECK(place_of("query_ece 18") < place_of("set_ece 17 0x31"));
  CHECK(place_of("set_ece 17") < place_of("rtr 17"));
}

TEST_CASE("without an ECE offer none is set") {
  fake_verbs::reset();
  nic().ece_vendor = 0;
  VerbsPair pair(1);
  pair.check(100);
  CHECK(times("set_ece") == 0);
}

TEST_CASE("an ECE that the NIC rejects is ignored") {
  fake_verbs::reset();
  nic().ece_error = EINVAL;
  VerbsPair pair(1);
  pair.check(100);
  CHECK(times("set_ece") == 2);
}

// -- source ports ------------------------------------------------------------------------------------------------

TEST_CASE("the flow label carries the source port, and another port needs a new queue pair") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  CHECK(before.method == PortMethod::kFlowLabel);
  const auto labels = record().labels;
  CHECK(std::ranges::count(labels, flow_label_of_port(before.qp.port)) >= 1);
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  REQUIRE(test::eventually([&] { return pair.one.counters().lanes.at(0).qp.port == 0xE333; }));
  pair.check(100'000);
  CHECK(record().labels.size() == 4);
  CHECK(std::ranges::count(record().labels, flow_label_of_port(0xE333)) == 1);
  CHECK(pair.one.counters().lanes.at(0).qpn != before.qpn);
  CHECK(test::eventually([] { return record().queue_pairs == 2; }));  // the old ones are gone
}

TEST_CASE("a lane gets a fresh queue pair at most once in 5 ms, whichever side asks") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  constexpr unsigned kMoves = 20;
  const Nanos begin = now();
  for (unsigned i = 0; i < kMoves; ++i) {
    Device& mover = i % 2 == 0 ? pair.one : pair.two;
    const auto port = static_cast<std::uint16_t>(0xE000 + i);
    REQUIRE(mover.set_port(fake_verbs::kAddress, 0, port));
    REQUIRE(test::eventually([&] { return mover.counters().lanes.at(0).qp.port == port; }));
  }
  CHECK(now() - begin >= (kMoves - 1) * 5 * kMillisecond);
  pair.check(100'000);
  CHECK(record().labels.size() == 2 + 2 * kMoves);
  CHECK(test::eventually([] { return record().queue_pairs == 2; }));
}

TEST_CASE("mlx5's call sets the port of a ready queue pair, and changes it without a new queue pair") {
  fake_verbs::reset();
  nic().sport_error = 0;
  VerbsPair pair(1);
  pair.check(100);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  CHECK(before.method == PortMethod::kModifyQp);
  const std::string qpn = std::to_string(before.qpn);
  CHECK(place_of("rts " + qpn) < place_of("sport " + qpn + " " + std::to_string(before.qp.port)));
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  pair.check(100'000);
  const LaneCounters after = pair.one.counters().lanes.at(0);
  CHECK(after.qp.port == 0xE333);
  CHECK(after.qpn == before.qpn);
  CHECK(after.moves == 1);
  CHECK(times("sport " + qpn + " " + std::to_string(0xE333)) == 1);
  CHECK(record().labels.size() == 2);
}

TEST_CASE("when mlx5's call fails the lane keeps its port, and the counters show that port") {
  fake_verbs::reset();
  nic().sport_error = 0;
  VerbsPair pair(1);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  nic().sport_error = EINVAL;
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  pair.check(100);
  CHECK(pair.one.counters().lanes.at(0).qp.port == before.qp.port);
  CHECK(pair.one.counters().lanes.at(0).moves == 0);
}

}  // namespace
}  // namespace paralet
