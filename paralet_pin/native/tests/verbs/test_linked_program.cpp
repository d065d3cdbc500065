// SPDX-License-Identifier: Apache-2.0
// A program that is linked with libibverbs, and with a librdmacm that calls libibverbs.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "fake_rdmacm.hpp"
#include "given_ports.hpp"
#include "linked_functions.hpp"
#include "verbs_program.hpp"
#include "wire/flow_label.hpp"

namespace paralet::pin {
namespace {

std::vector<std::uint16_t> ports_of_labels() {
  std::vector<std::uint16_t> out;
  for (const unsigned label : fake_verbs::record().labels) out.push_back(port_of_flow_label(label));
  return out;
}

std::size_t calls_of(const std::string& call) {
  const auto calls = fake_verbs::record().calls;
  return static_cast<std::size_t>(std::ranges::count(calls, call));
}

TEST_CASE("queue pairs of a linked program have planned ports, and follow the plan on mlx5") {
  fake_verbs::reset();
  fake_verbs::nic().sport_error = 0;
  given_ports().ports = {50001, 50002};
  const test::Opened device(test::kLinked);
  ibv_qp* one = device.create();
  ibv_qp* two = device.create();
  REQUIRE(device.connect(one) == 0);
  REQUIRE(device.connect(two) == 0);
  CHECK(ports_of_labels() == std::vector<std::uint16_t>{50001, 50002});
  CHECK(calls_of("sport 17 50001") == 1);
  given_ports().move(50002, 60000);
  CHECK(calls_of("sport 18 60000") == 1);
  CHECK(device.destroy(one) == 0);
  CHECK(device.destroy(two) == 0);
  CHECK(given_ports().held.empty());
}

TEST_CASE("a queue pair that librdmacm connects has a planned port, though the kernel gives it a label") {
  fake_verbs::reset();
  given_ports().ports = {50001};
  const test::Opened device(test::kLinked);
  ibv_qp* qp = device.create();
  FakeConnection connection{.ready = test::Opened::ready()};
  connection.ready.ah_attr.grh.flow_label = 0x456;
  CHECK(fake_rdma_establish(&connection, qp) == 0);
  CHECK(ports_of_labels() == std::vector<std::uint16_t>{50001});
  CHECK(device.destroy(qp) == 0);
}

TEST_CASE("errors of the library are the program's") {
  fake_verbs::reset();
  given_ports().ports = {50001};
  fake_verbs::refuse_routes(3, 0, 1);
  const test::Opened device(test::kLinked);
  ibv_qp* qp = device.create();
  CHECK(device.connect(qp) == EHOSTUNREACH);
  CHECK(given_ports().held.empty());
  CHECK(device.destroy(qp) == 0);
}

TEST_CASE("threads connect and destroy queue pairs while the plan moves them") {
  fake_verbs::reset();
  fake_verbs::nic().sport_error = 0;
  constexpr unsigned kThreads = 4;
  constexpr unsigned kRounds = 50;
  given_ports().ports.assign(kThreads * kRounds, 50001);
  const test::Opened device(test::kLinked);
  std::atomic<bool> done{false};
  std::thread plan([&] {
    for (std::uint16_t port = 51000; !done; ++port) {
      std::vector<std::uint64_t> ids;
      {
        const std::lock_guard lock(given_ports().mutex);
        for (const auto& [id, held] : given_ports().held) ids.push_back(id);
      }
      for (const std::uint64_t id : ids) given_ports().moved(id, static_cast<std::uint16_t>(51000 + port % 1000));
    }
  });
  std::atomic<unsigned> failures{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (unsigned round = 0; round < kRounds; ++round) {
        ibv_qp* qp = device.create();
        if (device.connect(qp) != 0 || device.destroy(qp) != 0) ++failures;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  done = true;
  plan.join();
  CHECK(failures == 0);
  CHECK(given_ports().held.empty());
  CHECK(fake_verbs::record().labels.size() == kThreads * kRounds);
}

}  // namespace
}  // namespace paralet::pin
