// SPDX-License-Identifier: Apache-2.0
// When a message goes eagerly, and how the receiving side orders, bounds and keeps what comes.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/eager.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {
namespace {

using ArrivalVerdict = EagerArrivals::Verdict;

/// A side that has just sent enough short messages.
EagerSends after_short_messages() {
  EagerSends sends;
  for (unsigned i = 0; i <= EagerSends::kShortRun; ++i) sends.note(kMostEagerBytes, kMostEagerBytes);
  return sends;
}

TEST_CASE("eager sends: only after a run of short messages, which a long one ends") {
  EagerSends sends;
  for (unsigned i = 0; i < EagerSends::kShortRun; ++i) {
    sends.note(0, kMostEagerBytes);
    CHECK_FALSE(sends.allowed());
  }
  sends.note(kMostEagerBytes, kMostEagerBytes);
  CHECK(sends.allowed());
  sends.note(kMostEagerBytes + 1, kMostEagerBytes);
  CHECK_FALSE(sends.allowed());
  sends.note(8, kMostEagerBytes);
  CHECK_FALSE(sends.allowed());
}

TEST_CASE("eager sends: what a short message is can be set") {
  constexpr std::uint64_t kMost = 100;
  EagerSends sends;
  for (unsigned i = 0; i <= EagerSends::kShortRun; ++i) sends.note(kMost, kMost);
  CHECK(sends.allowed());
  sends.note(kMost + 1, kMost);
  CHECK_FALSE(sends.allowed());
  CHECK_FALSE(sends.lacks_credit());
}

TEST_CASE("eager sends: the peer is asked once after an eager message, and not before the first") {
  EagerSends sends = after_short_messages();
  CHECK_FALSE(sends.ask());
  CHECK(sends.next() == 0);
  CHECK(sends.ask() == std::optional<std::uint32_t>(1));
  CHECK_FALSE(sends.ask());
  CHECK(sends.next() == 2);
  CHECK(sends.next() == 3);
  CHECK(sends.ask() == std::optional<std::uint32_t>(4));
}

TEST_CASE("eager sends: as many as there are credits, and an ask beyond them") {
  EagerSends sends = after_short_messages();
  for (std::uint32_t i = 0; i < kEagerCredits; ++i) {
    REQUIRE(sends.allowed());
    CHECK(sends.next() == i);
  }
  CHECK_FALSE(sends.allowed());
  CHECK(sends.lacks_credit());
  CHECK(sends.ask() == std::optional(kEagerCredits));
  CHECK(sends.credit({.taken = 5, .done = 3}));
  CHECK(sends.allowed());
  CHECK_FALSE(sends.lacks_credit());
  CHECK(sends.credit({.taken = 5, .done = 3}));  // a copy
  CHECK(sends.credit({.taken = 2, .done = 2}));  // one that was overtaken
  CHECK(sends.next() == kEagerCredits + 1);
  CHECK(sends.next() == kEagerCredits + 2);
  CHECK_FALSE(sends.allowed());
}

TEST_CASE("eager sends: a credit for what was not sent is refused") {
  EagerSends sends = after_short_messages();
  CHECK_FALSE(sends.credit({.taken = 1, .done = 1}));
  sends.next();
  CHECK_FALSE(sends.credit({.taken = 2, .done = 1}));
  CHECK_FALSE(sends.credit({.taken = 1, .done = 2}));
  CHECK(sends.credit({.taken = 1, .done = 1}));
}

TEST_CASE("eager arrivals: in order, whatever order they come in, and each once") {
  EagerArrivals arrivals;
  CHECK(arrivals.arrived(2) == ArrivalVerdict::kEarly);
  arrivals.keep_early(2, {.tag = 2});
  CHECK(arrivals.arrived(2) == ArrivalVerdict::kCopy);
  CHECK_FALSE(arrivals.next_early());
  CHECK(arrivals.arrived(0) == ArrivalVerdict::kNext);
  CHECK_FALSE(arrivals.next_early());
  CHECK(arrivals.arrived(0) == ArrivalVerdict::kCopy);
  CHECK(arrivals.arrived(1) == ArrivalVerdict::kNext);
  const auto early = arrivals.next_early();
  REQUIRE(early);
  CHECK(early->tag == 2);
  CHECK_FALSE(arrivals.next_early());
  CHECK(arrivals.taken() == 3);
}

TEST_CASE("eager arrivals: a peer that sends more than it has credits for is found, early or in order") {
  EagerArrivals early;
  CHECK(early.arrived(kEagerCredits) == ArrivalVerdict::kEarly);  // an ask needs none
  CHECK(early.arrived(kEagerCredits + 1) == ArrivalVerdict::kTooMany);

  EagerArrivals arrivals;
  for (std::uint32_t i = 0; i <= kEagerCredits; ++i) REQUIRE(arrivals.arrived(i) == ArrivalVerdict::kNext);
  CHECK(arrivals.arrived(kEagerCredits + 1) == ArrivalVerdict::kTooMany);
  static_cast<void>(arrivals.done());
  CHECK(arrivals.arrived(kEagerCredits + 1) == ArrivalVerdict::kTooMany);  // the peer does not know it yet
  static_cast<void>(arrivals.grant(1, 0));
  CHECK(arrivals.arrived(kEagerCredits + 1) == ArrivalVerdict::kNext);
}

TEST_CASE("eager arrivals: kept messages are found by their tag, oldest first") {
  EagerArrivals arrivals;
  CHECK_FALSE(arrivals.keeps_any());
  for (const std::uint32_t tag : {7U, 8U, 7U}) {
    const std::vector<std::byte> bytes(tag + (arrivals.keeps_any() ? 1 : 0));
    arrivals.keep({.tag = tag, .bytes = arrivals.copy_of(bytes)});
  }
  CHECK_FALSE(arrivals.kept(6));
  CHECK(arrivals.kept(7)->bytes.size() == 7);
  CHECK(arrivals.kept(7)->bytes.size() == 8);
  CHECK_FALSE(arrivals.kept(7));
  CHECK(arrivals.kept(8)->bytes.size() == 9);
  CHECK_FALSE(arrivals.keeps_any());
}

TEST_CASE("eager arrivals: the peer is told of half of its credits together") {
  EagerArrivals arrivals;
  for (std::uint32_t i = 0; i < kEagerCredits / 2; ++i) {
    REQUIRE(arrivals.arrived(i) == ArrivalVerdict::kNext);
    CHECK(arrivals.done() == (i + 1 == kEagerCredits / 2));
  }
  const handshake::EagerCredit credit = arrivals.grant(9, 4);
  CHECK(credit.connection == 9);
  CHECK(credit.taken == kEagerCredits / 2);
  CHECK(credit.done == kEagerCredits / 2);
  CHECK(credit.advertised == 4);
  CHECK_FALSE(arrivals.done());
}

}  // namespace
}  // namespace paralet
