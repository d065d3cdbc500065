// SPDX-License-Identifier: Apache-2.0
// The policy with its client's thread, against a path service in the test. Times only bound how long a failing test
// hangs.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "engine/policy_factory.hpp"
#include "fake_path_service.hpp"
#include "path_client/policy.hpp"

namespace paralet {
namespace {

using Ports = std::vector<std::uint16_t>;
constexpr PeerName kRemote = 0x0A000002;
constexpr PeerName kOther = 0x0A000003;
constexpr unsigned kPolicyLanes = 2;
constexpr Nanos kFloor = 10 * kMillisecond;
const Ports kAssigned{50001, 50002};
const Ports kReassigned{51001, 51002};

/// The policy, used as the holder of the device's progress lock uses it.
struct Host {
  explicit Host(const test::FakePathService& service, Nanos assign_wait = 0, Nanos reconnect_most = kMillisecond)
      : Host(service.address(), assign_wait, reconnect_most) {}
  explicit Host(const std::string& service, Nanos assign_wait = 0, Nanos reconnect_most = kMillisecond) {
    options.service = service;
    options.token = "t";
    options.elephant_bytes = 1000;
    options.assign_wait = assign_wait;
    options.thresholds.rtt_floor = kFloor;
    options.reconnect_least = kMillisecond;
    options.reconnect_most = reconnect_most;
    options.log = [this](const std::string& sentence) {
      const std::lock_guard lock(mutex);
      log.push_back(sentence);
    };
    policy = std::make_unique<ControllerPolicy>(
        options, PeerName(0x0A000001), false, kPolicyLanes,
        make_policy({.kind = PolicyKind::kEcmp, .lanes = kPolicyLanes, .seed = 1}), [this] { ++woken; });
  }
  /// Takes updates until `condition` holds.
  template <typename Condition>
  void until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      if (policy->news()) took += policy->take() ? 1 : 0;
      std::this_thread::yield();
    }
  }
  void until_on(const Ports& ports) {
    until([&] { return policy->port(kRemote, 0) == ports[0] && policy->port(kRemote, 1) == ports[1]; });
  }
  [[nodiscard]] bool on_ecmp() const {
    return policy->port(kRemote, 0) == ecmp->port(kRemote, 0) && policy->port(kRemote, 1) == ecmp->port(kRemote, 1);
  }

  path_client::Options options;
  std::mutex mutex;
  std::vector<std::string> log;
  std::atomic<int> woken{0};
  int took = 0;
  std::unique_ptr<PathPolicy> ecmp = make_policy({.kind = PolicyKind::kEcmp, .lanes = kPolicyLanes, .seed = 1});
  std::unique_ptr<ControllerPolicy> policy;  // last, because its thread uses the others
};

TEST_CASE("controller: ports follow the assignments, and lanes beyond m reuse them") {
  test::FakePathService service;
  Host host(service);
  CHECK(host.on_ecmp());
  service.welcome();
  service.assign(kRemote, kAssigned);
  host.until_on(kAssigned);
  CHECK(host.woken > 0);
  CHECK(host.policy->changed(kRemote));
  CHECK(!host.policy->changed(kOther));
  CHECK(host.policy->port(kRemote, 2) == kAssigned[0]);
  CHECK(host.policy->port(kOther, 0) == host.ecmp->port(kOther, 0));
  service.assign(kRemote, {});
  host.until([&] { return host.on_ecmp(); });
  service.assign(kRemote, kReassigned);
  host.until_on(kReassigned);
  service.disconnect();
  host.until([&] { return host.on_ecmp(); });
  CHECK(host.policy->changed(kOther));  // all assignments are void
  CHECK(!host.policy->counters()->connected);
}

TEST_CASE("controller: of two addresses the other is tried when one refuses, ends, is silent or has been taken over") {
  test::FakePathService one;
  test::FakePathService other;
  Host host(one.address() + "," + other.address());
  const auto meet = [](test::FakePathService& service, std::uint64_t seen, std::uint64_t generation) {
    service.accept();
    CHECK(service.receive()["generation"] == seen);
    service.send({{"type", "welcome"}, {"version", 1}, {"generation", generation}});
  };
  one.accept();
  one.send({{"type", "error"}, {"code", "standby"}, {"text", "another one leads"}});
  meet(other, 0, 3);
  other.assign(kRemote, kAssigned);
  host.until_on(kAssigned);
  other.disconnect();
  meet(one, 3, 2);
  meet(other, 3, 3);
  other.assign(kRemote, kReassigned);
  host.until_on(kReassigned);
  meet(one, 3, 4);  // the other has left pings unanswered
  one.assign(kRemote, kAssigned);
  host.until_on(kAssigned);
  one.disconnect();
  other.accept();  // and says nothing
  meet(one, 4, 4);
  one.assign(kRemote, kReassigned);
  host.until_on(kReassigned);
  CHECK(host.policy->counters()->connections == 4);
}

TEST_CASE("controller: without an update there is nothing to take") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.until([&] { return host.took > 0; });
  CHECK(!host.policy->news());
  CHECK(!host.policy->take());
}

TEST_CASE("controller: a lane leaves a path that is slow, silent or lossy, and tries again later") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.policy->started(kRemote, 1000, now());
  const auto id = service.receive()["id"];
  service.assign(kRemote, kAssigned, {{"id", id}});
  host.until_on(kAssigned);
  const LaneView good{
      .peer = kRemote, .lane = 1, .port = kAssigned[1], .smoothed_rtt = kFloor / 10, .peer_rtt = kFloor / 10};
  Nanos t = now();
  const auto ask = [&](const LaneView& view) { return host.policy->after_flowlet(view, t); };
  CHECK(!ask(good));

  LaneView bad = good;
  std::string reason;
  SUBCASE("round trip") {
    reason = "rtt";
    bad.smoothed_rtt = kFloor + 1;
    bad.peer_rtt = kFloor / 2;  // twice the best round trip is not bad yet
    for (int i = 0; i < 5; ++i) CHECK(!ask(bad));
    bad.peer_rtt = kFloor / 10;
    bad.smoothed_rtt = kFloor;  // nor is a round trip below the floor
    for (int i = 0; i < 5; ++i) CHECK(!ask(bad));
    bad.smoothed_rtt = kFloor + 1;
    CHECK(!ask(bad));
    CHECK(!ask(bad));
    CHECK(!ask(good));  // the bad flowlets are not in a row
    CHECK(!ask(bad));
    CHECK(!ask(bad));
  }
  SUBCASE("silence") {
    reason = "loss";
    bad.timeouts = 2;
  }
  SUBCASE("loss") {
    reason = "loss";
    bad.packets = 127;
    bad.retransmits = 100;
    CHECK(!ask(bad));  // too few packets to measure loss
    bad.packets = 128;
    bad.retransmits = 32;
    CHECK(!ask(bad));  // a loss of 1/4 is accepted
    bad.packets = 256;
    bad.retransmits = 65;
  }
  const auto port = ask(bad);
  REQUIRE(port);
  CHECK(*port >= 0xC000);
  CHECK(*port != kAssigned[1]);
  CHECK(host.policy->port(kRemote, 1) == *port);
  CHECK(host.policy->port(kRemote, 0) == kAssigned[0]);
  CHECK(host.policy->counters()->reverted == 1);
  const auto report = service.receive();
  CHECK(report["type"] == "report");
  CHECK(report["id"] == id);
  CHECK(report["lane"] == 1);
  CHECK(report["port"] == kAssigned[1]);
  CHECK(report["reason"] == reason);
  // It stays on the other port, good or bad, until it tries again. The next absence lasts twice as long.
  bad.port = *port;
  for (int i = 0; i < 7; ++i) {
    const Nanos away = std::min(10 * kSecond, (Nanos{1} << i) * 200 * kMillisecond);
    t += away - 1;
    CHECK(!ask(bad));
    t += 1;
    CHECK(ask(bad) == kAssigned[1]);
    CHECK(host.policy->port(kRemote, 1) == kAssigned[1]);
    LaneView again = good;
    CHECK(!ask(again));
    again.timeouts = 2;
    const auto other = ask(again);
    REQUIRE(other);
    CHECK(*other != kAssigned[1]);
    bad.port = *other;
    CHECK(service.receive()["type"] == "report");
  }
  CHECK(host.policy->counters()->reverted == 8);
  // An assignment for another peer has no effect, one for this peer has.
  const int took = host.took;
  service.assign(kOther, kReassigned);
  host.until([&] { return host.took > took; });
  CHECK(host.policy->port(kRemote, 1) == bad.port);
  service.assign(kRemote, kAssigned, {{"id", id}});
  host.until_on(kAssigned);
}

TEST_CASE("controller: a lane on ECMP does not leave its port") {
  test::FakePathService service;
  Host host(service);
  const LaneView silent{.peer = kRemote, .lane = 0, .port = host.policy->port(kRemote, 0), .timeouts = 5};
  CHECK(!host.policy->after_flowlet(silent, now()));
  CHECK(host.policy->counters()->reverted == 0);
}

TEST_CASE("controller: a new elephant waits for its ports up to assign_wait") {
  test::FakePathService service;
  Host host(service, 100 * kSecond);
  const Nanos t = now();
  host.policy->started(kOther, 1000, t);
  host.policy->begin_round();
  CHECK(host.policy->may_send(kOther, t));  // it has no elephant that waits
  service.welcome();
  CHECK(service.receive()["peer"] == "10.0.0.3");
  host.until([&] { return host.took > 0; });
  host.policy->started(kRemote, 1000, t);
  CHECK(!host.policy->may_send(kRemote, t));
  CHECK(host.policy->may_send(kOther, t));
  CHECK(host.policy->deadline() == t + 100 * kSecond);
  CHECK(host.policy->counters()->ecmp_starts == 1);  // that of the other peer
  std::uint64_t starts = 2;
  SUBCASE("answered") {
    service.assign(kRemote, kAssigned, {{"id", service.receive()["id"]}});
    starts = 1;
  }
  SUBCASE("not answered in time") { CHECK(host.policy->may_send(kRemote, t + 100 * kSecond)); }
  SUBCASE("answered with ECMP") { service.assign(kRemote, {}, {{"id", service.receive()["id"]}}); }
  SUBCASE("abandoned") { service.disconnect(); }
  host.until([&] { return host.policy->may_send(kRemote, t); });
  host.policy->begin_round();
  CHECK(host.policy->deadline() == kNever);
  CHECK(host.policy->counters()->ecmp_starts == starts);
  CHECK(host.policy->counters()->announced == 2);
}

TEST_CASE("controller: the rate limit holds on average, headers included") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.policy->started(kRemote, 1000, now());
  const auto id = service.receive()["id"];
  constexpr double kRate = 80e6;
  service.assign(kRemote, kAssigned, {{"id", id}, {"rate_bps", kRate}});
  host.until_on(kAssigned);
  constexpr std::uint64_t kFlowlet = 65536;
  constexpr std::uint64_t kOnWire = kFlowlet + 16 * (28 + 12 + 4 + 18);
  const Nanos begin = now();
  Nanos t = begin;
  std::uint64_t bytes = 0;
  while (t < begin + 10 * kSecond) {
    host.policy->begin_round();
    if (host.policy->may_send(kRemote, t)) {
      host.policy->sent(kRemote, kFlowlet, 4096);
      bytes += kOnWire;
    } else {
      REQUIRE(host.policy->deadline() > t);  // the deadline says when to try again
      t = host.policy->deadline();
    }
  }
  CHECK(static_cast<double>(bytes) * 8 / 10 == doctest::Approx(kRate).epsilon(0.02));
  // Without a limit, and after the elephant has ended, nothing is held back.
  CHECK(!host.policy->may_send(kRemote, t - kSecond));
  SUBCASE("null") { service.assign(kRemote, kAssigned, {{"id", id}, {"rate_bps", nullptr}}); }
  SUBCASE("over") {
    host.policy->observe(kRemote, {});
    host.policy->tick(now() + kSecond);
  }
  SUBCASE("gone") { service.disconnect(); }
  host.until([&] { return host.policy->may_send(kRemote, t - kSecond); });
}

TEST_CASE("controller: a sender that is late by some packets' time makes up for it, however slow its limit is") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.policy->started(kRemote, 1000, now());
  const auto id = service.receive()["id"];
  constexpr double kRate = 10e6;
  service.assign(kRemote, kAssigned, {{"id", id}, {"rate_bps", kRate}});
  host.until_on(kAssigned);
  constexpr std::uint64_t kFlowlet = 8192;
  constexpr std::uint64_t kOnWire = kFlowlet + 2 * (28 + 12 + 4 + 18);
  const Nanos begin = now();
  std::uint64_t bytes = 0;
  for (Nanos t = begin; t < begin + 10 * kSecond; t += 20 * kMillisecond) {
    for (host.policy->begin_round(); host.policy->may_send(kRemote, t); bytes += kOnWire) {
      host.policy->sent(kRemote, kFlowlet, 4096);
    }
  }
  CHECK(static_cast<double>(bytes) * 8 / 10 == doctest::Approx(kRate).epsilon(0.02));
}

TEST_CASE("controller: elephants announced while disconnected are announced on the next connection") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.policy->started(kRemote, 1000, now());
  const auto first = service.receive();
  for (int i = 0; i < 10; ++i) {
    service.disconnect();
    service.welcome();
    CHECK(service.receive() == first);
  }
  CHECK(host.policy->counters()->connections == 11);
}

TEST_CASE("controller: garbage ends the connection, not the client, and is logged once") {
  test::FakePathService service;
  // No connection lasts this long, so none counts as an end of the trouble, however slow the machine is.
  Host host(service, 0, kSecond * 60);
  for (const char* garbage : {"{\n", "\n", "\xFF\n", "[1]\n"}) {
    service.welcome();
    service.send_raw(garbage);
  }
  service.welcome();
  service.assign(kRemote, kAssigned);
  host.until_on(kAssigned);
  CHECK(host.policy->counters()->invalid == 4);
  const std::lock_guard lock(host.mutex);
  CHECK(host.log.size() == 1);
}

TEST_CASE("controller: a partial line is handled when the rest arrives") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  const std::string line = R"({"type":"assign","peer":"10.0.0.2","ports":[50001,50002],"generation":1})";
  service.send_raw(line.substr(0, 20));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  service.send_raw(line.substr(20) + "\n{\"type\":");
  host.until_on(kAssigned);
  service.send_raw("\"pong\"}\n");
  CHECK(host.policy->counters()->invalid == 0);
}

TEST_CASE("controller: events and assignments pass concurrently") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  std::thread speaker([&] {
    for (int i = 0; i < 500; ++i) service.assign(kRemote, i % 2 == 0 ? kReassigned : kAssigned);
  });
  for (std::uint32_t i = 0; i < 2000; ++i) {
    host.policy->started(PeerName(kOther.address.ipv4() + i), 1000, now());
    if (host.policy->news()) host.policy->take();
    static_cast<void>(host.policy->port(kRemote, i % kPolicyLanes));
    static_cast<void>(host.policy->counters());
  }
  speaker.join();
  host.until_on(kAssigned);
  // Every elephant was announced, except those that found the queue full.
  const std::uint64_t announced = 2000 - host.policy->counters()->dropped;
  for (std::uint64_t i = 0; i < announced; ++i) CHECK(service.receive()["type"] == "announce");
}

TEST_CASE("controller: invalid options are rejected") {
  const auto refusal = [](const path_client::Options& options) -> std::string {
    try {
      path_client::check(options);
      path_client::resolve(options.service);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  };
  path_client::Options options{.service = "127.0.0.1:1", .token = "t"};
  CHECK(refusal(options).empty());
  options.service = ":1";
  CHECK(refusal(options) ==
        "':1' is not where a path service listens: write HOST:PORT, as in 10.0.0.9:4792 or [fd00::9]:4792");
  for (const char* service : {"fd00::9:4792", "[10.0.0.9:4792", "[]:4792", "10.0.0.9", "[fd00::9]"}) {
    options.service = service;
    CHECK(refusal(options).find("is not where a path service listens") != std::string::npos);
  }
  options.service = "127.0.0.1:1,[::1]:2";
  CHECK(refusal(options).empty());
  for (const char* service : {"127.0.0.1:1,", ",127.0.0.1:1", "127.0.0.1:1,,127.0.0.1:2", "127.0.0.1:1, 127.0.0.1"}) {
    options.service = service;
    CHECK(refusal(options).find("is not where a path service listens") != std::string::npos);
  }
  options.service = "127.0.0.1:1";
  for (int port = 2; port < 10; ++port) options.service += ",127.0.0.1:" + std::to_string(port);
  CHECK(refusal(options) == "a path service has at most 8 addresses");
  options.service = "127.0.0.1:1";
  options.token = "";
  CHECK(refusal(options) == "the path service's token must be 1 to 256 printable characters without blanks");
}

TEST_CASE("controller: the service's address may be an IPv6 address") {
  CHECK(path_client::resolve("[::1]:4792").front().address == *parse_address("::1"));
  CHECK(path_client::resolve("127.0.0.1:4792").front().address == *parse_address("127.0.0.1"));
}

TEST_CASE("controller: reconnect delays grow to their bound and vary") {
  path_client::Backoff backoff(kMillisecond, 10 * kMillisecond, 1);
  Nanos most = kMillisecond;
  for (int i = 0; i < 20; ++i) {
    const Nanos delay = backoff.next();
    CHECK(delay >= most / 2);
    CHECK(delay <= most);
    most = std::min(10 * kMillisecond, most + most / 4);
  }
  backoff.reset();
  CHECK(backoff.next() <= kMillisecond);
}

TEST_CASE("controller: the queue keeps order and reports when it is full") {
  path_client::SpscQueue<int, 4> queue;
  for (int i = 0; i < 4; ++i) CHECK(queue.push(i));
  CHECK(!queue.push(4));
  for (int i = 0, value = 0; i < 4; ++i) {
    REQUIRE(queue.pop(value));
    CHECK(value == i);
  }
  CHECK(queue.empty());
  std::thread consumer([&queue] {
    for (int expected = 0, value = 0; expected < 20'000;) {
      if (queue.pop(value)) REQUIRE(value == expected++);
    }
  });
  for (int i = 0; i < 20'000;) {
    if (queue.push(i)) ++i;
  }
  consumer.join();
}

}  // namespace
}  // namespace paralet
