// SPDX-License-Identifier: Apache-2.0
// Short messages that go without an advertisement: what is done when, order within a tag, long messages among them,
// bounds, closes, and peers that break the rules.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/advertisements.hpp"
#include "engine/device_fixture.hpp"
#include "engine/eager.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

/// Enough short messages that the next one goes eagerly.
void run_short(const Joined& joined) {
  for (unsigned i = 0; i <= EagerSends::kShortRun; ++i) {
    const auto received = joined.receive(Bytes(8));
    require_done(joined.send(Bytes(8)));
    require_done(received);
  }
}

/// Sends that are done before any receive is posted.
std::vector<MessagePtr> send_ahead(const Joined& joined, std::uint32_t count, std::size_t bytes = 100) {
  std::vector<MessagePtr> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    out.push_back(joined.send(random_fill(i, bytes), i % 3));
    require_done(out.back());
  }
  return out;
}

TEST_CASE("after short messages the next short one is done before its receive, which then finds it") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const auto first = joined.send(Bytes(8), 1);
  CHECK(first->state == State::kPending);  // there was no run of short messages before it
  run_short(joined);
  require_done(first);
  require_done(joined.receive(Bytes(8), 1));
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, kMostEagerBytes}) {
    CAPTURE(bytes);
    const auto sent = joined.send(random_fill(bytes, bytes), 5);
    require_done(sent);
    const auto received = joined.receive(Bytes(bytes + 1), 5);
    require_done(received);
    CHECK(received->bytes == bytes);
    CHECK(std::equal(sent->memory.begin(), sent->memory.end(), received->memory.begin()));
  }
  CHECK(eventually([&] { return joined.to->copies == 0; }));
}

/// What a counter of all lanes has come to.
std::uint64_t sum(Device& device, std::uint64_t QpCounters::*counter) {
  std::uint64_t out = 0;
  for (const LaneCounters& lane : device.counters().lanes) out += lane.qp.counters.*counter;
  return out;
}

/// Packets of all lanes, each counted once: a busy machine has some sent again.
std::uint64_t packets_sent(Device& device) {
  std::uint64_t out = 0;
  for (const LaneCounters& lane : device.counters().lanes) {
    out += lane.qp.counters.tx_packets - lane.qp.counters.retransmits;
  }
  return out;
}

/// Packets of the first message that may go eagerly, when the peer has this many receives for it and for later ones.
std::uint64_t packets_of(std::size_t bytes, std::size_t receives) {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  std::vector<MessagePtr> received;
  while (received.size() < EagerSends::kShortRun + receives) received.push_back(joined.receive(Bytes(bytes)));
  for (unsigned i = 0; i < EagerSends::kShortRun; ++i) {
    require_done(joined.send(Bytes(8)));
    require_done(received[i]);
  }
  const std::uint64_t advertised = received.size() * handshake::kAdvertisementBytes;
  REQUIRE(eventually([&] { return joined.to->copies == 0 && sum(pair.b, &QpCounters::tx_bytes) >= advertised; }));
  REQUIRE(eventually([&] {
    return std::ranges::all_of(pair.b.counters().lanes, [](const auto& lane) { return lane.unfinished == 0; });
  }));
  const std::uint64_t before = packets_sent(pair.a);
  require_done(joined.send(random_fill(1, bytes)));
  require_done(received[EagerSends::kShortRun]);
  CHECK(received[EagerSends::kShortRun]->bytes == bytes);
  CHECK(received[EagerSends::kShortRun]->memory == random_fill(1, bytes));
  return packets_sent(pair.a) - before;
}

TEST_CASE("a message that would take one more packet with a header is written to its receive if many are known" *
          of_soft()) {
  constexpr std::size_t kMany = Advertisements::kEnough + 1;
  CHECK(packets_of(4096, kMany) == 1);
  CHECK(packets_of(4096, kMany - 1) == 2);  // with the header: few known receives are advertised one by one
}

TEST_CASE("a long message after short ones asks for its receive") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  for (std::uint32_t round = 0; round < 3; ++round) {
    run_short(joined);
    const auto short_received = joined.receive(Bytes(8));  // not advertised
    const auto long_received = joined.receive(Bytes(kMostEagerBytes + 1), 1);
    const Bytes out = random_fill(round, kMostEagerBytes + 1);
    require_done(joined.send(out, 1));
    require_done(long_received);
    CHECK(long_received->memory == out);
    require_done(joined.send(random_fill(round, 8)));
    require_done(short_received);
    CHECK(short_received->memory == random_fill(round, 8));
  }
}

TEST_CASE("messages of a tag meet its receives in order, short and long ones in any order of the calls") {
  DeviceOptions to = options(kB, 8);
  if (backend() == BackendKind::kSoft) {
    to.faults.reorder = 0.1;
    to.faults.drop = 0.02;
  } else {
    to.faults.cut = 0.02;
  }
  Device b(to);
  Device a(options(kA, 8));
  const Joined joined(a, b);
  SplitMix64 random(39);
  constexpr std::uint32_t kMessages = 1500;
  std::map<std::uint32_t, std::vector<MessagePtr>> sent;
  std::map<std::uint32_t, std::vector<MessagePtr>> received;
  std::vector<std::uint32_t> tags;  // of receives that are still to be posted
  std::uint32_t sends = 0;
  const auto receive_one = [&] {
    const auto which = static_cast<std::ptrdiff_t>(random.next() % std::min<std::size_t>(tags.size(), 4));
    const std::uint32_t tag = tags[static_cast<std::size_t>(which)];
    tags.erase(tags.begin() + which);
    received[tag].push_back(joined.receive(Bytes(40'000), tag));
  };
  while (sends < kMessages || !tags.empty()) {
    // Receives of a tag that has no send yet are posted too: the order is that of each tag alone.
    if (sends < kMessages && (tags.size() < 2 || random.uniform() < 0.5)) {
      const auto tag = static_cast<std::uint32_t>(random.next() % 4);
      const bool long_one = random.uniform() < 0.03;
      const std::size_t bytes = long_one ? 20'000 + random.next() % 20'000 : random.next() % 600;
      const bool first = random.uniform() < 0.5;
      tags.push_back(tag);
      if (first) receive_one();
      sent[tag].push_back(joined.send(random_fill(sends, bytes), tag));
      ++sends;
    } else {
      receive_one();
    }
    if (tags.size() > 40) std::this_thread::sleep_for(std::chrono::microseconds(200));
    while (tags.size() > 60) receive_one();
  }
  for (const auto& entry : sent) {
    const std::uint32_t tag = entry.first;
    const std::vector<MessagePtr>& messages = entry.second;
    REQUIRE(received[tag].size() == messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i) {
      CAPTURE(tag);
      CAPTURE(i);
      require_done(messages[i]);
      require_done(received[tag][i]);
      REQUIRE(received[tag][i]->bytes == messages[i]->length);
      REQUIRE(std::equal(messages[i]->memory.begin(), messages[i]->memory.end(), received[tag][i]->memory.begin()));
    }
  }
  CHECK(eventually([&] { return joined.to->copies == 0; }));
}

TEST_CASE("what a receiver keeps for receives to come is bounded, and a message beyond that waits for its receive") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  run_short(joined);
  const auto ahead = send_ahead(joined, kEagerCredits - 1);  // the last one of the run was eager
  std::vector<MessagePtr> waiting;
  for (std::uint32_t i = 0; i < 40; ++i) waiting.push_back(joined.send(random_fill(100 + i, 8), 9));
  CHECK(std::ranges::any_of(waiting, [](const auto& send) { return send->state == State::kPending; }));
  for (std::uint32_t i = 0; i < 40; ++i) {
    CAPTURE(i);
    const auto received = joined.receive(Bytes(8), 9);
    require_done(received);
    require_done(waiting[i]);
    CHECK(received->memory == random_fill(100 + i, 8));
  }
  for (std::uint32_t i = 0; i < ahead.size(); ++i) {
    const auto received = joined.receive(Bytes(100), i % 3);
    require_done(received);
    CHECK(received->memory == random_fill(i, 100));
  }
}

TEST_CASE("messages that wait for credits go eagerly, oldest first, as the receiver takes those before them") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  run_short(joined);
  std::vector<MessagePtr> sent;
  for (std::uint32_t i = 0; i < 200; ++i) sent.push_back(joined.send(random_fill(i, 50)));
  for (std::uint32_t i = 0; i < sent.size(); ++i) {
    CAPTURE(i);
    const auto received = joined.receive(Bytes(50));
    require_done(received);
    CHECK(received->memory == random_fill(i, 50));
    require_done(sent[i]);
  }
  // All, unless acknowledgements come so late that the sender may copy no more for a while.
  CHECK(pair.a.counters().messages.eager_sends > sent.size() / 2);
}

TEST_CASE("a receive that only a message without a credit meets gets it, whatever else the receiver keeps") {
  // Messages that the receiver has taken without telling the sender; the last one of the run is another.
  for (const std::uint32_t taken : {0U, kEagerCredits / 2 - 2, kEagerCredits / 2 - 1}) {
    CAPTURE(taken);
    DevicePair pair;
    const Joined joined(pair.a, pair.b);
    run_short(joined);
    send_ahead(joined, taken);
    for (std::uint32_t i = 0; i < taken; ++i) require_done(joined.receive(Bytes(100), i % 3));
    std::vector<MessagePtr> kept;
    for (std::uint32_t i = 0; i < kEagerCredits + 5; ++i) kept.push_back(joined.send(random_fill(i, 8), 5));
    const auto short_one = joined.send(random_fill(99, 8), 6);
    const auto long_one = joined.send(random_fill(98, kMostEagerBytes + 1), 7);
    const auto long_received = joined.receive(Bytes(kMostEagerBytes + 1), 7);
    require_done(long_received);
    CHECK(long_received->memory == long_one->memory);
    const auto short_received = joined.receive(Bytes(8), 6);
    require_done(short_received);
    CHECK(short_received->memory == short_one->memory);
    for (const MessagePtr& sent : kept) {
      const auto received = joined.receive(Bytes(8), 5);
      require_done(received);
      CHECK(received->memory == sent->memory);
      require_done(sent);
    }
    require_done(short_one);
    require_done(long_one);
  }
}

TEST_CASE("a connection without credits holds up no other, and its own messages keep their order") {
  DevicePair pair;
  const Joined full(pair.a, pair.b);
  const Joined other(pair.a, pair.b);
  run_short(full);
  run_short(other);
  const auto ahead = send_ahead(full, kEagerCredits - 1);
  CHECK(eventually([&] { return pair.b.counters().messages.eager_kept == ahead.size(); }));
  std::vector<MessagePtr> waiting;
  for (std::uint32_t i = 0; i < 5; ++i) waiting.push_back(full.send(random_fill(200 + i, 8), 9));
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto sent = other.send(random_fill(i, 8));
    const auto received = other.receive(Bytes(8));
    require_done(sent);
    require_done(received);
    CHECK(received->memory == random_fill(i, 8));
  }
  CHECK(std::ranges::all_of(waiting, [](const auto& send) { return send->state == State::kPending; }));
  // The other connection may have waited too, where a credit came late.
  CHECK(pair.a.counters().messages.eager_waits >= waiting.size());
  for (std::uint32_t i = 0; i < waiting.size(); ++i) {
    const auto received = full.receive(Bytes(8), 9);
    require_done(received);
    require_done(waiting[i]);
    CHECK(received->memory == random_fill(200 + i, 8));
  }
}

/// Messages that go eagerly, of 60 short ones each way.
std::pair<std::uint64_t, std::uint64_t> eager_of(std::uint64_t most_of_a, std::uint64_t most_of_b) {
  DeviceOptions of_a = options(kA);
  DeviceOptions of_b = options(kB);
  of_a.eager_bytes = most_of_a;
  of_b.eager_bytes = most_of_b;
  Device a(of_a);
  Device b(of_b);
  const Joined joined(a, b);
  for (unsigned i = 0; i < 60; ++i) joined.check(100);
  return {a.counters().messages.eager_sends, b.counters().messages.eager_sends};
}

TEST_CASE("a device that has eager messages turned off, or an older one, neither gets nor sends any") {
  CHECK(eager_of(0, kMostEagerBytes) == std::pair<std::uint64_t, std::uint64_t>(0, 0));
  CHECK(eager_of(kMostEagerBytes, 0) == std::pair<std::uint64_t, std::uint64_t>(0, 0));
  const auto [there, back] = eager_of(kMostEagerBytes, 99);
  CHECK(there == 60 - EagerSends::kShortRun);
  CHECK(back == 0);  // its messages are longer than it sends eagerly
}

TEST_CASE("a message that was sent before a close is received after it") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  run_short(joined);
  const auto ahead = send_ahead(joined, 10);
  pair.a.close_connection(joined.to);
  REQUIRE(eventually([&] { return joined.to->state == Connection::State::kClosed; }));
  REQUIRE(eventually([&] { return joined.from->failure != Failure::kNone; }));
  for (std::uint32_t i = 0; i < 10; ++i) {
    CAPTURE(i);
    const auto received = joined.receive(Bytes(100), i % 3);
    require_done(received);
    CHECK(received->memory == random_fill(i, 100));
  }
  CHECK(error_of(joined.receive(Bytes(100))) == "127.0.0.1 closed the connection");
  pair.b.close_connection(joined.from);
}

TEST_CASE("a short message that is longer than its receive fails the receive") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  run_short(joined);
  const auto received = joined.receive(Bytes(10), 4);  // not advertised
  require_done(joined.send(Bytes(11), 4));
  CHECK(error_of(received) == "a message of 11 bytes met a receive of 10: receive at least as much as is sent");
  require_done(joined.send(Bytes(12), 4));
  CHECK(error_of(joined.receive(Bytes(10), 4)) ==
        "a message of 12 bytes met a receive of 10: receive at least as much as is sent");
  joined.check(1000);
}

TEST_CASE("both ways at once, messages go eagerly and none is lost") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  std::deque<std::pair<MessagePtr, MessagePtr>> there;
  std::deque<std::pair<MessagePtr, MessagePtr>> back;
  const auto end = [](auto& all) {
    require_done(all.front().first);
    require_done(all.front().second);
    CHECK(all.front().first->memory == all.front().second->memory);
    all.pop_front();
  };
  for (std::uint32_t i = 0; i < 400; ++i) {
    there.emplace_back(joined.send(random_fill(i, 16)), joined.receive(Bytes(16)));
    back.emplace_back(joined.send_back(random_fill(i + 1, 16)), joined.receive_back(Bytes(16)));
    if (there.size() > 20) end(there);
    if (back.size() > 20) end(back);
  }
  while (!there.empty()) end(there);
  while (!back.empty()) end(back);
}

}  // namespace
}  // namespace paralet
