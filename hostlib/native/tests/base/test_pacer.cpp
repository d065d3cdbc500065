// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "base/pacer.hpp"

namespace paralet {
namespace {

constexpr double kRate = 1e6;  // bytes per second
constexpr std::size_t kPacket = 1000;

TEST_CASE("rate 0 is always ready") {
  Pacer pacer(0, 100);
  CHECK(pacer.unlimited());
  for (int i = 0; i < 100; ++i) {
    CHECK(pacer.ready(0));
    pacer.spend(1 << 30);
  }
}

TEST_CASE("a rate too low for any packet is ready at kNever, not at a time in the past") {
  Pacer pacer(1e-12, 1);
  REQUIRE(pacer.ready(kSecond));
  pacer.spend(kPacket);
  CHECK_FALSE(pacer.ready(2 * kSecond));
  CHECK(pacer.ready_at() == kNever);
}

TEST_CASE("over a long time the rate is exact to one packet") {
  Pacer pacer(kRate, 4 * kPacket);
  Nanos now = kSecond;  // clocks do not start at zero
  const Nanos end = now + 10 * kSecond;
  std::size_t sent = 0;
  while (now < end) {
    if (pacer.ready(now)) {
      pacer.spend(kPacket);
      sent += kPacket;
    } else {
      REQUIRE(pacer.ready_at() > now);
      now = pacer.ready_at();
    }
  }
  CHECK(static_cast<double>(sent) == doctest::Approx(10 * kRate).epsilon(0.002));
}

TEST_CASE("tokens saved while idle are limited by the burst") {
  Pacer pacer(kRate, 4 * kPacket);
  const auto burst = [&](Nanos now) {
    int packets = 0;
    for (; pacer.ready(now); ++packets) pacer.spend(kPacket);
    return packets;
  };
  CHECK(burst(kSecond) == 4);
  CHECK(burst(3600 * kSecond) == 4);
  CHECK(burst(3600 * kSecond) == 0);
}

TEST_CASE("late wake-ups do not lower the rate") {
  Pacer pacer(kRate, 8 * kPacket);
  std::size_t sent = 0;
  for (Nanos now = kSecond; now < 11 * kSecond; now += 5 * kMillisecond) {  // five packets at a time
    while (pacer.ready(now)) {
      pacer.spend(kPacket);
      sent += kPacket;
    }
  }
  CHECK(static_cast<double>(sent) == doctest::Approx(10 * kRate).epsilon(0.002));
}

TEST_CASE("ready_at of an overdrawn bucket is neither early nor much late") {
  Pacer pacer(kRate, kPacket);
  REQUIRE(pacer.ready(kSecond));
  pacer.spend(10 * kPacket);
  const Nanos when = pacer.ready_at();
  CHECK_FALSE(pacer.ready(when - 10 * kMicrosecond));
  CHECK(pacer.ready(when));
}

}  // namespace
}  // namespace paralet
