// SPDX-License-Identifier: Apache-2.0
// Matching: the k-th send of a tag meets the k-th receive of that tag, in whatever order advertisements arrive.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/advertised_receives.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {
namespace {

using ReceiveVerdict = AdvertisedReceives::Verdict;

handshake::Advertisement advertisement(std::uint32_t sequence, std::uint32_t tag = 0) {
  return {.sequence = sequence, .tag = tag, .length = 100 + sequence};
}

TEST_CASE("advertised receives: nothing is there at first") {
  AdvertisedReceives receives;
  CHECK(receives.empty());
  CHECK_FALSE(receives.take(0));
  CHECK(receives.taken() == 0);
}

TEST_CASE("advertised receives: taken in the order of their sequence numbers") {
  AdvertisedReceives receives;
  for (std::uint32_t i = 0; i < 3; ++i) REQUIRE(receives.add(advertisement(i)) == ReceiveVerdict::kTaken);
  CHECK(receives.size() == 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto taken = receives.take(0);
    REQUIRE(taken);
    CHECK(taken->sequence == i);
    CHECK(taken->length == 100 + i);
    CHECK(receives.taken() == i + 1);
  }
  CHECK(receives.empty());
}

TEST_CASE("advertised receives: an early one waits for those before it") {
  AdvertisedReceives receives;
  CHECK(receives.add(advertisement(2)) == ReceiveVerdict::kEarly);
  CHECK(receives.add(advertisement(1)) == ReceiveVerdict::kEarly);
  CHECK(receives.empty());
  CHECK(receives.early() == 2);
  CHECK_FALSE(receives.take(0));
  CHECK(receives.add(advertisement(0)) == ReceiveVerdict::kTaken);
  CHECK(receives.early() == 0);
  CHECK(receives.size() == 3);
  for (std::uint32_t i = 0; i < 3; ++i) CHECK(receives.take(0)->sequence == i);
}

TEST_CASE("advertised receives: a gap keeps back only what follows it") {
  AdvertisedReceives receives;
  CHECK(receives.add(advertisement(0)) == ReceiveVerdict::kTaken);
  CHECK(receives.add(advertisement(2)) == ReceiveVerdict::kEarly);
  CHECK(receives.add(advertisement(4)) == ReceiveVerdict::kEarly);
  CHECK(receives.size() == 1);
  CHECK(receives.add(advertisement(1)) == ReceiveVerdict::kTaken);
  CHECK(receives.size() == 3);
  CHECK(receives.early() == 1);
}

TEST_CASE("advertised receives: a copy changes nothing") {
  AdvertisedReceives receives;
  REQUIRE(receives.add(advertisement(0)) == ReceiveVerdict::kTaken);
  REQUIRE(receives.add(advertisement(2)) == ReceiveVerdict::kEarly);
  CHECK(receives.add(advertisement(0)) == ReceiveVerdict::kCopy);
  CHECK(receives.add(advertisement(2)) == ReceiveVerdict::kCopy);
  REQUIRE(receives.take(0));
  CHECK(receives.add(advertisement(0)) == ReceiveVerdict::kCopy);  // one that a send has met
  CHECK(receives.size() == 0);
  CHECK(receives.early() == 1);
}

TEST_CASE("advertised receives: a tag takes the oldest of its own") {
  AdvertisedReceives receives;
  for (const auto& [sequence, tag] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 7}, {1, 8}, {2, 7}}) {
    REQUIRE(receives.add(advertisement(sequence, tag)) == ReceiveVerdict::kTaken);
  }
  CHECK(receives.oldest_tag() == 7);
  CHECK_FALSE(receives.take(9));
  CHECK(receives.take(8)->sequence == 1);
  CHECK(receives.take(7)->sequence == 0);
  CHECK(receives.take(7)->sequence == 2);
  CHECK_FALSE(receives.take(7));
}

TEST_CASE("advertised receives: of all sequence numbers, one half lies ahead and the other is past") {
  AdvertisedReceives receives;
  std::uint32_t next = 0;
  for (; next < 100; ++next) REQUIRE(receives.add(advertisement(next)) == ReceiveVerdict::kTaken);
  CHECK(receives.add(advertisement(next + 0x7FFFFFFF)) == ReceiveVerdict::kEarly);
  CHECK(receives.add(advertisement(next + 0x80000000)) == ReceiveVerdict::kCopy);
}

TEST_CASE("advertised receives: no more than kMost are kept, early ones included") {
  AdvertisedReceives receives;
  for (std::uint32_t i = 0; i < AdvertisedReceives::kMost; ++i) {
    REQUIRE(receives.add(advertisement(i < 1000 ? i : i + 1)) != ReceiveVerdict::kTooMany);  // number 1000 is missing
  }
  CHECK(receives.size() == 1000);
  CHECK(receives.early() == AdvertisedReceives::kMost - 1000);
  CHECK(receives.add(advertisement(1000)) == ReceiveVerdict::kTooMany);
  REQUIRE(receives.take(0));
  CHECK(receives.add(advertisement(1000)) == ReceiveVerdict::kTaken);
}

TEST_CASE("advertised receives: random order and copies: each tag gets its receives in order") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    const auto count = static_cast<std::uint32_t>(1 + random.below(60));
    std::vector<handshake::Advertisement> sent;
    std::map<std::uint32_t, std::vector<std::uint32_t>> expected;  // sequence numbers by tag
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto tag = static_cast<std::uint32_t>(random.below(3));
      expected[tag].push_back(i);
      sent.push_back(advertisement(i, tag));
      if (random.below(3) == 0) sent.push_back(sent[random.below(sent.size())]);
    }
    for (std::size_t i = sent.size(); i > 1; --i) std::swap(sent[i - 1], sent[random.below(i)]);
    AdvertisedReceives receives;
    std::map<std::uint32_t, std::vector<std::uint32_t>> met;
    unsigned first_copies = 0;
    for (const auto& advertised : sent) {
      const ReceiveVerdict verdict = receives.add(advertised);
      REQUIRE(verdict != ReceiveVerdict::kTooMany);
      first_copies += verdict != ReceiveVerdict::kCopy ? 1 : 0;
      const auto tag = static_cast<std::uint32_t>(random.below(3));  // sends come meanwhile
      if (const auto taken = receives.take(tag)) met[tag].push_back(taken->sequence);
    }
    for (const std::uint32_t tag : {0U, 1U, 2U}) {
      while (const auto taken = receives.take(tag)) met[tag].push_back(taken->sequence);
    }
    CHECK(met == expected);
    CHECK(first_copies == count);
    CHECK(receives.taken() == count);
    CHECK(receives.early() == 0);
  }
}

handshake::Advertisement after_eager(std::uint32_t sequence, std::uint32_t eager, std::uint32_t tag = 0) {
  return {.sequence = sequence, .tag = tag, .eager = eager, .length = 100};
}

TEST_CASE("advertised receives: one that an eager message is on its way to is no other's") {
  AdvertisedReceives receives;
  receives.send_ahead(0, 0);
  receives.send_ahead(1, 7);
  receives.send_ahead(2, 0);
  CHECK(receives.add(after_eager(0, 0)) == ReceiveVerdict::kTaken);  // meets message 0
  CHECK(receives.empty());
  CHECK(receives.add(after_eager(1, 0, 8)) == ReceiveVerdict::kTaken);
  CHECK(receives.size() == 1);
  CHECK(receives.add(after_eager(2, 1)) == ReceiveVerdict::kTaken);  // message 2
  CHECK(receives.size() == 1);
  CHECK(receives.add(after_eager(3, 1)) == ReceiveVerdict::kTaken);
  CHECK(receives.take(0)->sequence == 3);
  CHECK(receives.add(after_eager(4, 1, 7)) == ReceiveVerdict::kTaken);  // message 1
  CHECK_FALSE(receives.take(7));
  CHECK(receives.take(8)->sequence == 1);
}

TEST_CASE("advertised receives: an eager message that the peer had taken before is of another receive") {
  AdvertisedReceives receives;
  receives.send_ahead(0, 0);
  receives.send_ahead(1, 0);
  CHECK(receives.add(after_eager(0, 1)) == ReceiveVerdict::kTaken);  // meets message 1
  CHECK(receives.empty());
  CHECK(receives.add(after_eager(1, 2)) == ReceiveVerdict::kTaken);
  CHECK(receives.take(0)->sequence == 1);
}

TEST_CASE("advertised receives: eager messages are forgotten once no advertisement of before is on its way") {
  AdvertisedReceives receives;
  for (std::uint32_t i = 0; i < AdvertisedReceives::kMostAhead; ++i) {
    REQUIRE_FALSE(receives.full_ahead());
    receives.send_ahead(i, 0);
  }
  CHECK(receives.full_ahead());
  receives.taken_ahead(AdvertisedReceives::kMostAhead, 1);  // advertisement 0 may be of the first of them
  CHECK(receives.full_ahead());
  CHECK(receives.add(after_eager(0, 0)) == ReceiveVerdict::kTaken);
  CHECK(receives.empty());
  CHECK_FALSE(receives.full_ahead());
  CHECK(receives.add(after_eager(1, 0)) == ReceiveVerdict::kTaken);
  CHECK(receives.size() == 1);
}

}  // namespace
}  // namespace paralet
