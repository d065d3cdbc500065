// SPDX-License-Identifier: Apache-2.0
// Two devices over real sockets, the first with policy `controller`, against a path service in the test.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "bytes.hpp"
#include "engine/device.hpp"
#include "fake_path_service.hpp"
#include "free_ports.hpp"
#include "path_client/client.hpp"

namespace paralet {
namespace {

using Ports = std::vector<std::uint16_t>;
constexpr std::uint32_t kHost = 0x7F000001;  // 127.0.0.1
constexpr std::uint32_t kFarHost = 0x7F000002;

template <typename Condition>
void until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

DeviceOptions two_lanes(std::uint32_t address) {
  DeviceOptions out;
  out.address = address;
  out.policy.lanes = 2;
  out.flowlet_bytes = 16384;
  return out;
}

DeviceOptions controlled(const test::FakePathService& service) {
  DeviceOptions out = two_lanes(kHost);
  out.policy.kind = PolicyKind::kController;
  out.policy.path_client = {.service = service.address(),
                            .token = "t",
                            .elephant_bytes = 65536,
                            .reconnect_least = kMillisecond,
                            .reconnect_most = kMillisecond,
                            .log = [](const std::string&) {}};
  return out;
}

Ports ports(Device& device) {
  Ports out;
  for (const LaneCounters& lane : device.counters().lanes) out.push_back(lane.qp.port);
  return out;
}

std::shared_ptr<Request> submit(Device& device, const std::shared_ptr<Connection>& connection, Request::Kind kind,
                                std::span<std::byte> memory) {
  auto request = std::make_shared<Request>();
  request->kind = kind;
  request->connection = connection;
  request->data = memory.data();
  request->length = memory.size();
  device.submit(request);
  return request;
}

TEST_CASE("controller: messages arrive while ports are pushed and the service restarts") {
  test::FakePathService service;
  Device one(controlled(service));
  Device two(two_lanes(kFarHost));
  const auto listener = two.listen();
  const auto to = one.connect(listener->handle);
  until([&] { return to->state == Connection::State::kOpen; });
  std::shared_ptr<Connection> from;
  until([&] {
    from = listener->accept();
    return from != nullptr;
  });
  service.welcome();

  std::atomic<bool> stop{false};
  std::atomic<int> messages{0};
  std::thread traffic([&] {
    test::Bytes out = test::random_fill(1 << 20, 1);
    test::Bytes in(out.size());
    while (!stop) {
      std::ranges::fill(in, std::byte{0});
      const auto receiving = submit(two, from, Request::Kind::kReceive, in);
      const auto sending = submit(one, to, Request::Kind::kSend, out);
      until([&] { return sending->state != Request::State::kPending && receiving->state != Request::State::kPending; });
      CHECK(sending->state == Request::State::kDone);
      CHECK(receiving->state == Request::State::kDone);
      CHECK(in == out);
      ++messages;
    }
  });

  const nlohmann::json peer_port{{"peer_port", two.udp_port()}};
  const Ports some = test::free_ports(2);
  const Ports others = test::free_ports(2);
  for (int round = 0; round < 5; ++round) {
    for (const Ports& pushed : {some, others, some}) {
      service.assign(kFarHost, pushed, peer_port);
      until([&] { return ports(one) == pushed; });
    }
    service.disconnect();
    until([&] { return ports(one) != some; });
    service.welcome();
    const int before = messages;
    until([&] { return messages > before; });
  }
  stop = true;
  traffic.join();
  const auto counters = one.counters();
  REQUIRE(counters.path_client);
  CHECK(counters.path_client->connections == 6);
  CHECK(counters.path_client->assigns == 15);
  CHECK(counters.path_client->invalid == 0);
  CHECK(counters.messages.failed == 0);
  one.close();
  two.close();
}

TEST_CASE("controller: paths are probed from the ports of lanes while these carry data, and the service restarts") {
  test::FakePathService service;
  DeviceOptions options = controlled(service);
  options.policy.path_client.probe_rate = 5000;
  options.policy.path_client.elephant_bytes = std::uint64_t{1} << 40;
  Device one(options);
  Device two(two_lanes(kFarHost));
  const auto listener = two.listen();
  service.welcome_probes();
  const auto to = one.connect(listener->handle);
  until([&] { return to->state == Connection::State::kOpen; });
  std::shared_ptr<Connection> from;
  until([&] {
    from = listener->accept();
    return from != nullptr;
  });
  std::atomic<bool> stop{false};
  std::thread traffic([&] {
    test::Bytes out = test::random_fill(1 << 18, 1);
    test::Bytes in(out.size());
    while (!stop) {
      const auto receiving = submit(two, from, Request::Kind::kReceive, in);
      const auto sending = submit(one, to, Request::Kind::kSend, out);
      until([&] { return sending->state != Request::State::kPending && receiving->state != Request::State::kPending; });
      CHECK(receiving->state == Request::State::kDone);
      CHECK(in == out);
    }
  });
  for (std::uint64_t round = 0; round < 4; ++round) {
    nlohmann::json ask{{"type", "probe"}, {"peer", "127.0.0.2"}, {"ttl", 4}, {"ports", ports(one)}};
    for (std::uint64_t i = 0; i < 8; ++i) {
      ask["ask"] = i;
      ask["peer_port"] = 9;  // nobody listens there, and says so
      service.send(ask);
    }
    for (std::uint64_t i = 0; i < 8; ++i) {
      const auto probed = service.receive();
      CHECK(probed["type"] == "probed");
      for (const auto& answer : probed["answers"]) CHECK(answer[1] == "destination");
    }
    ask["peer_port"] = two.udp_port();  // takes probes in silence, so they are under way when the service goes
    service.send(ask);
    service.disconnect();
    service.welcome_probes();
  }
  stop = true;
  traffic.join();
  CHECK(one.counters().messages.failed == 0);
  CHECK(one.counters().path_client->invalid == 0);
  one.close();
  two.close();
}

TEST_CASE("a client offers probes, unless it has none to send, before it announces what is open again") {
  for (const double rate : {100.0, 0.0}) {
    test::FakePathService service;
    path_client::Options options = controlled(service).policy.path_client;
    options.probe_rate = rate;
    path_client::Mailbox mailbox;
    path_client::Client client(options, {.token = "t", .device = kHost, .instance = 1, .lanes = 2}, mailbox, [] {});
    service.welcome();
    REQUIRE(mailbox.post(path_client::Announce{.id = 1, .peer = kFarHost, .bytes = 10}));
    CHECK(service.receive()["type"] == "announce");
    service.disconnect();
    service.accept();
    CHECK(service.receive()["type"] == "hello");
    service.send({{"type", "welcome"}, {"version", 2}, {"session", "1"}, {"probe", true}, {"router_rate", 0}});
    if (rate > 0) CHECK(service.receive()["type"] == "probe");
    CHECK(service.receive()["type"] == "announce");
    REQUIRE(mailbox.post(path_client::Release{.id = 1}));
    CHECK(service.receive()["type"] == "release");  // and it was announced once
    client.stop();
  }
}

TEST_CASE("controller: a service of the older version is no loss, and is not logged") {
  test::FakePathService service;
  DeviceOptions options = controlled(service);
  std::atomic<int> lines{0};
  options.policy.path_client.log = [&lines](const std::string&) { ++lines; };
  Device device(options);
  service.welcome_older();
  until([&] { return device.counters().path_client->connected; });
  const auto counters = device.counters();
  CHECK(counters.path_client->connections == 1);
  CHECK(counters.path_client->invalid == 0);
  CHECK(lines == 0);
  device.close();
}

}  // namespace
}  // namespace paralet
