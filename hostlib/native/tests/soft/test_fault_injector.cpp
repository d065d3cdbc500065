// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "bytes.hpp"
#include "soft/fault_injector.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr std::uint32_t kPackets = 20'000;

/// The output for packets numbered from 0, all at time 0.
std::vector<test::Bytes> pass(FaultInjector& injector, std::uint32_t packets = kPackets) {
  std::vector<test::Bytes> out;
  for (std::uint32_t i = 0; i < packets; ++i) {
    test::Bytes packet(64);
    wire::put_u32(packet.data(), i);
    const PacketOrigin origin{.address = i, .port = 1, .likely_id = 2};
    injector.receive(packet, origin, 0,
                     [&](std::span<std::byte> p, const PacketOrigin&) { out.emplace_back(p.begin(), p.end()); });
  }
  return out;
}

std::uint32_t number(const test::Bytes& packet) { return wire::get_u32(packet.data()); }

/// Within five standard deviations of a binomial distribution. Seeds are fixed, so results are reproducible.
bool near(double count, double probability, double n = kPackets) {
  return std::abs(count - n * probability) < 5 * std::sqrt(n * probability * (1 - probability));
}

TEST_CASE("without faults, packets pass unchanged") {
  const Faults none;
  CHECK_FALSE(none.any());
  FaultInjector injector(none);
  const auto out = pass(injector);
  REQUIRE(out.size() == kPackets);
  for (std::uint32_t i = 0; i < kPackets; ++i) REQUIRE(number(out[i]) == i);
  CHECK(injector.injected() == 0);
  CHECK(injector.deadline() == kNever);
}

TEST_CASE("packets are dropped at the requested rate") {
  FaultInjector injector({.drop = 0.05, .seed = 1});
  const auto out = pass(injector);
  CHECK(near(kPackets - static_cast<double>(out.size()), 0.05));
  CHECK(injector.injected() == kPackets - out.size());
  FaultInjector all({.drop = 1});
  CHECK(pass(all, 100).empty());
}

TEST_CASE("packets are duplicated at the requested rate") {
  FaultInjector injector({.duplicate = 0.05, .seed = 1});
  const auto out = pass(injector);
  CHECK(near(static_cast<double>(out.size()) - kPackets, 0.05));
  std::set<std::uint32_t> distinct;
  for (const auto& packet : out) distinct.insert(number(packet));
  CHECK(distinct.size() == kPackets);
}

TEST_CASE("a corrupted packet differs in one bit") {
  FaultInjector injector({.corrupt = 0.05, .seed = 1});
  const auto out = pass(injector);
  REQUIRE(out.size() == kPackets);
  unsigned corrupted = 0;
  std::set<int> places;
  for (std::uint32_t i = 0; i < kPackets; ++i) {
    test::Bytes original(64);
    wire::put_u32(original.data(), i);
    int bits = 0;
    for (std::size_t b = 0; b < 64; ++b) {
      const auto difference = std::to_integer<unsigned>(out[i][b] ^ original[b]);
      bits += std::popcount(difference);
      if (difference != 0) places.insert(static_cast<int>(b));
    }
    REQUIRE(bits <= 1);
    if (bits == 1) ++corrupted;
  }
  CHECK(near(corrupted, 0.05));
  CHECK(places.size() == 64);  // anywhere in the packet
}

TEST_CASE("a reordered packet is overtaken by 1 to reorder_packets others") {
  for (const unsigned most : {1U, 8U, 64U}) {
    CAPTURE(most);
    FaultInjector injector({.reorder = 0.05, .reorder_packets = most, .seed = 1});
    const auto out = pass(injector);
    CHECK(out.size() + most >= kPackets);  // some may still be held
    std::set<std::uint32_t> overtaken_by;
    std::uint32_t highest = 0;
    unsigned late = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint32_t n = number(out[i]);
      if (n >= highest) {
        highest = n;
        continue;
      }
      ++late;
      // Only recent packets can have overtaken it.
      const auto begin = out.begin() + static_cast<std::ptrdiff_t>(i > 1000 ? i - 1000 : 0);
      const auto before = std::count_if(begin, out.begin() + static_cast<std::ptrdiff_t>(i),
                                        [n](const auto& p) { return number(p) > n; });
      overtaken_by.insert(static_cast<std::uint32_t>(before));
    }
    CHECK(late >= 300);
    CHECK(*overtaken_by.begin() >= 1);
    CHECK(*overtaken_by.rbegin() <= 2 * most);  // `most` passed, and others were held and released before it
    for (std::uint32_t passed = 1; passed < most; ++passed) CHECK(overtaken_by.contains(passed));
    CHECK(near(static_cast<double>(injector.injected()), 0.05));
  }
}

TEST_CASE("a held packet without successors is released after its timeout") {
  FaultInjector injector({.reorder = 1, .seed = 1});
  test::Bytes packet(8, std::byte{7});
  const PacketOrigin origin{.address = 9, .port = 8, .likely_id = 7};
  unsigned delivered = 0;
  const FaultInjector::Deliver deliver = [&](std::span<std::byte> p, const PacketOrigin& from) {
    ++delivered;
    CHECK(std::ranges::equal(p, packet));
    CHECK(from.address == 9);
    CHECK(from.port == 8);
    CHECK(from.likely_id == 7);
  };
  injector.receive(packet, origin, 1000, deliver);
  CHECK(delivered == 0);
  const Nanos when = injector.deadline();
  CHECK(when > 1000);
  CHECK(when < kSecond);
  injector.release(when - 1, deliver);
  CHECK(delivered == 0);
  injector.release(when, deliver);
  CHECK(delivered == 1);
  CHECK(injector.deadline() == kNever);
}

TEST_CASE("a path dies after its packets, at the requested rate, and other paths carry on") {
  constexpr std::uint16_t first = 0xC000;
  constexpr std::uint16_t ports = 2000;
  constexpr unsigned after = 3;
  FaultInjector injector({.dead = 0.25, .dead_after = after, .seed = 1});
  std::vector<unsigned> arrived(ports);
  const FaultInjector::Deliver deliver = [&](std::span<std::byte> /*packet*/, const PacketOrigin& from) {
    ++arrived[from.port - first];
  };
  test::Bytes packet(64);
  for (unsigned turn = 0; turn < 10; ++turn) {
    for (std::uint16_t i = 0; i < ports; ++i) {
      injector.receive(packet, {.address = 1, .port = static_cast<std::uint16_t>(first + i), .likely_id = 2}, 0,
                       deliver);
    }
  }
  const auto dead = std::ranges::count(arrived, after);
  CHECK(near(static_cast<double>(dead), 0.25, ports));
  CHECK(std::ranges::count(arrived, 10U) == ports - dead);
  CHECK(injector.injected() == static_cast<std::uint64_t>(dead) * (10 - after));
  // Another host's packets have paths of their own, which die later.
  const auto before = arrived;
  for (std::uint16_t i = 0; i < ports; ++i) {
    injector.receive(packet, {.address = 2, .port = static_cast<std::uint16_t>(first + i), .likely_id = 2}, 0, deliver);
  }
  for (std::uint16_t i = 0; i < ports; ++i) REQUIRE(arrived[i] == before[i] + 1);
}

TEST_CASE("equal seeds give equal faults, different seeds different ones") {
  const Faults faults{.drop = 0.1, .duplicate = 0.1, .reorder = 0.1, .corrupt = 0.1, .seed = 42};
  FaultInjector one(faults);
  FaultInjector two(faults);
  Faults otherwise = faults;
  otherwise.seed = 43;
  FaultInjector three(otherwise);
  const auto first = pass(one, 2000);
  CHECK(first == pass(two, 2000));
  CHECK(first != pass(three, 2000));
}

}  // namespace
}  // namespace paralet
