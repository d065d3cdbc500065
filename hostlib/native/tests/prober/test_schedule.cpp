// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "prober/schedule.hpp"

namespace paralet::prober {
namespace {

constexpr std::uint32_t kRouter = 0x0A000001;
constexpr Limits kUnlimited{.rate = 0, .router_rate = 0};

std::vector<Schedule::Departure> departures(Schedule& schedule, Nanos now) {
  std::vector<Schedule::Departure> out;
  while (const auto one = schedule.next(now)) out.push_back(*one);
  return out;
}

TEST_CASE("a source port has one probe under way at a time, others pass it") {
  Schedule schedule(kUnlimited);
  const Probe first{.target = 0, .source_port = 50000, .ttl = 1};
  const Probe same_port{.target = 1, .source_port = 50000, .ttl = 1};
  const Probe other{.target = 1, .source_port = 50001, .ttl = 1};
  for (const Probe& probe : {first, same_port, other}) schedule.add(probe);
  auto left = departures(schedule, 0);
  REQUIRE(left.size() == 2);
  CHECK(left[0].probe == first);
  CHECK(left[1].probe == other);
  schedule.answered(left[0].slot, Answer::kHop, kRouter, 5);
  left = departures(schedule, 6);
  REQUIRE(left.size() == 1);
  CHECK(left[0].probe == same_port);
}

TEST_CASE("what is wanted first leaves before others that wait, in its own order, also when it is repeated") {
  Schedule schedule({.rate = 0, .router_rate = 0, .timeout = 100, .attempts = 2});
  const Probe other{.target = 0, .source_port = 50000, .ttl = 1};
  const Probe first{.target = 0, .source_port = 50001, .ttl = 1, .first = true};
  const Probe second{.target = 0, .source_port = 50002, .ttl = 1, .first = true};
  for (const Probe& probe : {other, first, second}) schedule.add(probe);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Nanos now = 100 * attempt;
    schedule.expire(now);
    const auto left = departures(schedule, now);
    REQUIRE(left.size() == 3);
    CHECK(left[0].probe == first);
    CHECK(left[1].probe == second);
    CHECK(left[2].probe == other);
  }
}

TEST_CASE("an answer tells the router and both times") {
  Schedule schedule(kUnlimited);
  schedule.add({.target = 3, .source_port = 50000, .ttl = 2});
  const auto left = departures(schedule, 10);
  schedule.left(left[0].slot, 12);
  schedule.answered(left[0].slot, Answer::kHop, kRouter, 40);
  const auto seen = schedule.take_observations();
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].router == IpAddress(kRouter));
  CHECK(seen[0].sent_at == 12);
  CHECK(seen[0].answered_at == 40);
  CHECK(schedule.idle());
  CHECK(schedule.deadline() == kNever);
  CHECK(schedule.take_observations().empty());
}

TEST_CASE("a probe without an answer is repeated so often, and each time counted") {
  Schedule schedule({.rate = 0, .router_rate = 0, .timeout = 100, .attempts = 3});
  schedule.add({.target = 0, .source_port = 50000, .ttl = 1});
  Nanos now = 0;
  for (int attempt = 0; attempt < 3; ++attempt, now += 100) {
    REQUIRE(departures(schedule, now).size() == 1);
    CHECK(schedule.deadline() == now + 100);
    CHECK(schedule.expire(now + 99).empty());
    CHECK(schedule.expire(now + 100).size() == 1);
  }
  CHECK(departures(schedule, now).empty());
  CHECK(schedule.take_observations().size() == 3);
  CHECK(schedule.idle());
  CHECK(schedule.deadline() == kNever);
}

TEST_CASE("a probe that waits because a router answers no faster is counted once") {
  Schedule schedule({.rate = 0, .router_rate = 1, .router_burst = 2});
  for (std::uint16_t port = 50000; port < 50004; ++port) schedule.add({.target = 0, .source_port = port, .ttl = 1});
  CHECK(departures(schedule, 0).size() == 2);
  CHECK(departures(schedule, 1).empty());
  CHECK(schedule.limited() == 1);  // the next in line
  CHECK(departures(schedule, kSecond + 1).size() == 1);
  CHECK(schedule.limited() == 2);
}

TEST_CASE("the window bounds what is under way") {
  Schedule schedule({.rate = 0, .router_rate = 0, .window = 4});
  for (std::uint16_t port = 50000; port < 50010; ++port) schedule.add({.target = 0, .source_port = port, .ttl = 1});
  auto left = departures(schedule, 0);
  CHECK(left.size() == 4);
  schedule.failed(left[2].slot, 1, std::nullopt);
  left = departures(schedule, 0);
  REQUIRE(left.size() == 1);
  CHECK(left[0].probe.source_port == 50004);
  CHECK(schedule.take_failures().size() == 1);
}

TEST_CASE("routers that are known by their answers are asked at their own rate, others wait") {
  Schedule schedule({.rate = 0, .router_rate = 1, .router_burst = 2, .timeout = 60 * kSecond});
  for (std::uint16_t port = 50000; port < 50020; ++port) schedule.add({.target = 0, .source_port = port, .ttl = 3});
  auto left = departures(schedule, 0);
  REQUIRE(left.size() == 2);  // the unknown routers' burst
  for (std::uint32_t i = 0; i < 2; ++i) schedule.answered(left[i].slot, Answer::kHop, kRouter + i, 10);
  CHECK(departures(schedule, 10).size() == 2);  // the rest of the bursts of two routers
  CHECK(departures(schedule, 10).empty());
  const Nanos next = schedule.deadline();
  CHECK(next > 10 + kSecond / 3);
  CHECK(next < 10 + kSecond);
  CHECK(departures(schedule, 10 + kSecond).size() == 2);
}

TEST_CASE("a place whose routers are exhausted does not hold up another") {
  Schedule schedule({.rate = 0, .router_rate = 1, .router_burst = 1, .timeout = 60 * kSecond});
  schedule.add({.target = 0, .source_port = 50000, .ttl = 1});
  const auto left = departures(schedule, 0);
  REQUIRE(left.size() == 1);
  schedule.answered(left[0].slot, Answer::kHop, kRouter, 1);
  schedule.add({.target = 0, .source_port = 50001, .ttl = 1});
  CHECK(departures(schedule, 1).empty());
  schedule.add({.target = 0, .source_port = 50002, .ttl = 2});
  CHECK(departures(schedule, 2 * kSecond).size() == 2);
}

TEST_CASE("the first probes to a target need not wait for routers nobody knows, where others answer at that hop") {
  constexpr std::uint32_t kSpines = 4;
  Schedule schedule({.rate = 0, .router_rate = 1, .router_burst = 6});
  std::uint16_t port = 50000;
  const auto ask = [&](std::size_t target, std::uint8_t ttl, int count) {
    for (int i = 0; i < count; ++i) schedule.add({.target = target, .source_port = port++, .ttl = ttl});
  };
  ask(0, 2, 6);
  const auto first = departures(schedule, 0);
  REQUIRE(first.size() == 6);
  for (std::uint32_t i = 0; i < 6; ++i) schedule.answered(first[i].slot, Answer::kHop, kRouter + i % kSpines, 0);
  ask(1, 3, 7);  // nobody has answered at this hop
  CHECK(departures(schedule, 0).size() == 6);
  ask(2, 2, 20);
  const auto others = departures(schedule, 0);
  REQUIRE(others.size() == 6);  // which one router could answer, were it the only one
  for (const auto& one : others) CHECK(one.probe.target == 2);
  schedule.answered(others[0].slot, Answer::kHop, kRouter, 0);
  CHECK(departures(schedule, 0).size() <= 5);  // it is the only one that is known there
}

TEST_CASE("probes to many targets leave as fast as the routers that answer them allow") {
  constexpr std::uint32_t kRouters = 4;
  Schedule schedule({.rate = 0, .router_rate = 1, .router_burst = 6});
  schedule.add({.target = 0, .source_port = 40000, .ttl = 3});
  schedule.answered(departures(schedule, 0).at(0).slot, Answer::kHop, kRouter, 0);
  std::uint32_t answered = 1;
  for (std::size_t target = 1; target <= 5; ++target) {  // four probes each, one after the other
    for (std::uint16_t port = 50000; port < 50004; ++port, ++answered) {
      schedule.add({.target = target, .source_port = port, .ttl = 3});
      const auto left = departures(schedule, 0);
      REQUIRE(left.size() == 1);
      schedule.answered(left[0].slot, Answer::kHop, kRouter + answered % kRouters, 0);
    }
  }
  CHECK(schedule.limited() == 0);
}

/// A host that knows four routers at hop 3, of which the first has no answers left.
Schedule with_one_exhausted_router() {
  Schedule schedule({.rate = 0, .router_rate = 1, .router_burst = 6});
  for (std::uint32_t i = 0; i < 4; ++i) {
    schedule.add({.target = i, .source_port = static_cast<std::uint16_t>(40000 + i), .ttl = 3});
    schedule.answered(departures(schedule, 0).at(0).slot, Answer::kHop, kRouter + i, 0);
  }
  for (std::uint16_t port = 41000; port < 41005; ++port) {
    schedule.add({.target = 0, .source_port = port, .ttl = 3});
    schedule.answered(departures(schedule, 0).at(0).slot, Answer::kHop, kRouter, 0);
  }
  schedule.take_observations();
  return schedule;
}

TEST_CASE("a probe that is sent once leaves although one of the routers cannot answer") {
  Schedule schedule = with_one_exhausted_router();
  schedule.add({.target = 0, .source_port = 50000, .ttl = 3});
  CHECK(departures(schedule, 0).empty());
  schedule.drop_waiting();
  const Probe once{.target = 0, .source_port = 50000, .ttl = 3, .once = true};
  schedule.add(once);
  const auto left = departures(schedule, 0);
  REQUIRE(left.size() == 1);
  CHECK(left[0].probe == once);
  schedule.answered(left[0].slot, Answer::kHop, kRouter + 1, 0);
  CHECK(schedule.idle());
}

TEST_CASE("a probe that is sent once and not answered is not repeated, and costs no router an answer") {
  Schedule schedule = with_one_exhausted_router();
  constexpr Nanos kOnce = Limits{}.once_timeout;
  Nanos now = 0;
  for (std::uint16_t port = 50000; port < 50200; ++port, now += kOnce) {
    schedule.add({.target = 0, .source_port = port, .ttl = 3, .once = true});
    REQUIRE(departures(schedule, now).size() == 1);
    CHECK(schedule.deadline() <= now + kOnce);
    CHECK(schedule.expire(now + kOnce - 1).empty());
    CHECK(schedule.expire(now + kOnce).size() == 1);
    CHECK(schedule.idle());
  }
  CHECK(schedule.take_observations().size() == 200);
  for (std::uint16_t port = 51000; port < 51024; ++port) schedule.add({.target = 0, .source_port = port, .ttl = 3});
  CHECK(departures(schedule, now).size() >= 6);  // as many as after a pause
}

TEST_CASE("probes that are sent once wait while no router can answer") {
  Schedule schedule({.rate = 0, .router_rate = 1, .router_burst = 2});
  std::uint16_t port = 50000;
  for (std::uint32_t i = 0; i < 4; ++i) {
    schedule.add({.target = 0, .source_port = port++, .ttl = 3, .once = true});
    const auto left = departures(schedule, 0);
    REQUIRE(left.size() == 1);
    schedule.answered(left[0].slot, Answer::kHop, kRouter + i % 2, 0);
  }
  schedule.add({.target = 0, .source_port = port, .ttl = 3, .once = true});
  CHECK(departures(schedule, 0).empty());
  CHECK(schedule.expire(kSecond - kMillisecond).empty());
  CHECK(departures(schedule, kSecond - kMillisecond).empty());
  const Nanos next = schedule.deadline();
  CHECK(next < kSecond + kMillisecond);
  CHECK(departures(schedule, next).size() == 1);
}

TEST_CASE("probes that are sent once do not put off the timeouts of others") {
  Schedule schedule({.rate = 0, .router_rate = 0, .timeout = 100, .once_timeout = 40, .attempts = 1});
  schedule.add({.target = 0, .source_port = 50000, .ttl = 1});
  schedule.add({.target = 0, .source_port = 50001, .ttl = 1, .once = true});
  REQUIRE(departures(schedule, 0).size() == 2);
  CHECK(schedule.deadline() == 40);
  CHECK(schedule.expire(40).size() == 1);
  CHECK(schedule.deadline() == 100);
  CHECK(schedule.expire(100).size() == 1);
  CHECK(schedule.idle());
}

TEST_CASE("the rate bounds all probes, and the deadline tells when the next may leave") {
  Schedule schedule({.rate = 100, .router_rate = 0});
  for (std::uint16_t port = 50000; port < 50100; ++port) schedule.add({.target = 0, .source_port = port, .ttl = 1});
  const std::size_t at_once = departures(schedule, kSecond).size();
  CHECK(at_once < 10);
  const Nanos next = schedule.deadline();
  CHECK(next > kSecond);
  CHECK(next <= kSecond + 21 * kMillisecond);
  CHECK(departures(schedule, kSecond + 50 * kMillisecond).size() == 5);
}

TEST_CASE("a full queue of the kernel costs a probe no attempt") {
  Schedule schedule({.rate = 0, .router_rate = 0, .attempts = 1});
  schedule.add({.target = 0, .source_port = 50000, .ttl = 1});
  for (int i = 0; i < 5; ++i) {
    const Nanos now = i * kSecond;
    CHECK(schedule.expire(now).empty());
    const auto left = departures(schedule, now);
    REQUIRE(left.size() == 1);
    schedule.postpone(left[0].slot, now);
    CHECK(departures(schedule, now).empty());
    CHECK(schedule.deadline() > now);
  }
  CHECK_FALSE(schedule.idle());
  CHECK(schedule.take_observations().empty());
}

TEST_CASE("probes that wait can be forgotten, those under way are settled") {
  Schedule schedule({.rate = 0, .router_rate = 0, .timeout = 100, .attempts = 1, .window = 1});
  for (std::uint16_t port = 50000; port < 50005; ++port) schedule.add({.target = 0, .source_port = port, .ttl = 1});
  REQUIRE(departures(schedule, 0).size() == 1);
  CHECK(schedule.drop_waiting() == 4);
  CHECK_FALSE(schedule.idle());
  CHECK(schedule.expire(100).size() == 1);
  CHECK(schedule.idle());
}

TEST_CASE("the timeout of a settled probe does not concern the next one in its slot") {
  Schedule schedule({.rate = 0, .router_rate = 0, .timeout = 100, .window = 1});
  schedule.add({.target = 0, .source_port = 50000, .ttl = 1});
  schedule.add({.target = 0, .source_port = 50001, .ttl = 1});
  schedule.answered(departures(schedule, 0)[0].slot, Answer::kHop, kRouter, 50);
  REQUIRE(departures(schedule, 50).size() == 1);
  CHECK(schedule.expire(120).empty());
  CHECK(schedule.expire(150).size() == 1);
}

}  // namespace
}  // namespace paralet::prober
