// SPDX-License-Identifier: Apache-2.0
// Devices on addresses of the loopback interface, in one process, over real sockets. Times bound how long a test may
// hang, never how fast it must be.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "bytes.hpp"
#include "engine/device.hpp"
#include "soft/soft_backend.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

using test::Bytes;
using State = Request::State;

constexpr std::uint32_t kA = 0x7F000001;  // 127.0.0.1
constexpr std::uint32_t kB = 0x7F000002;
constexpr auto kPatience = std::chrono::seconds(20);

template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

DeviceOptions options(std::uint32_t address, unsigned lanes = 4) {
  DeviceOptions out;
  out.address = address;
  out.policy.lanes = lanes;
  out.min_timeout = 5 * kMillisecond;
  return out;
}

using ConnectionPtr = std::shared_ptr<Connection>;
using RequestPtr = std::shared_ptr<Request>;

RequestPtr submit(Device& device, const ConnectionPtr& connection, Request::Kind kind, std::span<std::byte> memory,
                  std::uint32_t tag = 0) {
  auto request = std::make_shared<Request>();
  request->kind = kind;
  request->connection = connection;
  request->data = memory.data();
  request->length = memory.size();
  request->tag = tag;
  device.submit(request);
  return request;
}

/// The final state; kPending when patience ran out.
State wait(const RequestPtr& request) {
  static_cast<void>(eventually([&] { return request->state != State::kPending; }));
  return request->state;
}

bool open(const ConnectionPtr& connection) {
  static_cast<void>(eventually([&] { return connection->state != Connection::State::kConnecting; }));
  return connection->state == Connection::State::kOpen;
}

ConnectionPtr accept(Listener& listener) {
  ConnectionPtr connection;
  static_cast<void>(eventually([&] {
    const std::lock_guard lock(listener.mutex);
    if (listener.arrived.empty()) return false;
    connection = listener.arrived.front();
    listener.arrived.pop_front();
    return true;
  }));
  REQUIRE(connection);
  return connection;
}

/// One connection between two devices.
struct Joined {
  Joined(Device& connecting, Device& listening)
      : one(connecting), two(listening), listener(listening.listen()), to(connecting.connect(listener->handle)) {
    REQUIRE(open(to));
    from = accept(*listener);
  }
  RequestPtr send(Bytes& data, std::uint32_t tag = 0) const { return submit(one, to, Request::Kind::kSend, data, tag); }
  RequestPtr receive(Bytes& data, std::uint32_t tag = 0) const {
    return submit(two, from, Request::Kind::kReceive, data, tag);
  }
  RequestPtr send_back(Bytes& data, std::uint32_t tag = 0) const {
    return submit(two, from, Request::Kind::kSend, data, tag);
  }
  RequestPtr receive_back(Bytes& data, std::uint32_t tag = 0) const {
    return submit(one, to, Request::Kind::kReceive, data, tag);
  }
  /// A message there and one back.
  void check(std::size_t bytes) const {
    Bytes out = test::random_fill(bytes, bytes);
    Bytes in(bytes);
    const auto received = receive(in);
    const auto sent = send(out);
    REQUIRE(wait(sent) == State::kDone);
    REQUIRE(wait(received) == State::kDone);
    CHECK(in == out);
    Bytes back(bytes);
    const auto returned = receive_back(back);
    REQUIRE(wait(send_back(in)) == State::kDone);
    REQUIRE(wait(returned) == State::kDone);
    CHECK(back == out);
  }

  Device& one;
  Device& two;
  std::shared_ptr<Listener> listener;
  ConnectionPtr to;
  ConnectionPtr from;
};

struct Two {
  Device a{options(kA)};
  Device b{options(kB)};
};

std::string why(const RequestPtr& request) {
  REQUIRE(wait(request) == State::kFailed);
  return request->error;
}

// -- transfers ---------------------------------------------------------------------------------------------------

TEST_CASE("messages of all sizes go both ways") {
  Two two;
  const Joined joined(two.a, two.b);
  for (const std::size_t bytes : {0, 1, 3, 4095, 4096, 4097, 100'000, 3'000'001}) {
    CAPTURE(bytes);
    joined.check(bytes);
  }
}

TEST_CASE("sends may come before their receives") {
  Two two;
  const Joined joined(two.a, two.b);
  Bytes out = test::random_fill(1, 50'000);
  Bytes in(out.size());
  const auto sent = joined.send(out);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(sent->state == State::kPending);
  CHECK(wait(joined.receive(in)) == State::kDone);
  CHECK(wait(sent) == State::kDone);
  CHECK(in == out);
}

TEST_CASE("tags are matched in order among their own") {
  Two two;
  const Joined joined(two.a, two.b);
  constexpr std::uint32_t kTags = 5;
  constexpr std::size_t kEach = 40;
  std::vector<Bytes> out;
  std::vector<Bytes> in(kTags * kEach, Bytes(9000));
  out.reserve(kTags * kEach);
  for (std::size_t i = 0; i < kTags * kEach; ++i) out.push_back(test::random_fill(i, 1 + i * 37));
  std::vector<RequestPtr> requests;
  // Receives by tag, sends round robin: they meet in another order than they come.
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

TEST_CASE("a message may be shorter than its receive, and leaves the rest alone") {
  Two two;
  const Joined joined(two.a, two.b);
  Bytes out = test::random_fill(1, 10'000);
  Bytes in(20'000, std::byte{0x55});
  const auto received = joined.receive(in);
  REQUIRE(wait(joined.send(out)) == State::kDone);
  REQUIRE(wait(received) == State::kDone);
  CHECK(received->bytes == out.size());
  CHECK(std::equal(out.begin(), out.end(), in.begin()));
  CHECK(std::all_of(in.begin() + 10'000, in.end(), [](std::byte b) { return b == std::byte{0x55}; }));
}

TEST_CASE("a message longer than its receive fails on both sides, and only it") {
  Two two;
  const Joined joined(two.a, two.b);
  Bytes out(1001);
  Bytes in(1000, std::byte{0x55});
  const auto received = joined.receive(in);
  const auto sent = joined.send(out);
  const std::string expected = "a message of 1001 bytes met a receive of 1000: receive at least as much as is sent";
  CHECK(why(sent) == expected);
  CHECK(why(received) == expected);
  CHECK(sent->failure == Failure::kTransport);
  CHECK(in == Bytes(1000, std::byte{0x55}));
  joined.check(5000);
}

TEST_CASE("registered memory serves many receives, at offsets") {
  Two two;
  const Joined joined(two.a, two.b);
  Bytes region(64 * 1024);
  const std::uint32_t rkey = two.b.register_memory(region.data(), region.size());
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
    two.b.submit(request);
    requests.push_back(request);
    requests.push_back(submit(two.a, joined.to, Request::Kind::kSend, std::span(out).subspan(i * 4096, 4096)));
  }
  for (const auto& request : requests) REQUIRE(wait(request) == State::kDone);
  CHECK(region == out);
  two.b.deregister_memory(rkey);
}

TEST_CASE("memory deregistered while a receive is open is left alone, and other connections to the peer too") {
  Two two;
  const Joined link(two.a, two.b);
  const Joined neighbour(two.a, two.b);
  constexpr std::size_t kBytes = 3'000'000;
  Bytes in(kBytes);
  const std::uint32_t rkey = two.b.register_memory(in.data(), in.size());
  const auto received = std::make_shared<Request>();
  received->kind = Request::Kind::kReceive;
  received->connection = link.from;
  received->data = in.data();
  received->length = in.size();
  received->rkey = rkey;
  two.b.submit(received);
  two.b.deregister_memory(rkey);
  Bytes out = test::random_fill(1, kBytes);
  CHECK(wait(link.send(out)) == State::kDone);
  CHECK(why(received) == "its memory was taken back before the message came");
  CHECK(in == Bytes(kBytes));
  neighbour.check(100'000);
  link.check(100'000);
}

TEST_CASE("giving up a peer that does not answer ends a send at once, and its memory is free") {
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
  out.reset();  // AddressSanitizer would see a retransmission read it
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

TEST_CASE("giving up a peer that does not answer leaves the memory of open receives alone from then on") {
  Two two;
  const Joined joined(two.a, two.b);
  const Joined neighbour(two.a, two.b);
  constexpr std::size_t kBytes = 1'000'000;
  Bytes in(kBytes);
  const auto received = joined.receive_back(in);
  two.a.give_up(joined.to);  // as if its close had not been answered: the advertisement is with the peer
  Bytes out = test::random_fill(3, kBytes);
  CHECK(wait(joined.send_back(out)) == State::kDone);
  CHECK(why(received) == "its memory was taken back before the message came");
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

TEST_CASE("mice are one flowlet, whatever S is") {
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

TEST_CASE("two devices may use each other from many threads") {
  Two two;
  constexpr std::size_t kThreads = 4;
  std::vector<std::unique_ptr<Joined>> joined;
  for (std::size_t i = 0; i < kThreads; ++i) joined.push_back(std::make_unique<Joined>(two.a, two.b));
  std::atomic<unsigned> good{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      SplitMix64 random(t);
      for (int i = 0; i < 50; ++i) {
        Bytes out = test::random_fill(random, random.below(30'000));
        Bytes in(out.size());
        const auto received = joined[t]->receive(in, static_cast<std::uint32_t>(i));
        const auto sent = joined[t]->send(out, static_cast<std::uint32_t>(i));
        if (wait(sent) == State::kDone && wait(received) == State::kDone && in == out) ++good;
        static_cast<void>(two.a.counters());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == kThreads * 50);
}

// -- connections and peers ---------------------------------------------------------------------------------------

/// Polls both devices until `request` has ended.
State poll_until_done(Device& one, Device& two, const RequestPtr& request) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (request->state == State::kPending && std::chrono::steady_clock::now() < until) {
    one.poll();
    two.poll();
  }
  return request->state;
}

TEST_CASE("callers that poll, submit and wait from many threads get on") {
  DeviceOptions polling = options(kA);
  polling.busy_poll = 50 * kMillisecond;
  Device a(polling);
  Device b(options(kB));
  constexpr std::size_t kThreads = 4;
  constexpr unsigned kMessages = 60;
  std::vector<std::unique_ptr<Joined>> links;
  for (std::size_t i = 0; i < kThreads; ++i) links.push_back(std::make_unique<Joined>(a, b));
  std::atomic<unsigned> right{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      // Odd threads only wait, so that the progress thread and the pollers pass the progress lock to each other.
      for (unsigned n = 0; n < kMessages; ++n) {
        Bytes out = test::random_fill(1000 * i + n, n % 3 == 0 ? 8 : 20'000 * (n % 5));
        Bytes in(out.size());
        const auto received = links[i]->receive(in);
        const auto sent = links[i]->send(out);
        const auto ended = [&received] { return received->state != State::kPending; };
        if (i % 2 == 0) {
          static_cast<void>(poll_until_done(a, b, received));
        } else {
          static_cast<void>(a.wait(ended, 20 * kSecond));
        }
        const bool done = received->state == State::kDone;
        if (done && wait(sent) == State::kDone && in == out) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == kThreads * kMessages);
}

TEST_CASE("whoever polled and stopped is not needed for what follows") {
  Two two;
  const Joined link(two.a, two.b);
  for (int round = 0; round < 20; ++round) {
    Bytes out = test::random_fill(static_cast<std::uint64_t>(round), 300'000);
    Bytes in(out.size());
    const auto received = link.receive(in);
    for (int i = 0; i < 10 * round; ++i) {
      link.one.poll();
      link.two.poll();
    }
    if (round % 2 == 0) link.one.stop_polling();
    const auto sent = link.send(out);
    REQUIRE(wait(received) == State::kDone);
    REQUIRE(wait(sent) == State::kDone);
    CHECK(in == out);
  }
}

TEST_CASE("a request that is done may be submitted again") {
  Two two;
  const Joined link(two.a, two.b);
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
    two.b.submit(received);
    two.a.submit(sent);
  }
  REQUIRE(wait(received) == State::kDone);
  REQUIRE(wait(sent) == State::kDone);
}

TEST_CASE("receives advertised by the hundred arrive in order") {
  Two two;
  const Joined link(two.a, two.b);
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

TEST_CASE("connections to one peer share its QPs") {
  Two two;
  const auto listener = two.b.listen();
  std::vector<ConnectionPtr> mine;
  std::vector<ConnectionPtr> theirs;
  mine.reserve(64);
  theirs.reserve(64);
  for (int i = 0; i < 64; ++i) mine.push_back(two.a.connect(listener->handle));
  for (const auto& connection : mine) REQUIRE(open(connection));
  for (int i = 0; i < 64; ++i) theirs.push_back(accept(*listener));
  const DeviceCounters counters = two.a.counters();
  CHECK(counters.connections == 64);
  CHECK(counters.peers == 1);
  CHECK(counters.lanes.size() == 4);
  CHECK(two.b.counters().lanes.size() == 4);
  // Each is a stream of its own all the same. Both sides know them by the order of the answers.
  std::vector<Bytes> in(64, Bytes(8));
  std::vector<Bytes> out;
  out.reserve(64);
  std::vector<RequestPtr> requests;
  for (std::size_t i = 0; i < 64; ++i) {
    out.push_back(test::random_fill(i, 8));
    requests.push_back(submit(two.b, theirs[i], Request::Kind::kReceive, in[i]));
    requests.push_back(submit(two.a, mine[i], Request::Kind::kSend, out[i]));
  }
  for (const auto& request : requests) REQUIRE(wait(request) == State::kDone);
  const auto contents = [](const std::vector<Bytes>& messages) {
    std::set<std::string> texts;
    for (const Bytes& message : messages) texts.insert(test::to_hex(message));
    return texts;
  };
  CHECK(contents(in) == contents(out));
}

TEST_CASE("connections the other way use the QPs that are there") {
  Two two;
  const Joined there(two.a, two.b);
  const Joined back(two.b, two.a);
  there.check(10'000);
  back.check(10'000);
  CHECK(two.a.counters().peers == 1);
  CHECK(two.b.counters().lanes.size() == 4);
}

TEST_CASE("both sides may connect at the same time") {
  for (int round = 0; round < 5; ++round) {
    Two two;
    const auto listener_a = two.a.listen();
    const auto listener_b = two.b.listen();
    const auto a_to_b = two.a.connect(listener_b->handle);
    const auto b_to_a = two.b.connect(listener_a->handle);
    REQUIRE(open(a_to_b));
    REQUIRE(open(b_to_a));
    const auto at_b = accept(*listener_b);
    const auto at_a = accept(*listener_a);
    Bytes one = test::random_fill(1, 20'000);
    Bytes other = test::random_fill(2, 20'000);
    Bytes got_one(20'000);
    Bytes got_other(20'000);
    const std::array requests{
        submit(two.b, at_b, Request::Kind::kReceive, got_one), submit(two.a, at_a, Request::Kind::kReceive, got_other),
        submit(two.a, a_to_b, Request::Kind::kSend, one), submit(two.b, b_to_a, Request::Kind::kSend, other)};
    for (const auto& request : requests) REQUIRE(wait(request) == State::kDone);
    CHECK(got_one == one);
    CHECK(got_other == other);
  }
}

TEST_CASE("a device may connect to itself") {
  Device a(options(kA));
  const Joined joined(a, a);
  joined.check(100'000);
  CHECK(a.counters().connections == 2);
}

TEST_CASE("the connecting side's number of lanes holds") {
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

TEST_CASE("the smaller path MTU holds") {
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

TEST_CASE("QPs of a peer without connections are dropped, and come back when needed") {
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

// -- closing -----------------------------------------------------------------------------------------------------

TEST_CASE("closing fails what is pending on both sides and says whose doing it was") {
  Two two;
  const Joined joined(two.a, two.b);
  Bytes memory(4096);
  Bytes other(4096);
  const auto sending = joined.send(memory);
  const auto receiving = joined.receive_back(other);
  const auto their_send = joined.send_back(memory, 7);
  two.a.close_connection(joined.to);
  CHECK(why(sending) == "the connection was closed");
  CHECK(why(receiving) == "the connection was closed");
  CHECK(sending->failure == Failure::kClosed);
  CHECK(why(their_send) == "127.0.0.1 closed the connection");
  CHECK(their_send->failure == Failure::kClosed);
  REQUIRE(eventually([&] { return joined.to->state == Connection::State::kClosed; }));
  Bytes late(1);
  CHECK(why(joined.send_back(late)) == "127.0.0.1 closed the connection");
  CHECK(why(joined.send(late)) == "the connection is not open");
  two.b.close_connection(joined.from);
  CHECK(eventually([&] { return joined.from->state == Connection::State::kClosed; }));
  CHECK(two.a.counters().connections == 0);
  CHECK(two.b.counters().connections == 0);
}

TEST_CASE("what was sent before a close arrives") {
  Two two;
  for (int round = 0; round < 20; ++round) {
    const Joined joined(two.a, two.b);
    Bytes out = test::random_fill(static_cast<std::uint64_t>(round), 200'000);
    Bytes in(out.size());
    const auto received = joined.receive(in);
    REQUIRE(wait(joined.send(out)) == State::kDone);
    two.a.close_connection(joined.to);
    REQUIRE(wait(received) == State::kDone);
    CHECK(in == out);
  }
}

TEST_CASE("closing in the middle of messages, in any order, ends every request and touches no memory afterwards") {
  Two two;
  SplitMix64 random(9);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const Joined joined(two.a, two.b);
    std::vector<std::unique_ptr<Bytes>> memory;
    std::vector<RequestPtr> requests;
    for (std::uint32_t tag = 0; tag < 6; ++tag) {
      const std::size_t bytes = random.below(400'000);
      for (int k = 0; k < 2; ++k) memory.push_back(std::make_unique<Bytes>(bytes));
      Bytes& out = *memory[memory.size() - 2];
      Bytes& in = *memory.back();
      const bool forth = random.uniform() < 0.5;
      if (random.uniform() < 0.9) requests.push_back(forth ? joined.receive(in, tag) : joined.receive_back(in, tag));
      if (random.uniform() < 0.9) requests.push_back(forth ? joined.send(out, tag) : joined.send_back(out, tag));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(1500)));
    const auto order = random.below(3);
    if (order != 1) two.a.close_connection(joined.to);
    if (order != 0) two.b.close_connection(joined.from);
    for (const auto& request : requests) {
      REQUIRE(wait(request) != State::kPending);
      if (request->state == State::kFailed) CHECK(request->failure == Failure::kClosed);
    }
    memory.clear();  // for ASan: it is ours again
    two.a.close_connection(joined.to);
    two.b.close_connection(joined.from);
    REQUIRE(eventually([&] {
      return joined.to->state == Connection::State::kClosed && joined.from->state == Connection::State::kClosed;
    }));
  }
  CHECK(two.a.counters().connections == 0);
  CHECK(two.b.counters().connections == 0);
  const Joined after(two.a, two.b);
  after.check(10'000);
}

TEST_CASE("a device that closes takes its peers' requests with it, not its peers") {
  Device a(options(kA));
  auto b = std::make_unique<Device>(options(kB));
  auto joined = std::make_unique<Joined>(a, *b);
  Bytes memory(100'000);
  Bytes other(100'000);
  const auto sending = joined->send(memory);
  const auto receiving = joined->receive_back(other);
  b->close();
  CHECK(wait(sending) == State::kFailed);
  CHECK(sending->failure == Failure::kClosed);
  CHECK(wait(receiving) == State::kFailed);
  CHECK(receiving->failure == Failure::kClosed);
  b = std::make_unique<Device>(options(kB));
  const Joined again(a, *b);
  again.check(10'000);
}

TEST_CASE("devices may be destroyed with everything open and under way") {
  for (int round = 0; round < 10; ++round) {
    Bytes memory(1'000'000);
    Bytes other(1'000'000);
    auto a = std::make_unique<Device>(options(kA));
    auto b = std::make_unique<Device>(options(kB));
    const auto joined = std::make_unique<Joined>(*a, *b);
    const auto receiving = joined->receive(other);
    const auto sending = joined->send(memory);
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    (round % 2 == 0 ? a : b).reset();
    CHECK(wait(sending) != State::kPending);
    CHECK(wait(receiving) != State::kPending);
  }
}

TEST_CASE("a closed device says so") {
  Device a(options(kA));
  Device b(options(kB));
  const Joined joined(a, b);
  const auto handle = joined.listener->handle;
  a.close();
  a.close();
  CHECK(a.closed());
  CHECK_THROWS_WITH_AS(a.listen(), "the device is closed", DeviceError);
  CHECK_THROWS_WITH_AS(a.connect(handle), "the device is closed", DeviceError);
  Bytes memory(1);
  CHECK(why(joined.send(memory)) == "the device is closed");
  CHECK(a.counters().lanes.empty());
  a.close_connection(joined.to);
  a.deregister_memory(1);
}

TEST_CASE("a closed device holds no descriptor, though its object stays") {
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = open_files();
  Two two;
  const Joined joined(two.a, two.b);
  joined.check(1000);
  CHECK(open_files() > before);
  two.a.close();
  two.b.close();
  CHECK(open_files() == before);
  two.a.stop_polling();
  CHECK_FALSE(two.a.wait([] { return false; }, kMillisecond));
}

TEST_CASE("requests submitted while a device closes all end") {
  for (int round = 0; round < 20; ++round) {
    Device a(options(kA));
    Device b(options(kB));
    const Joined joined(a, b);
    std::vector<RequestPtr> requests;
    Bytes memory(64);
    std::thread submitting([&] {
      for (int i = 0; i < 2000; ++i) requests.push_back(joined.send(memory));
    });
    a.close(0);
    submitting.join();
    for (const auto& request : requests) REQUIRE(wait(request) == State::kFailed);
  }
}

TEST_CASE("a connection closed before the peer answered leaves nothing behind") {
  Two two;
  const Joined first(two.a, two.b);
  const auto listener = two.b.listen();
  for (int i = 0; i < 20; ++i) {
    const auto connection = two.a.connect(listener->handle);
    two.a.close_connection(connection);
    REQUIRE(eventually([&] { return connection->state == Connection::State::kClosed; }));
    const auto accepted = accept(*listener);
    CHECK(eventually([&] { return accepted->failure == Failure::kClosed; }));
    two.b.close_connection(accepted);
    CHECK(eventually([&] { return accepted->state == Connection::State::kClosed; }));
  }
  CHECK(two.a.counters().connections == 1);
  CHECK(two.b.counters().connections == 1);
}

// -- refusals ----------------------------------------------------------------------------------------------------

std::string refusal(Device& device, const std::array<std::byte, handshake::kHandleBytes>& handle) {
  const auto connection = device.connect(handle);
  REQUIRE(eventually([&] { return connection->state == Connection::State::kClosed; }));
  CHECK(connection->failure != Failure::kNone);
  return connection->error;
}

TEST_CASE("a wrong token is refused, before and after QPs are there") {
  Two two;
  const auto listener = two.b.listen();
  handshake::Handle forged = *handshake::decode_handle(listener->handle);
  forged.token[0] ^= std::byte{1};
  CHECK(refusal(two.a, handshake::encode(forged)) ==
        "127.0.0.2 refused: nobody listens there any more, or the handle is wrong");
  const Joined joined(two.a, two.b);
  CHECK(refusal(two.a, handshake::encode(forged)) == "127.0.0.2 refused: nobody listens there any more");
  handshake::Handle elsewhere = *handshake::decode_handle(listener->handle);
  elsewhere.listener += 1000;
  CHECK(refusal(two.a, handshake::encode(elsewhere)) == "127.0.0.2 refused: nobody listens there any more");
  joined.check(100);
}

TEST_CASE("a listener that was closed refuses; whom nobody accepted is closed") {
  Two two;
  const Joined kept(two.a, two.b);
  const auto listener = two.b.listen();
  const auto waiting = two.a.connect(listener->handle);
  REQUIRE(open(waiting));
  two.b.stop_listening(listener);
  two.b.stop_listening(listener);
  CHECK(eventually([&] { return waiting->failure == Failure::kClosed; }));
  CHECK(refusal(two.a, listener->handle) == "127.0.0.2 refused: nobody listens there any more");
  two.b.stop_listening(kept.listener);
  kept.check(1000);  // accepted connections stay
}

TEST_CASE("nobody there is an error that says so") {
  Device a(options(kA));
  handshake::Handle nowhere{.address = kB, .tcp_port = 1, .device = {}, .listener = 1, .token = {}};
  CHECK(refusal(a, handshake::encode(nowhere)) == "cannot connect to 127.0.0.2: Connection refused");
  nowhere.address = 0;  // and an address that cannot be connected to at all
  nowhere.tcp_port = 0;
  CHECK(refusal(a, handshake::encode(nowhere)).rfind("cannot connect to 0.0.0.0: ", 0) == 0);
  CHECK(eventually([&] { return a.counters().peers == 0; }));
}

TEST_CASE("a handle that is none is the caller's mistake") {
  Device a(options(kA));
  CHECK_THROWS_AS(a.connect(Bytes(128)), std::invalid_argument);
  CHECK_THROWS_AS(a.connect(Bytes(3)), std::invalid_argument);
}

TEST_CASE("a device that cannot be opened says why") {
  CHECK_THROWS_WITH_AS(Device(options(0xC0000201)),
                       "no interface of this machine has the address 192.0.2.1 (list them with: ip -4 address)",
                       DeviceError);
  CHECK_THROWS_WITH_AS(Device(options(kA, 0)), "lanes must be 1 to 1024", DeviceError);
}

TEST_CASE("a pinned port that another program holds is an error with its number") {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kA);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  // A port of the entropy range, held by us: the kernel's own choice may lie below it.
  std::uint16_t port = ntohs(address.sin_port);
  int held = fd;
  if (port < wire::kFirstEntropyPort) {
    held = ::socket(AF_INET, SOCK_DGRAM, 0);
    for (port = 0xD000; port < 0xD100; ++port) {
      address.sin_port = htons(port);
      if (::bind(held, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) break;
    }
  }
  DeviceOptions pinned = options(kA, 1);
  pinned.policy.kind = PolicyKind::kPinned;
  pinned.policy.ports[kB] = {port};
  Device a(pinned);
  Device b(options(kB));
  const auto listener = b.listen();
  CHECK(refusal(a, listener->handle) ==
        "UDP source port " + std::to_string(port) + " of 127.0.0.1 is taken by another program");
  // And the other way: the side that listens cannot have the port, so it refuses.
  const auto mine = a.listen();
  CHECK(refusal(b, mine->handle) ==
        "127.0.0.1 refused: UDP source port " + std::to_string(port) + " of 127.0.0.1 is taken by another program");
  ::close(fd);
  if (held != fd) ::close(held);
}

TEST_CASE("pinned lanes leave from their ports, and can be moved") {
  DeviceOptions pinned = options(kA, 3);
  pinned.policy.kind = PolicyKind::kPinned;
  pinned.policy.ports[kB] = {0xD111, 0xD222};
  Device a(pinned);
  Device b(options(kB));
  const Joined joined(a, b);
  const auto ports = [&] {
    std::vector<std::uint16_t> out;
    for (const LaneCounters& lane : a.counters().lanes) out.push_back(lane.qp.port);
    return out;
  };
  CHECK(ports() == std::vector<std::uint16_t>{0xD111, 0xD222, 0xD111});
  CHECK(a.set_port(kB, 1, 0xD333));
  CHECK_FALSE(a.set_port(kB, 3, 0xD333));
  CHECK_FALSE(a.set_port(kA, 0, 0xD333));
  CHECK(ports() == std::vector<std::uint16_t>{0xD111, 0xD333, 0xD111});
  CHECK(a.counters().lanes[1].moves == 1);
  joined.check(500'000);
}

TEST_CASE("a lane moves between flowlets, not within one") {
  DeviceOptions slow = options(kA, 1);
  slow.line_rate_bps = 20e6;
  slow.flowlet_bytes = 100'000;
  Device a(slow);
  Device b(options(kB, 1));
  const Joined joined(a, b);
  Bytes out = test::random_fill(1, 300'000);
  Bytes in(out.size());
  const auto received = joined.receive(in);
  const auto sent = joined.send(out);
  REQUIRE(eventually([&] { return a.counters().lanes[0].qp.counters.tx_packets > 3; }));
  const std::uint16_t before = a.counters().lanes[0].qp.port;
  const std::uint16_t after = before == 0xD123 ? 0xD124 : 0xD123;
  CHECK(a.set_port(kB, 0, after));
  CHECK(a.counters().lanes[0].qp.port == before);
  CHECK(a.counters().lanes[0].moves == 0);
  REQUIRE(wait(sent) == State::kDone);
  REQUIRE(wait(received) == State::kDone);
  CHECK(in == out);
  CHECK(a.counters().lanes[0].qp.port == after);
  CHECK(a.counters().lanes[0].moves == 1);
}

// -- ends of flowlets --------------------------------------------------------------------------------------------

TEST_CASE(
    "a flowlet whose last packet immediate data would make longer ends in a SEND behind it, if nothing is paced") {
  constexpr std::uint64_t kMtu = 4096;
  for (const double line_rate_bps : {0.0, 1e9}) {
    DeviceOptions of_a = options(kA, 1);
    of_a.line_rate_bps = line_rate_bps;
    of_a.flowlet_bytes = 16 * kMtu;
    Device a(of_a);
    Device b(options(kB, 1));
    REQUIRE(a.path_mtu() == kMtu);
    const Joined joined(a, b);
    struct Case {
      std::uint64_t bytes;
      std::uint64_t packets;  ///< as short as they can be
      std::uint64_t ends;     ///< flowlets that end apart
    };
    for (const Case& c : {Case{2 * kMtu, 2, 0}, Case{2 * kMtu + 1, 3, 0}, Case{3 * kMtu - 4, 3, 0},
                          Case{3 * kMtu - 3, 3, 1}, Case{3 * kMtu, 3, 1}, Case{3 * kMtu + 1, 4, 0},
                          Case{16 * kMtu, 16, 1}, Case{32 * kMtu, 32, 2}, Case{33 * kMtu + 5, 34, 2}}) {
      CAPTURE(line_rate_bps);
      CAPTURE(c.bytes);
      Bytes out = test::random_fill(7, c.bytes);
      Bytes in(c.bytes + 100);
      const auto lane = [&a] { return a.counters().lanes[0]; };
      const LaneCounters before = lane();
      const auto received = joined.receive(in);
      const auto sent = joined.send(out);
      REQUIRE(wait(sent) == State::kDone);
      REQUIRE(wait(received) == State::kDone);
      CHECK(received->bytes == c.bytes);
      CHECK(std::equal(out.begin(), out.end(), in.begin()));
      const LaneCounters after = lane();
      CHECK(after.flowlets - before.flowlets == (c.bytes + 16 * kMtu - 1) / (16 * kMtu));
      const auto once = [](const LaneCounters& l) { return l.qp.counters.tx_packets - l.qp.counters.retransmits; };
      CHECK(once(after) - once(before) == c.packets + (line_rate_bps > 0 ? 0 : c.ends));
    }
  }
}

// -- peers in turn -----------------------------------------------------------------------------------------------

/// `soft`, but there is room for one flowlet at a time, on any lane, once a number of peers have advertised receives.
class OneAtATime final : public SoftBackend {
 public:
  struct Log {
    std::size_t awaited = 0;              ///< peers
    std::vector<std::uint32_t> flowlets;  ///< the address that each one went to
  };
  OneAtATime(const SoftOptions& options, Log& log) : SoftBackend(options), log_(log) {}
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t port) override {
    address_[qpn] = remote.address;
    return SoftBackend::connect_qp(qpn, remote, port);
  }
  bool progress(Nanos t, std::vector<Completion>& completions) override {
    const bool any = SoftBackend::progress(t, completions);
    for (const Completion& done : completions) {
      if (done.kind == Completion::Kind::kReceivedSend) advertised_.insert(address_[done.qpn]);
    }
    full_ = false;
    return any;
  }
  void post(std::uint32_t qpn, const WorkRequest& request) override {
    if (request.kind == WorkKind::kWrite || request.kind == WorkKind::kWriteImm) {
      log_.flowlets.push_back(address_[qpn]);
      full_ = true;
    }
    SoftBackend::post(qpn, request);
  }
  [[nodiscard]] bool wants_work(Nanos /*t*/) const override { return advertised_.size() >= log_.awaited && !full_; }
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override {
    PathEstimate out = SoftBackend::estimate(qpn);
    out.hungry = true;
    return out;
  }

 private:
  Log& log_;
  std::map<std::uint32_t, std::uint32_t> address_;
  std::set<std::uint32_t> advertised_;
  bool full_ = false;
};

TEST_CASE("peers with long messages are served in turn") {
  constexpr std::size_t kPeers = 3;
  constexpr std::size_t kFlowlets = 20;
  DeviceOptions short_flowlets = options(kA);
  short_flowlets.flowlet_bytes = 20'000;
  SoftOptions of_a;
  of_a.address = kA;
  OneAtATime::Log log{.awaited = kPeers};
  Device a(short_flowlets, std::make_unique<OneAtATime>(of_a, log));
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Joined> joined;
  for (std::uint32_t i = 0; i < kPeers; ++i) {
    devices.push_back(std::make_unique<Device>(options(kB + i)));
    joined.emplace_back(a, *devices.back());
  }
  Bytes out = test::random_fill(1, kFlowlets * 20'000);
  std::array<Bytes, kPeers> in;
  std::vector<RequestPtr> requests;
  requests.reserve(2 * kPeers);
  for (const Joined& to : joined) requests.push_back(to.send(out));
  for (std::size_t i = 0; i < kPeers; ++i) {
    in[i].resize(out.size());
    requests.push_back(joined[i].receive(in[i]));
  }
  for (const RequestPtr& request : requests) REQUIRE(wait(request) == State::kDone);
  for (const Bytes& each : in) CHECK(each == out);
  REQUIRE(log.flowlets.size() == kPeers * kFlowlets);
  for (std::size_t round = 0; round < kFlowlets; ++round) {
    const auto first = log.flowlets.begin() + static_cast<std::ptrdiff_t>(round * kPeers);
    CHECK(std::set<std::uint32_t>(first, first + kPeers).size() == kPeers);
  }
}

// -- ports that are fixed ----------------------------------------------------------------------------------------

/// `soft` as if its ports were fixed when a QP connects, as they are where a NIC takes them from the flow label.
class FixedPorts final : public SoftBackend {
 public:
  struct Qps {
    std::atomic<int> alive{0};
    std::atomic<int> most{1000};
  };
  FixedPorts(const SoftOptions& options, Qps& qps) : SoftBackend(options), qps_(qps) {}
  QpIdentity create_qp() override {
    if (qps_.alive >= qps_.most) throw DeviceError("no more queue pairs");
    ++qps_.alive;
    return SoftBackend::create_qp();
  }
  void destroy_qp(std::uint32_t qpn) override {
    --qps_.alive;
    SoftBackend::destroy_qp(qpn);
  }
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t port) override {
    connecting_ = true;
    const bool connected = SoftBackend::connect_qp(qpn, remote, port);
    connecting_ = false;
    return connected;
  }
  bool set_port(std::uint32_t qpn, std::uint16_t port) override {
    return connecting_ && SoftBackend::set_port(qpn, port);
  }
  [[nodiscard]] PortMethod port_method() const override { return PortMethod::kFlowLabel; }

 private:
  Qps& qps_;
  bool connecting_ = false;
};

/// Two devices with two lanes each, at a rate at which flowlets take a while.
struct TwoFixed {
  static DeviceOptions slow(std::uint32_t address) {
    DeviceOptions out = options(address, 2);
    out.flowlet_bytes = 20'000;
    return out;
  }
  static std::unique_ptr<Backend> backend(std::uint32_t address, FixedPorts::Qps& qps) {
    SoftOptions out;
    out.address = address;
    out.line_rate_bps = 40e6;
    return std::make_unique<FixedPorts>(out, qps);
  }
  FixedPorts::Qps a_qps;
  FixedPorts::Qps b_qps;
  Device a{slow(kA), backend(kA, a_qps)};
  Device b{slow(kB), backend(kB, b_qps)};
};

LaneCounters lane_of(Device& device, unsigned index) { return device.counters().lanes.at(index); }

TEST_CASE("where ports are fixed a lane moves over to a fresh QP, and what the old one has arrives") {
  TwoFixed two;
  const Joined joined(two.a, two.b);
  const LaneCounters before = lane_of(two.a, 0);
  const std::uint16_t other = lane_of(two.a, 1).qp.port;
  const std::uint16_t of_b = lane_of(two.b, 0).qp.port;
  Bytes out = test::random_fill(3, 400'000);
  Bytes in(out.size());
  const auto received = joined.receive(in);
  const auto sent = joined.send(out);
  REQUIRE(eventually([&] { return lane_of(two.a, 0).qp.counters.tx_packets > 3; }));
  const auto moved_to = [&](std::uint16_t port, std::uint64_t moves) {
    return eventually([&] {
      const LaneCounters lane = lane_of(two.a, 0);
      return lane.qp.port == port && lane.moves == moves;
    });
  };
  CHECK(two.a.set_port(kB, 0, 0xD123));
  CHECK(two.a.set_port(kB, 0, 0xD124));  // while the first move is under way: comes after it
  CHECK(moved_to(0xD124, 2));
  REQUIRE(wait(sent) == State::kDone);
  REQUIRE(wait(received) == State::kDone);
  CHECK(in == out);
  CHECK(eventually([&] { return two.a_qps.alive == 2 && two.b_qps.alive == 2; }));  // the old ones are gone
  const LaneCounters after = lane_of(two.a, 0);
  CHECK(after.qpn != before.qpn);
  CHECK(lane_of(two.a, 1).qp.port == other);
  CHECK(lane_of(two.b, 0).qp.port == of_b);  // a side's move is its own
  CHECK(lane_of(two.b, 0).moves == 0);
  // Counters are the lane's, whichever QPs it had.
  CHECK(after.qp.counters.tx_bytes + lane_of(two.a, 1).qp.counters.tx_bytes >= out.size());
  joined.check(100'000);
}

TEST_CASE("where ports are fixed both sides may move a lane at once, again and again, in the middle of messages") {
  TwoFixed two;
  const Joined joined(two.a, two.b);
  std::atomic<bool> done{false};
  std::thread mover([&] {
    for (std::uint16_t port = 0xD200; !done; ++port) {
      for (unsigned lane = 0; lane < 2; ++lane) {
        two.a.set_port(kB, lane, static_cast<std::uint16_t>(port + 0x800 * lane));
        two.b.set_port(kA, lane, static_cast<std::uint16_t>(port + 0x800 * lane));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  const bool moved = eventually([&] {
    joined.check(100'000);
    return lane_of(two.a, 0).moves > 2 && lane_of(two.b, 1).moves > 2;
  });
  done = true;
  mover.join();
  CHECK(moved);
  CHECK(eventually([&] { return two.a_qps.alive == 2 && two.b_qps.alive == 2; }));
}

TEST_CASE("a NIC without another QP keeps its port, as does one whose peer has none") {
  TwoFixed two;
  const Joined joined(two.a, two.b);
  const std::uint16_t before = lane_of(two.a, 0).qp.port;
  for (FixedPorts::Qps* full : {&two.a_qps, &two.b_qps}) {
    full->most = 2;
    CHECK(two.a.set_port(kB, 0, 0xD123));
    joined.check(50'000);
    CHECK(eventually([&] { return two.a_qps.alive == 2; }));
    CHECK(lane_of(two.a, 0).qp.port == before);
    full->most = 1000;
  }
  CHECK(two.a.set_port(kB, 0, 0xD123));
  CHECK(eventually([&] { return lane_of(two.a, 0).qp.port == 0xD123; }));
  joined.check(50'000);
}

TEST_CASE("devices may be closed while lanes move") {
  for (int i = 0; i < 5; ++i) {
    TwoFixed two;
    const Joined joined(two.a, two.b);
    joined.check(1000);
    CHECK(two.a.set_port(kB, 0, 0xD123));
    CHECK(two.b.set_port(kA, 0, 0xD124));
    (i % 2 == 0 ? two.a : two.b).close(0);
    (i % 2 == 0 ? two.b : two.a).close(0);
    CHECK(two.a_qps.alive == 0);
    CHECK(two.b_qps.alive == 0);
  }
}

// -- strangers ---------------------------------------------------------------------------------------------------

int connect_tcp(const std::shared_ptr<Listener>& listener) {
  const auto handle = *handshake::decode_handle(listener->handle);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(handle.address);
  to.sin_port = htons(handle.tcp_port);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  return fd;
}

bool hung_up(int fd) {
  return eventually([fd] {
    std::array<char, 256> bytes{};
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  });
}

TEST_CASE("strangers on the TCP port are hung up on and harm nobody") {
  Two two;
  const Joined joined(two.a, two.b);
  SplitMix64 random(4);
  const Bytes refused = [] {  // a frame that is well formed but comes first
    const auto bytes = handshake::encode(handshake::Close{1});
    return Bytes(bytes.begin(), bytes.end());
  }();
  std::vector<Bytes> greetings{test::from_hex("00000000"), test::from_hex("ffffffff"), test::from_hex("00004001"),
                               refused, Bytes(70'000, std::byte{'x'})};
  for (int i = 0; i < 20; ++i) greetings.push_back(test::random_fill(random, 64));
  for (const Bytes& greeting : greetings) {
    const int fd = connect_tcp(joined.listener);
    [[maybe_unused]] const ssize_t sent = ::send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL);
    // A length that waits for more is legal until the hello time is up; ours are not.
    const bool waits = greeting.size() == 64 && wire::get_u32(greeting.data()) <= handshake::kMaxFrameBytes &&
                       wire::get_u32(greeting.data()) > 60;
    if (!waits) CHECK(hung_up(fd));
    ::close(fd);
  }
  // Half a hello, then nothing, and then gone.
  const int fd = connect_tcp(joined.listener);
  REQUIRE(::send(fd, "\0\0", 2, 0) == 2);
  ::close(fd);
  joined.check(10'000);
  CHECK(two.b.counters().peers == 1);
}

TEST_CASE("silent strangers keep nobody out: the oldest goes for the newest") {
  Two two;
  const auto listener = two.b.listen();
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.emplace_back(connect_tcp(listener));
    REQUIRE(::send(strangers.back().get(), "\0", 1, MSG_NOSIGNAL) == 1);  // a part of a frame renews nothing
  }
  CHECK(open(two.a.connect(listener->handle)));
  CHECK(hung_up(strangers.front().get()));
  std::array<char, 1> byte{};
  CHECK(::recv(strangers.back().get(), byte.data(), byte.size(), MSG_DONTWAIT) < 0);  // within its time
}

TEST_CASE("a hello from an address that is not the sender's is refused") {
  Two two;
  const auto listener = two.b.listen();
  const auto handle = *handshake::decode_handle(listener->handle);
  handshake::Hello hello{.listener = handle.listener, .token = handle.token, .endpoint = {}};
  hello.endpoint = {.device = {}, .address = 0x0A000001, .udp_port = 4791, .path_mtu = 1024, .qps = {{5, 6}}};
  const auto bytes = handshake::encode(hello);
  const int fd = connect_tcp(listener);
  REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  CHECK(hung_up(fd));
  ::close(fd);
  CHECK(two.b.counters().peers == 0);
}

TEST_CASE("a peer that says another's GUID gets none of its connections") {
  Two two;
  Device c(options(0x7F000003));
  const auto victim = c.listen();
  const auto listener = two.b.listen();
  const auto handle = *handshake::decode_handle(listener->handle);
  handshake::Hello hello{.listener = handle.listener, .token = handle.token, .endpoint = {}};
  hello.endpoint = {.device = handshake::decode_handle(victim->handle)->device,
                    .address = kA,
                    .udp_port = 4791,
                    .path_mtu = 1024,
                    .qps = std::vector<QpIdentity>(8, {5, 6})};
  const auto bytes = handshake::encode(hello);
  const FileDescriptor liar(connect_tcp(listener));
  REQUIRE(::send(liar.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  REQUIRE(eventually([&] { return two.b.counters().peers == 1; }));
  CHECK(open(two.b.connect(victim->handle)));
  CHECK(two.b.counters().peers == 2);
}

// -- a process's limits ------------------------------------------------------------------------------------------

/// Takes all descriptors that the process may have.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit few = before_;
    few.rlim_cur = 256;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const auto take = [] { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); };
    for (int fd = take(); fd >= 0; fd = take()) taken_.emplace_back(fd);
    REQUIRE(errno == EMFILE);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void spare(std::size_t count) { taken_.resize(taken_.size() - count); }

 private:
  rlimit before_{};
  std::vector<FileDescriptor> taken_;
};

TEST_CASE("a process without descriptors to spare refuses peers, keeps its lanes' ports, and goes on") {
  Two two;
  const Joined joined(two.a, two.b);
  Device c(options(0x7F000003));
  const auto listener = c.listen();
  const std::string error = "cannot open a UDP socket: Too many open files";
  {
    NoDescriptors none;
    const std::uint16_t port = two.a.counters().lanes[0].qp.port;
    CHECK(two.a.set_port(kB, 0, port == 0xD555 ? 0xD556 : 0xD555));
    joined.check(10'000);
    CHECK(two.a.counters().lanes[0].qp.port == port);
    none.spare(3);  // both ends of the channel, and the first of four ports; a and b have theirs
    CHECK(refusal(c, joined.listener->handle) == error);
    CHECK(refusal(two.a, listener->handle) == "127.0.0.3 refused: " + error);
  }
  joined.check(10'000);
  CHECK(open(c.connect(joined.listener->handle)));
}

TEST_CASE("whoever connects while no descriptor is left waits, and keeps no thread busy") {
  Two two;
  const auto listener = two.b.listen();
  ConnectionPtr connection;
  {
    NoDescriptors none;
    none.spare(1);  // for our end of the channel
    connection = two.a.connect(listener->handle);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    timespec before{};
    timespec after{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    const double used =
        static_cast<double>(after.tv_sec - before.tv_sec) + static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
    CHECK(used < wall.count() / 4);
  }
  CHECK(open(connection));
}

TEST_CASE("a forked child may let go of a device, and its parent goes on") {
  Two two;
  const Joined joined(two.a, two.b);
  joined.check(1000);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool idle = two.a.closed() && two.a.counters().lanes.empty();
    two.a.close_connection(joined.to);
    two.a.close();
    two.b.close();
    ::_exit(idle ? 0 : 1);
  }
  int status = -1;
  const bool ended = eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; });
  if (!ended) ::kill(child, SIGKILL);
  CHECK(ended);
  CHECK(status == 0);
  CHECK_FALSE(two.a.closed());
  joined.check(10'000);
}

/// Garbage and forgeries for the UDP port of `b`, from 127.0.0.`last`.
struct Stranger {
  explicit Stranger(std::uint8_t last) : fd(::socket(AF_INET, SOCK_DGRAM, 0)) {
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7F000000U | last);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() { ::close(fd); }
  void send(const Bytes& bytes, const Device& to, std::uint32_t address) const {
    sockaddr_in target{};
    target.sin_family = AF_INET;
    target.sin_addr.s_addr = htonl(address);
    target.sin_port = htons(to.udp_port());
    ::sendto(fd, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&target), sizeof target);
  }
  int fd;
};

TEST_CASE("garbage on the UDP port is counted by reason and otherwise ignored") {
  Two two;
  const Joined joined(two.a, two.b);
  const Stranger from_a(1);
  const Stranger from_elsewhere(9);
  SplitMix64 random(8);
  const Discards before = two.b.counters().discards;
  constexpr std::uint64_t kEach = 50;
  const std::uint32_t qpn = two.b.counters().lanes[0].qpn;
  for (std::uint64_t i = 0; i < kEach; ++i) {
    from_a.send(Bytes(1 + random.below(15)), two.b, kB);  // too short
    Bytes packet(64);
    const auto header = wire::data_header(wire::Opcode::kSendOnly, 1, 0, true, 0, 0, 0, 0, 0);
    std::copy_n(header.bytes.begin(), header.length, packet.begin());
    from_a.send(packet, two.b, kB);  // no such QP
    wire::put_u32(packet.data() + 4, qpn);
    from_elsewhere.send(packet, two.b, kB);
    from_a.send(packet, two.b, kB);  // the right QP and source, the wrong ICRC
  }
  CHECK(eventually([&] {
    const Discards now = two.b.counters().discards;
    return now.malformed - before.malformed == kEach && now.unknown_qp - before.unknown_qp == kEach &&
           now.wrong_source - before.wrong_source == kEach && now.icrc - before.icrc == kEach;
  }));
  for (int i = 0; i < 2000; ++i) from_a.send(test::random_fill(random, 1 + random.below(300)), two.b, kB);
  joined.check(100'000);
}

// -- loss --------------------------------------------------------------------------------------------------------

TEST_CASE("messages survive faults of every kind in both directions") {
  const std::array<Faults, 5> kinds{{{.drop = 0.05},
                                     {.duplicate = 0.05},
                                     {.reorder = 0.05},
                                     {.corrupt = 0.05},
                                     {.drop = 0.05, .duplicate = 0.05, .reorder = 0.05, .corrupt = 0.05}}};
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    CAPTURE(kind);
    DeviceOptions one = options(kA);
    DeviceOptions other = options(kB);
    one.faults = other.faults = kinds[kind];
    one.faults.seed = 1;
    other.faults.seed = 2;
    Device a(one);
    Device b(other);
    const Joined joined(a, b);
    for (const std::size_t bytes : {0, 100, 200'000}) joined.check(bytes);
    CHECK(a.counters().discards.injected + b.counters().discards.injected > 0);
  }
}

TEST_CASE("a peer that went silent is given up after the retry time") {
  DeviceOptions deaf = options(kB);
  Device b(deaf);
  DeviceOptions one = options(kA);
  one.retry_time = 500 * kMillisecond;
  one.faults.drop = 1;  // hears nothing: neither acknowledgements nor advertisements
  Device a(one);
  const Joined joined(a, b);
  Bytes in(100);
  Bytes there(100);
  const auto waiting = joined.receive(there);
  const auto receiving = joined.receive_back(in);  // its advertisement is never acknowledged
  REQUIRE(wait(receiving) == State::kFailed);
  CHECK(receiving->failure == Failure::kTransport);
  CHECK(receiving->error.find("the peer did not answer within the retry time") != std::string::npos);
  // The peer has heard everything and misses nothing: it is told.
  REQUIRE(wait(waiting) == State::kFailed);
  CHECK(waiting->failure == Failure::kClosed);
  CHECK(waiting->error == "127.0.0.1 gave up: " + receiving->error);
}

}  // namespace
}  // namespace paralet
