// SPDX-License-Identifier: Apache-2.0
// The kernel of a lane's receiver acknowledges at once: a send is complete only then.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tcp/tcp_pair.hpp"

namespace paralet::tcp {
namespace {

// Half of TCP_DELACK_MIN (include/net/tcp.h), for which the kernel holds acknowledgements back at least.
constexpr Nanos kAtOnce = 20 * kMillisecond;

/// The time until A hears that what it sends has arrived.
Nanos until_acknowledged(TcpPair& pair) {
  const Bytes data = random_fill(1, 100);
  const std::size_t before = pair.a.count(Completion::Kind::kSent);
  const Nanos start = now();
  pair.send(data);
  REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kSent) > before; }));
  return now() - start;
}

TEST_CASE("a receiver that has answered goes on to acknowledge at once") {
  // The least of several, since a busy machine may delay some.
  Nanos after_welcome = kNever;
  Nanos after_ping = kNever;
  for (int i = 0; i < 10; ++i) {
    TcpPair pair;
    pair.connect();
    after_welcome = std::min(after_welcome, until_acknowledged(pair));
    pair.ping();
    REQUIRE(pair.eventually([&] { return pair.a.completions.back().cookie == 2; }));
    after_ping = std::min(after_ping, until_acknowledged(pair));
  }
  CHECK(after_welcome < kAtOnce);
  CHECK(after_ping < kAtOnce);
}

// Linux takes the length of two segments in a row for the largest that the sender makes, waits for more after the
// second (tcp_measure_rcv_mss, net/ipv4/tcp_input.c). The first 16 of a connection it acknowledges at once in any case.
TEST_CASE("payloads are acknowledged at once when two in a row have one length") {
  constexpr std::size_t kPayloads = 80;
  const Bytes data = random_fill(1, 40 * 1024);
  std::array<Nanos, kPayloads> least{};
  least.fill(kNever);
  for (int i = 0; i < 5; ++i) {  // the least of several, since a busy machine may delay some
    TcpPair pair;
    pair.connect();
    for (std::size_t payload = 0; payload < kPayloads; ++payload) {
      // The last ones are as short as the last flowlet of a message may be.
      const auto length = static_cast<std::uint32_t>(payload < 60 ? data.size() - payload / 20 * 8192 : 1000);
      const Nanos start = now();
      pair.a.backend.post(pair.qa.qpn,
                          {.kind = WorkKind::kWrite, .data = data.data(), .length = length, .rkey = pair.b.rkey});
      REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kSent) > payload; }));
      least[payload] = std::min(least[payload], now() - start);
    }
  }
  CHECK(std::ranges::count_if(least, [](Nanos time) { return time >= kAtOnce; }) == 0);
}

/// B reads short messages at one moment, so that only what a test does makes it acknowledge them.
struct ShortMessages : TcpPair {
  ShortMessages() {
    connect();
    pass(Receiver::kAlone);
    b.backend.settle(t);
    REQUIRE(a_alone_until([&] { return a.backend.statistics(qa.qpn).all_acknowledged; }));
  }
  /// A sends some, and B reads them all.
  void pass(std::size_t count) {
    static const Bytes data = random_fill(1, 1);  // 16 with their headers are below the kernel's least segment
    for (std::size_t i = 0; i < count; ++i) send(data);
    std::size_t read = 0;
    REQUIRE(a_alone_until([&] { return (read += round(t)) >= count; }));
  }
  std::size_t round(Nanos when) {
    std::vector<Completion> fresh;
    b.backend.progress(when, fresh);
    for (const Completion& completion : fresh) b.give(completion.cookie);
    return fresh.size();
  }
  /// Whether A hears within 5 ms that anything has arrived.
  bool hears() {
    const std::size_t before = a.count(Completion::Kind::kSent);
    for (const Nanos start = now(); now() - start < 5 * kMillisecond;) a.step();
    return a.count(Completion::Kind::kSent) > before;
  }
  const Nanos t = now();
};

/// Whether B puts its acknowledgement of `count` messages off until `acknowledge`. Several tries, because the kernel
/// sends it after 40 ms, and a busy machine may take that long for one.
template <typename Acknowledge>
bool puts_off(std::size_t count, Acknowledge acknowledge) {
  ShortMessages lane;
  for (int i = 0; i < 20; ++i) {
    lane.pass(count);
    const bool heard = lane.hears();
    acknowledge(lane);
    if (!heard && lane.hears()) return true;
    lane.b.backend.settle(lane.t);
    REQUIRE(lane.a_alone_until([&] { return lane.a.backend.statistics(lane.qa.qpn).all_acknowledged; }));
  }
  return false;
}

TEST_CASE("a short message is acknowledged a moment later, with those that follow it") {
  CHECK(puts_off(1, [](ShortMessages& lane) { lane.round(lane.t + kMillisecond); }));
  CHECK(puts_off(15, [](ShortMessages& lane) { lane.round(lane.t + kMillisecond); }));
}

TEST_CASE("short messages are acknowledged before a thread sleeps") {
  CHECK(puts_off(1, [](ShortMessages& lane) { lane.b.backend.settle(lane.t); }));
}

TEST_CASE("a process that is held up costs its peers no timeout while its kernel has what they send") {
  const Bytes data = random_fill(1, 1);  // it is read until it has been sent
  std::uint64_t least = UINT64_MAX;
  for (int i = 0; i < 10; ++i) {
    ShortMessages lane;
    lane.pass(1);
    lane.b.backend.settle(lane.t);
    REQUIRE(lane.a_alone_until([&] { return lane.a.backend.statistics(lane.qa.qpn).all_acknowledged; }));
    const std::uint64_t before = lane.a.backend.statistics(lane.qa.qpn).counters.timeouts;
    lane.send(data);
    for (const Nanos start = now(); now() - start < 30 * kMillisecond;) lane.a.step();
    least = std::min(least, lane.a.backend.statistics(lane.qa.qpn).counters.timeouts - before);
  }
  CHECK(least == 0);
}

TEST_CASE("every 16 short messages are acknowledged") {
  CHECK(puts_off(15, [](ShortMessages& lane) { lane.pass(1); }));
}

}  // namespace
}  // namespace paralet::tcp
