// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <set>

#include "flows.hpp"

using namespace paralet;
using namespace paralet::pin;

namespace {

constexpr Course kCourse{
    .tcp = true, .local = IpAddress(0x0A000001), .remote = IpAddress(0x0A000002), .remote_port = 5};

std::vector<std::pair<Flows::News::Kind, std::uint64_t>> kinds_of(const std::vector<Flows::News>& news) {
  std::vector<std::pair<Flows::News::Kind, std::uint64_t>> found;
  found.reserve(news.size());
  for (const auto& one : news) found.emplace_back(one.kind, one.flow.announced.value_or(0));
  return found;
}

constexpr auto kAnnounce = Flows::News::Kind::kAnnounce;
constexpr auto kRelease = Flows::News::Kind::kRelease;

}  // namespace

TEST_CASE("flows of one course have slots of their own, of another course the same ones") {
  Flows flows;
  std::set<Slot> slots;
  for (Slot slot = 0; slot < kSlots; ++slot) slots.insert(flows.begin(kCourse, 7, "", 0, 0)->slot);
  CHECK(slots.size() == kSlots);
  CHECK(flows.begin(kCourse, 7, "", 0, 0) == nullptr);
  Course other = kCourse;
  other.remote_port = 6;
  CHECK(flows.begin(other, 7, "", 0, 0)->slot == 0);
}

TEST_CASE("a slot is free again when its flow has ended") {
  Flows flows;
  const std::uint64_t first = flows.begin(kCourse, 7, "", 0, 0)->id;
  CHECK(flows.begin(kCourse, 7, "", 0, 0)->slot == 1);
  flows.end(first);
  CHECK(flows.begin(kCourse, 7, "", 0, 0)->slot == 0);
}

TEST_CASE("a flow can have one of the first slots of its course while one of them is free") {
  Flows flows;
  CHECK(flows.has_slot(kCourse, 2, 0));
  CHECK_FALSE(flows.has_slot(kCourse, 0, 0));
  const std::uint64_t first = flows.begin(kCourse, 7, "", 0, 0)->id;
  CHECK(flows.has_slot(kCourse, 2, 0));
  REQUIRE(flows.next_slot(first, 0));
  CHECK_FALSE(flows.has_slot(kCourse, 2, 0));
  CHECK(flows.has_slot(kCourse, kSlots + 1, 0));
  CHECK(flows.has_slot(kCourse, 2, Flows::kTimeWait));
}

TEST_CASE("a slot whose port is taken rests as long as a connection may be in TIME_WAIT") {
  Flows flows;
  const std::uint64_t first = flows.begin(kCourse, 7, "", 0, 0)->id;
  REQUIRE(flows.next_slot(first, 0));
  CHECK(flows.find(first)->slot == 1);
  flows.end(first);
  CHECK(flows.begin(kCourse, 7, "", 0, Flows::kTimeWait - 1)->slot == 1);
  CHECK(flows.begin(kCourse, 7, "", 0, Flows::kTimeWait)->slot == 0);
}

TEST_CASE("a course is forgotten when its flows have ended and its slots have rested") {
  Flows flows;
  flows.end(flows.begin(kCourse, 7, "", 0, 0)->id);
  CHECK(flows.courses() == 0);
  const std::uint64_t first = flows.begin(kCourse, 7, "", 0, 0)->id;
  REQUIRE(flows.next_slot(first, 1));
  flows.end(first);
  CHECK(flows.courses() == 1);
  Course other = kCourse;
  other.remote_port = 6;
  flows.begin(other, 7, "", 0, Flows::kTimeWait);
  CHECK(flows.courses() == 2);
  flows.begin(other, 7, "", 0, Flows::kTimeWait + 1);
  CHECK(flows.courses() == 1);
}

TEST_CASE("a course whose slots have all been taken is forgotten when they have rested") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "", 0, 0)->id;
  while (flows.next_slot(id, 0)) continue;
  Course other = kCourse;
  other.remote_port = 6;
  flows.begin(other, 7, "", 0, Flows::kTimeWait);
  CHECK(flows.courses() == 1);
}

TEST_CASE("a course is forgotten when its last flow ends after a slot has rested") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "", 0, 0)->id;
  REQUIRE(flows.next_slot(id, 1));
  Course other = kCourse;
  other.remote_port = 6;
  flows.begin(other, 7, "", 0, Flows::kTimeWait + 1);
  CHECK(flows.courses() == 2);
  flows.end(id);
  CHECK(flows.courses() == 1);
}

TEST_CASE("flows are found by their course and slot") {
  Flows flows;
  const std::uint64_t first = flows.begin(kCourse, 7, "", 0, 0)->id;
  const std::uint64_t second = flows.begin(kCourse, 8, "", 0, 0)->id;
  Course other = kCourse;
  other.remote_port = 6;
  flows.begin(other, 7, "", 0, 0);
  const auto ids = [&] {
    std::vector<std::uint64_t> found;
    for (const KnownFlow* flow : flows.of(kCourse)) found.push_back(flow->id);
    return found;
  };
  CHECK(ids() == std::vector{first, second});
  CHECK(flows.find(kCourse, 1)->id == second);
  CHECK(flows.find(kCourse, 2) == nullptr);
  CHECK(flows.find(kCourse, kSlots) == nullptr);
  flows.end(first);
  CHECK(ids() == std::vector{second});
  CHECK(flows.find(kCourse, 0) == nullptr);
}

TEST_CASE("a flow whose slots are all taken ends") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "", 0, 0)->id;
  for (Slot slot = 1; slot < kSlots; ++slot) REQUIRE(flows.next_slot(id, 0));
  CHECK_FALSE(flows.next_slot(id, 0));
  CHECK(flows.find(id) == nullptr);
}

TEST_CASE("a connection is announced when it begins, when it has lasted, and when it has carried data or is idle") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "", 0, 0)->id;
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, std::uint64_t{0}}});
  flows.counted(id, 100, Flows::kLasting - 1);
  CHECK(flows.take_news().empty());
  flows.counted(id, 100, Flows::kLasting);
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, std::uint64_t{100}}});
  flows.counted(id, Flows::kElephant - 1, 2 * kSecond);
  CHECK(flows.take_news().empty());
  flows.counted(id, Flows::kElephant, 3 * kSecond);
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, Flows::kElephant}});
  flows.counted(id, 3 * Flows::kElephant, 4 * kSecond);
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, 3 * Flows::kElephant}});
  flows.counted(id, 3 * Flows::kElephant, 4 * kSecond + Flows::kElephantIdle - 1);
  CHECK(flows.take_news().empty());
  for (int i = 0; i < 2; ++i) flows.counted(id, 3 * Flows::kElephant, 4 * kSecond + Flows::kElephantIdle + i);
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, std::uint64_t{1}}});
  flows.counted(id, 3 * Flows::kElephant + 1, 100 * kSecond);
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, 3 * Flows::kElephant + 1}});
}

TEST_CASE("a connection without a byte does not count as one that lasts") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "", 0, 0)->id;
  flows.take_news();
  flows.counted(id, 0, 60 * kSecond);
  CHECK(flows.take_news().empty());
  flows.counted(id, 1, 61 * kSecond);
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, std::uint64_t{1}}});
}

TEST_CASE("datagrams, which nobody counts, are an elephant for a while") {
  Flows flows;
  Course course = kCourse;
  course.tcp = false;
  const std::uint64_t id = flows.begin(course, 7, "", 0, 0)->id;
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, Flows::kElephant}});
  flows.counted(id, 0, Flows::kLasting - 1);
  CHECK(flows.take_news().empty());
  flows.counted(id, 0, Flows::kLasting);
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kRelease, std::uint64_t{0}}});
}

TEST_CASE("what a program has declared stays announced while nobody counts its bytes") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "queue pair", 1U << 30, 0)->id;
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kAnnounce, std::uint64_t{1} << 30}});
  flows.counted(id, 0, 60 * kSecond);
  CHECK(flows.take_news().empty());
}

TEST_CASE("a flow ends without its socket, but not before the program can have connected it") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "", 0, 0)->id;
  flows.counted(id, std::nullopt, Flows::kConnecting - 1);
  CHECK(flows.find(id) != nullptr);
  flows.counted(id, std::nullopt, Flows::kConnecting);
  CHECK(flows.find(id) == nullptr);
}

TEST_CASE("a flow that its program has tried to connect ends without a socket at once") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "", 0, 0)->id;
  flows.tried(id);
  flows.counted(id, std::nullopt, 1);
  CHECK(flows.find(id) == nullptr);
  flows.tried(id);  // of a flow that has ended
}

TEST_CASE("a flow whose socket was there ends with it") {
  Flows flows;
  const std::uint64_t id = flows.begin(kCourse, 7, "", 0, 0)->id;
  flows.counted(id, 0, 1);
  flows.counted(id, std::nullopt, 2);
  CHECK(flows.find(id) == nullptr);
}

TEST_CASE("a process takes its flows with it") {
  Flows flows;
  flows.begin(kCourse, 7, "", 0, 0);
  const std::uint64_t other = flows.begin(kCourse, 8, "", 0, 0)->id;
  flows.take_news();
  flows.left(7);
  CHECK(flows.all().size() == 1);
  CHECK(flows.find(other) != nullptr);
  CHECK(kinds_of(flows.take_news()) == std::vector{std::pair{kRelease, std::uint64_t{0}}});
}

TEST_CASE("the newest flows that are not pinned are remembered") {
  Flows flows;
  for (int pid = 0; pid < static_cast<int>(Flows::kMostNotPinned) + 3; ++pid) flows.not_pinned({.pid = pid});
  CHECK(flows.not_pinned().size() == Flows::kMostNotPinned);
  CHECK(flows.not_pinned().front().pid == 3);
}
