// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/random.hpp"
#include "engine/flowlet.hpp"

namespace paralet {
namespace {

TEST_CASE("equation 1 gives the quantiles of the standard normal") {
  // Phi^-1 of 1 - 1/N, from tables; m = 1 leaves 1 + the quantile.
  CHECK(slowdown(1, 2) == doctest::Approx(1.0).epsilon(1e-9));
  CHECK(slowdown(1, 40) == doctest::Approx(2.959964).epsilon(1e-6));
  CHECK(slowdown(1, 1000) == doctest::Approx(4.090232).epsilon(1e-6));
  CHECK(slowdown(1, 1e6) == doctest::Approx(5.753424).epsilon(1e-6));
  CHECK(slowdown(1, 1e9) == doctest::Approx(6.997807).epsilon(1e-6));
}

TEST_CASE("equation 1 gives the values of the paper and of its recomputation") {
  CHECK(slowdown(1, 1024) == doctest::Approx(4.10).epsilon(0.002));
  CHECK(slowdown(32, 1024) == doctest::Approx(1.548).epsilon(0.001));
  // Section 5.2: a slowdown of 2 among 10^5 hosts takes m >= 19 (25 is printed), among 10^9 hosts m >= 36.
  CHECK(lanes_for(2.0, 1e5) == 19);
  CHECK(lanes_for(2.0, 1e9) == 36);
}

TEST_CASE("equation 1 falls with m and rises with the number of hosts") {
  for (unsigned m = 1; m < 200; ++m) CHECK(slowdown(m + 1, 1e4) < slowdown(m, 1e4));
  for (double hosts = 2; hosts < 1e9; hosts *= 3) CHECK(slowdown(8, 3 * hosts) > slowdown(8, hosts));
  CHECK(slowdown(8, 1) == 1.0);  // a single host cannot collide
  CHECK(slowdown(8, 1.5) == 1.0);
}

TEST_CASE("lanes_for returns the smallest sufficient m") {
  for (const double target : {1.1, 1.5, 2.0, 3.0, 10.0}) {
    for (const double hosts : {2.0, 16.0, 1000.0, 1e6}) {
      CAPTURE(target);
      CAPTURE(hosts);
      const unsigned m = lanes_for(target, hosts);
      CHECK(m >= 1);
      CHECK(slowdown(m, hosts) <= target + 1e-12);
      if (m > 1) CHECK(slowdown(m - 1, hosts) > target);
    }
  }
}

TEST_CASE("lanes_for does not overflow for targets close to 1") {
  CHECK(lanes_for(1.0 + 1e-9, 1e9) == std::numeric_limits<unsigned>::max());
}

TEST_CASE("S is 4 BDP / m in whole packets, at least one") {
  CHECK(flowlet_bytes(1'000'000, 8, 4096) == 503'808);  // 500,000 rounded up to 123 packets
  CHECK(flowlet_bytes(4096 * 8, 8, 4096) == 4 * 4096);
  CHECK(flowlet_bytes(4096 * 8 + 1, 8, 4096) == 5 * 4096);
  CHECK(flowlet_bytes(0, 8, 1024) == 1024);
  CHECK(flowlet_bytes(100, 1024, 256) == 256);
}

TEST_CASE("flowlets cover a message exactly, once and in order") {
  SplitMix64 random(11);
  constexpr std::array<std::uint32_t, 5> kMtus{256, 512, 1024, 2048, 4096};
  for (int i = 0; i < 20'000; ++i) {
    const std::uint32_t mtu = kMtus[random.below(kMtus.size())];
    // From bytes to terabytes, log-uniform.
    const auto message = static_cast<std::uint64_t>(std::pow(2.0, 42.0 * random.uniform())) - 1;
    const auto size = static_cast<std::uint64_t>(std::pow(2.0, 30.0 * random.uniform()));
    CAPTURE(message);
    CAPTURE(size);
    CAPTURE(mtu);
    const Flowlets flowlets(message, size, mtu);
    REQUIRE(flowlets.count >= 1);
    REQUIRE(flowlets.count <= Flowlets::kMaxCount);
    REQUIRE(flowlets.size_bytes % mtu == 0);
    REQUIRE(flowlets.size_bytes >= size);
    // All flowlets but the last have full size, so offsets leave no gap and no overlap; the last ends with the message.
    const std::uint32_t last = flowlets.count - 1;
    REQUIRE(flowlets.offset(last) + flowlets.length(last) == message);
    REQUIRE(flowlets.length(last) <= flowlets.size_bytes);
    REQUIRE((message == 0 || flowlets.length(last) > 0));
    if (last > 0) REQUIRE(flowlets.length(random.below(last)) == flowlets.size_bytes);
  }
}

TEST_CASE("S is the option, else 4 BDP / m with the line rate or the port's, else 2 MiB") {
  const FlowletRule port{.port_rate_bps = 100e9, .rtt = 10 * kMicrosecond, .lanes = 8, .path_mtu = 4096};
  const auto with = [&](auto change) {
    FlowletRule rule = port;
    change(rule);
    return flowlet_size(rule);
  };
  constexpr std::uint64_t kUncut = 2 * 1024 * 1024;
  CHECK(flowlet_size(port) == 65536);  // 4 * 125,000 bytes / 8, in whole packets
  CHECK(with([](FlowletRule& rule) { rule.lanes = 32; }) == 16384);
  CHECK(with([](FlowletRule& rule) { rule.lanes = 1024; }) == 16384);
  CHECK(with([](FlowletRule& rule) { rule.rtt = kSecond; }) == kUncut);
  CHECK(with([](FlowletRule& rule) { rule.rtt = 0; }) == kUncut);
  CHECK(with([](FlowletRule& rule) { rule.port_rate_bps = 0; }) == kUncut);
  CHECK(with([](FlowletRule& rule) { rule.line_rate_bps = 10e9; }) == 8192);  // not bounded: it was asked for
  CHECK(with([](FlowletRule& rule) { rule.line_rate_bps = 100e9, rule.rtt = kSecond; }) == 6'250'000'384);
  CHECK(with([](FlowletRule& rule) { rule.line_rate_bps = 10e9, rule.rtt = 0; }) == 626'688);  // 1 ms is assumed
  CHECK(with([](FlowletRule& rule) { rule.bytes = 5000, rule.line_rate_bps = 10e9; }) == 5000);
  CHECK(with([](FlowletRule& rule) { rule.bytes = 0; }) == 1);
}

TEST_CASE("with several shards and no known rate every shard gets a part, of 128 KiB at least") {
  const auto size = [](unsigned shards, std::uint64_t bytes) {
    return flowlet_size({.lanes = 8, .shards = shards, .message_bytes = bytes, .path_mtu = 4096});
  };
  constexpr std::uint64_t kKiB = 1024;
  CHECK(size(1, 1024 * kKiB) == 2048 * kKiB);
  CHECK(size(2, 1024 * kKiB) == 512 * kKiB);
  CHECK(size(4, 1024 * kKiB) == 256 * kKiB);
  CHECK(size(2, 1024 * kKiB + 1) == 512 * kKiB + 1);
  CHECK(size(4, 300 * kKiB) == 128 * kKiB);
  CHECK(size(2, 0) == 128 * kKiB);
  CHECK(size(2, std::uint64_t{1} << 40) == 2048 * kKiB);
  CHECK(flowlet_size({.line_rate_bps = 10e9, .shards = 2, .message_bytes = 1}) ==
        flowlet_size({.line_rate_bps = 10e9}));
}

TEST_CASE("the number of flowlets fits in 16 bits") {
  CHECK(Flowlets(65535ULL * 256, 256, 256).count == 65535);
  const Flowlets beyond(65535ULL * 256 + 1, 256, 256);
  CHECK(beyond.count <= 65535);
  CHECK(beyond.size_bytes == 512);
  CHECK(Flowlets(0, 4096, 4096).count == 1);
  CHECK(Flowlets(0, 4096, 4096).length(0) == 0);
  CHECK(Flowlets(1, 1, 4096).size_bytes == 4096);
}

TEST_CASE("no flowlet exceeds the longest RDMA WRITE, whatever S is") {
  for (const std::uint64_t size : {std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 40,
                                   std::numeric_limits<std::uint64_t>::max()}) {
    CAPTURE(size);
    const Flowlets flowlets(std::uint64_t{5} << 32, size, 4096);
    CHECK(flowlets.size_bytes <= Flowlets::kMaxSize);
    CHECK(flowlets.count == 10);
    CHECK(flowlets.offset(9) + flowlets.length(9) == std::uint64_t{5} << 32);
  }
}

}  // namespace
}  // namespace paralet
