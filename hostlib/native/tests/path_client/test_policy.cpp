// SPDX-License-Identifier: Apache-2.0
// The policy with its client's thread, against a path service in the test. Times bound how long a test may hang, never
// how fast it must be.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "engine/path_policy.hpp"
#include "fake_path_service.hpp"
#include "path_client/policy.hpp"

namespace paralet {
namespace {

using Ports = std::vector<std::uint16_t>;
constexpr PeerName kPeer = 0x0A000002;
constexpr PeerName kOther = 0x0A000003;
constexpr unsigned kLanes = 2;
constexpr Nanos kFloor = 10 * kMillisecond;
const Ports kPorts{50001, 50002};
const Ports kMore{51001, 51002};

/// The policy, and what the holder of the device's progress lock does with it.
struct Host {
  explicit Host(const test::FakePathService& service, Nanos assign_wait = 0) {
    options.service = service.address();
    options.token = "t";
    options.elephant_bytes = 1000;
    options.assign_wait = assign_wait;
    options.thresholds.rtt_floor = kFloor;
    options.reconnect_least = options.reconnect_most = 1 * kMillisecond;
    options.log = [this](const std::string& sentence) {
      const std::lock_guard lock(mutex);
      log.push_back(sentence);
    };
    policy = std::make_unique<ControllerPolicy>(options, PeerName(0x0A000001), kLanes,
                                                make_policy({.kind = PolicyKind::kEcmp, .lanes = kLanes, .seed = 1}),
                                                [this] { ++woken; });
  }
  /// Takes what comes until `condition` holds.
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
    until([&] { return policy->port(kPeer, 0) == ports[0] && policy->port(kPeer, 1) == ports[1]; });
  }
  [[nodiscard]] bool on_ecmp() const {
    return policy->port(kPeer, 0) == ecmp->port(kPeer, 0) && policy->port(kPeer, 1) == ecmp->port(kPeer, 1);
  }

  controller::Options options;
  std::mutex mutex;
  std::vector<std::string> log;
  std::atomic<int> woken{0};
  int took = 0;
  std::unique_ptr<PathPolicy> ecmp = make_policy({.kind = PolicyKind::kEcmp, .lanes = kLanes, .seed = 1});
  std::unique_ptr<ControllerPolicy> policy;  // last: its thread uses the others
};

TEST_CASE("controller: ports come and go with the service's word, lanes beyond m take them in turn") {
  test::FakePathService service;
  Host host(service);
  CHECK(host.on_ecmp());
  service.welcome();
  service.assign(kPeer, kPorts);
  host.until_on(kPorts);
  CHECK(host.woken > 0);
  CHECK(host.policy->changed(kPeer));
  CHECK(!host.policy->changed(kOther));
  CHECK(host.policy->port(kPeer, 2) == kPorts[0]);
  CHECK(host.policy->port(kOther, 0) == host.ecmp->port(kOther, 0));
  service.assign(kPeer, {});
  host.until([&] { return host.on_ecmp(); });
  service.assign(kPeer, kMore);
  host.until_on(kMore);
  service.hang_up();
  host.until([&] { return host.on_ecmp(); });
  CHECK(host.policy->changed(kOther));  // nothing that was said holds
  CHECK(!host.policy->counters().connected);
}

TEST_CASE("controller: nothing new, nothing to take") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.until([&] { return host.took > 0; });
  CHECK(!host.policy->news());
  CHECK(!host.policy->take());
}

TEST_CASE(
    "controller: a lane whose round trip stays bad, or that is silent or loses much, leaves, and tries again later") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.policy->started(kPeer, 1000, now());
  const auto id = service.hear()["id"];
  service.assign(kPeer, kPorts, {{"id", id}});
  host.until_on(kPorts);
  const LaneView good{
      .peer = kPeer, .lane = 1, .port = kPorts[1], .smoothed_rtt = kFloor / 10, .peer_rtt = kFloor / 10};
  Nanos t = now();
  const auto ask = [&](const LaneView& view) { return host.policy->after_flowlet(view, t); };
  CHECK(!ask(good));

  LaneView bad = good;
  std::string reason;
  SUBCASE("round trip") {
    reason = "rtt";
    bad.smoothed_rtt = kFloor + 1;
    bad.peer_rtt = kFloor / 2;  // twice the best is not yet bad
    for (int i = 0; i < 5; ++i) CHECK(!ask(bad));
    bad.peer_rtt = kFloor / 10;
    bad.smoothed_rtt = kFloor;  // nor is what stays below the floor
    for (int i = 0; i < 5; ++i) CHECK(!ask(bad));
    bad.smoothed_rtt = kFloor + 1;
    CHECK(!ask(bad));
    CHECK(!ask(bad));
    CHECK(!ask(good));  // not in a row
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
    CHECK(!ask(bad));  // too few to tell
    bad.packets = 128;
    bad.retransmits = 32;
    CHECK(!ask(bad));  // a quarter is borne
    bad.packets = 256;
    bad.retransmits = 65;
  }
  const auto port = ask(bad);
  REQUIRE(port);
  CHECK(*port >= 0xC000);
  CHECK(*port != kPorts[1]);
  CHECK(host.policy->port(kPeer, 1) == *port);
  CHECK(host.policy->port(kPeer, 0) == kPorts[0]);
  CHECK(host.policy->counters().reverted == 1);
  const auto report = service.hear();
  CHECK(report["type"] == "report");
  CHECK(report["id"] == id);
  CHECK(report["lane"] == 1);
  CHECK(report["port"] == kPorts[1]);
  CHECK(report["reason"] == reason);
  // On its own port it stays, however that does, until it has another try: the next one comes twice as late.
  bad.port = *port;
  for (int i = 0; i < 7; ++i) {
    const Nanos away = std::min(10 * kSecond, (Nanos{1} << i) * 200 * kMillisecond);
    t += away - 1;
    CHECK(!ask(bad));
    t += 1;
    CHECK(ask(bad) == kPorts[1]);
    CHECK(host.policy->port(kPeer, 1) == kPorts[1]);
    LaneView again = good;
    CHECK(!ask(again));
    again.timeouts = 2;
    const auto other = ask(again);
    REQUIRE(other);
    CHECK(*other != kPorts[1]);
    bad.port = *other;
    CHECK(service.hear()["type"] == "report");
  }
  CHECK(host.policy->counters().reverted == 8);
  // A word about another peer changes nothing, one about this peer does.
  const int took = host.took;
  service.assign(kOther, kMore);
  host.until([&] { return host.took > took; });
  CHECK(host.policy->port(kPeer, 1) == bad.port);
  service.assign(kPeer, kPorts, {{"id", id}});
  host.until_on(kPorts);
}

TEST_CASE("controller: ECMP is nobody's fault") {
  test::FakePathService service;
  Host host(service);
  const LaneView silent{.peer = kPeer, .lane = 0, .port = host.policy->port(kPeer, 0), .timeouts = 5};
  CHECK(!host.policy->after_flowlet(silent, now()));
  CHECK(host.policy->counters().reverted == 0);
}

TEST_CASE("controller: a new elephant waits for its ports, and no longer than it is worth") {
  test::FakePathService service;
  Host host(service, 100 * kSecond);
  const Nanos t = now();
  host.policy->started(kOther, 1000, t);
  host.policy->begin_round();
  CHECK(host.policy->may_send(kOther, t));  // nobody to wait for
  service.welcome();
  CHECK(service.hear()["peer"] == "10.0.0.3");
  host.until([&] { return host.took > 0; });
  host.policy->started(kPeer, 1000, t);
  CHECK(!host.policy->may_send(kPeer, t));
  CHECK(host.policy->may_send(kOther, t));
  CHECK(host.policy->deadline() == t + 100 * kSecond);
  CHECK(host.policy->counters().ecmp_starts == 1);  // the other's
  std::uint64_t starts = 2;
  SUBCASE("answered") {
    service.assign(kPeer, kPorts, {{"id", service.hear()["id"]}});
    starts = 1;
  }
  SUBCASE("not answered in time") { CHECK(host.policy->may_send(kPeer, t + 100 * kSecond)); }
  SUBCASE("answered with ECMP") { service.assign(kPeer, {}, {{"id", service.hear()["id"]}}); }
  SUBCASE("abandoned") { service.hang_up(); }
  host.until([&] { return host.policy->may_send(kPeer, t); });
  host.policy->begin_round();
  CHECK(host.policy->deadline() == kNever);
  CHECK(host.policy->counters().ecmp_starts == starts);
  CHECK(host.policy->counters().announced == 2);
}

TEST_CASE("controller: what leaves in the long run is the rate, headers included") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.policy->started(kPeer, 1000, now());
  const auto id = service.hear()["id"];
  constexpr double kRate = 80e6;
  service.assign(kPeer, kPorts, {{"id", id}, {"rate_bps", kRate}});
  host.until_on(kPorts);
  constexpr std::uint64_t kFlowlet = 65536;
  constexpr std::uint64_t kOnWire = kFlowlet + 16 * (28 + 12 + 4 + 18);
  const Nanos begin = now();
  Nanos t = begin;
  std::uint64_t bytes = 0;
  while (t < begin + 10 * kSecond) {
    host.policy->begin_round();
    if (host.policy->may_send(kPeer, t)) {
      host.policy->sent(kPeer, kFlowlet, 4096);
      bytes += kOnWire;
    } else {
      REQUIRE(host.policy->deadline() > t);  // it says when to look again
      t = host.policy->deadline();
    }
  }
  CHECK(static_cast<double>(bytes) * 8 / 10 == doctest::Approx(kRate).epsilon(0.02));
  // Without a limit, and when the elephant is over, nothing is held back.
  CHECK(!host.policy->may_send(kPeer, t - kSecond));
  SUBCASE("null") { service.assign(kPeer, kPorts, {{"id", id}, {"rate_bps", nullptr}}); }
  SUBCASE("over") {
    host.policy->observe(kPeer, {});
    host.policy->tick(now() + kSecond);
  }
  SUBCASE("gone") { service.hang_up(); }
  host.until([&] { return host.policy->may_send(kPeer, t - kSecond); });
}

TEST_CASE("controller: what is said when nobody listens is said again to whoever comes") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  host.policy->started(kPeer, 1000, now());
  const auto first = service.hear();
  for (int i = 0; i < 10; ++i) {
    service.hang_up();
    service.welcome();
    CHECK(service.hear() == first);
  }
  CHECK(host.policy->counters().connections == 11);
}

TEST_CASE("controller: garbage ends the connection, not the client, and is told once") {
  test::FakePathService service;
  Host host(service);
  for (const char* garbage : {"{\n", "\n", "\xFF\n", "[1]\n"}) {
    service.welcome();
    service.say_raw(garbage);
  }
  service.welcome();
  service.assign(kPeer, kPorts);
  host.until_on(kPorts);
  CHECK(host.policy->counters().nonsense == 4);
  const std::lock_guard lock(host.mutex);
  CHECK(host.log.size() <= 2);
}

TEST_CASE("controller: half a line is no line until the rest comes") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  const std::string line = R"({"type":"assign","peer":"10.0.0.2","ports":[50001,50002],"generation":1})";
  service.say_raw(line.substr(0, 20));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  service.say_raw(line.substr(20) + "\n{\"type\":");
  host.until_on(kPorts);
  service.say_raw("\"pong\"}\n");
  CHECK(host.policy->counters().nonsense == 0);
}

TEST_CASE("controller: events and assignments while the data path and the client both work") {
  test::FakePathService service;
  Host host(service);
  service.welcome();
  std::thread speaker([&] {
    for (int i = 0; i < 500; ++i) service.assign(kPeer, i % 2 == 0 ? kMore : kPorts);
  });
  for (std::uint32_t i = 0; i < 2000; ++i) {
    host.policy->started(PeerName(kOther.address + i), 1000, now());
    if (host.policy->news()) host.policy->take();
    static_cast<void>(host.policy->port(kPeer, i % kLanes));
    static_cast<void>(host.policy->counters());
  }
  speaker.join();
  host.until_on(kPorts);
  // Every elephant was announced, but for those that found the queue full.
  const std::uint64_t announced = 2000 - host.policy->counters().dropped;
  for (std::uint64_t i = 0; i < announced; ++i) CHECK(service.hear()["type"] == "announce");
}

TEST_CASE("controller: options that cannot work") {
  const auto refusal = [](const controller::Options& options) -> std::string {
    try {
      controller::check(options);
      controller::resolve(options.service);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  };
  controller::Options options{.service = "127.0.0.1:1", .token = "t"};
  CHECK(refusal(options).empty());
  options.service = ":1";
  CHECK(refusal(options) == "':1' is not where a path service listens: write HOST:PORT, as in 10.0.0.9:4792");
  options.token = "";
  CHECK(refusal(options) == "the path service's token must be 1 to 256 printable characters without blanks");
}

TEST_CASE("controller: delays grow to their bound and vary") {
  controller::Backoff backoff(kMillisecond, 10 * kMillisecond, 1);
  Nanos most = kMillisecond;
  for (int i = 0; i < 20; ++i) {
    const Nanos delay = backoff.next();
    CHECK(delay >= most / 2);
    CHECK(delay <= most);
    most = std::min(10 * kMillisecond, 2 * most);
  }
  backoff.reset();
  CHECK(backoff.next() <= kMillisecond);
}

TEST_CASE("controller: the queue keeps order, and says when it is full") {
  controller::SpscQueue<int, 4> queue;
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
