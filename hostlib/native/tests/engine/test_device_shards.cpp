// SPDX-License-Identifier: Apache-2.0
// Devices with several shards (docs/notes/sharding.md). The other device tests run over two shards too.
#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "device_fixture.hpp"

namespace paralet::test {
namespace {

DeviceOptions sharded(const IpAddress& address, BackendKind kind, unsigned count, unsigned lanes = 4) {
  DeviceOptions out = options(address, lanes);
  out.backend = kind;
  out.shards = count;
  return out;
}

constexpr std::array kKinds = {BackendKind::kSoft, BackendKind::kTcp};

TEST_CASE("devices with any number of shards talk to each other, and every lane carries flowlets") {
  for (const BackendKind kind : kKinds) {
    for (const auto& counts : {std::pair(1U, 2U), std::pair(2U, 2U), std::pair(3U, 4U), std::pair(4U, 1U)}) {
      const unsigned one = counts.first;
      const unsigned other = counts.second;
      CAPTURE(to_string(kind));
      CAPTURE(one);
      CAPTURE(other);
      DeviceOptions near = sharded(kA, kind, one);
      near.flowlet_bytes = 16 * 1024;
      Device a(near);
      Device b(sharded(kB, kind, other));
      const Joined joined(a, b);
      for (const std::size_t bytes : {0, 5000, 700'000}) joined.check(bytes);
      std::uint64_t flowlets = 0;
      std::set<std::uint32_t> shards;
      for (const LaneCounters& lane : a.counters().lanes) {
        CHECK(shard_of(lane.qpn, one) == lane.lane % one);
        flowlets += lane.flowlets;
        if (lane.flowlets > 0) shards.insert(static_cast<std::uint32_t>(shard_of(lane.qpn, one)));
      }
      CHECK(flowlets >= 43);
      CHECK(shards.size() == one);
    }
  }
}

TEST_CASE("a message without a known speed is cut so that every shard gets a part") {
  Device a(sharded(kA, BackendKind::kTcp, 2));
  Device b(sharded(kB, BackendKind::kTcp, 2));
  const Joined joined(a, b);
  const auto received = joined.receive(Bytes(1'000'000));
  require_done(joined.send(random_fill(1, 1'000'000)));
  require_done(received);
  std::uint64_t flowlets = 0;
  for (const LaneCounters& lane : a.counters().lanes) flowlets += lane.flowlets;
  CHECK(flowlets == 2);
}

TEST_CASE("threads that send and receive at once get every message right over shards") {
  for (const BackendKind kind : kKinds) {
    Device a(sharded(kA, kind, 3));
    Device b(sharded(kB, kind, 2));
    const Joined joined(a, b);
    const Joined back(b, a);
    std::atomic<int> wrong{0};
    const auto exchange = [&wrong](const Joined& way, std::uint64_t seed) {
      for (std::uint64_t i = 0; i < 15; ++i) {
        const std::size_t bytes = (i * 7919 + seed) % 200'000;
        const Bytes out = random_fill(seed + i, bytes);
        const auto received = way.receive(Bytes(bytes));
        const auto sent = way.send(out);
        const bool done = wait(sent) == State::kDone && wait(received) == State::kDone;
        wrong += !done || received->memory != out ? 1 : 0;
      }
    };
    std::thread other([&] { exchange(back, 1000); });
    exchange(joined, 1);
    other.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("registered memory is one to all shards, and gone from all when it is deregistered") {
  for (const BackendKind kind : kKinds) {
    DeviceOptions near = sharded(kA, kind, 2);
    near.flowlet_bytes = 16 * 1024;
    Device a(near);
    Device b(sharded(kB, kind, 4));
    const Joined joined(a, b);
    const auto received = std::make_shared<Message>();
    received->kind = Request::Kind::kReceive;
    received->connection = joined.from;
    received->memory = Bytes(500'000);
    received->data = received->memory.data();
    received->length = received->memory.size();
    received->rkey = b.register_memory(received->data, received->length);
    const Bytes out = random_fill(3, received->length);
    b.submit(received);
    require_done(joined.send(out));
    require_done(received);
    CHECK(received->memory == out);
    CHECK(b.deregister_memory(received->rkey).empty());
    joined.check(1000);
  }
}

TEST_CASE("a device that waits without polling gets what comes over any shard") {
  for (const BackendKind kind : kKinds) {
    DeviceOptions near = sharded(kA, kind, 2, 2);
    near.flowlet_bytes = 32 * 1024;
    Device a(near);
    Device b(sharded(kB, kind, 2, 2));
    const Joined joined(a, b);
    for (int i = 0; i < 10; ++i) {
      const auto received = joined.receive(Bytes(100'000));
      const auto sent = joined.send(Bytes(100'000));
      CHECK(b.wait([&] { return received->state != State::kPending; }, 20 * kSecond));
      CHECK(a.wait([&] { return sent->state != State::kPending; }, 20 * kSecond));
      require_done(received);
    }
  }
}

TEST_CASE("members of a fused device have shards too") {
  for (const BackendKind kind : kKinds) {
    DeviceOptions near = sharded(kA, kind, 2, 8);
    near.fused_with = {0x7F000003};
    near.flowlet_bytes = 16 * 1024;
    DeviceOptions far = sharded(kB, kind, 3, 8);
    far.fused_with = {0x7F000004};
    Device a(near);
    Device b(far);
    const Joined joined(a, b);
    joined.check(100);
    joined.check(1'000'000);
    std::set<std::pair<unsigned, std::size_t>> used;
    for (const LaneCounters& lane : a.counters().lanes) {
      CHECK(shard_of(lane.qpn, 2) == lane.lane / 2 % 2);
      if (lane.flowlets > 0) used.emplace(lane.member, shard_of(lane.qpn, 2));
    }
    CHECK(used.size() == 4);
  }
}

}  // namespace
}  // namespace paralet::test
