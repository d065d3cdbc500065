// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "soft/marked_share.hpp"

namespace paralet {
namespace {

constexpr Nanos kRoundTrip = 100 * kMicrosecond;

TEST_CASE("the share of marked packets moves by a sixteenth per round trip, from 1") {
  MarkedShare share;
  CHECK(share.value() == 1);
  Nanos now = kSecond;
  share.add(now, kRoundTrip, 4, 0);
  CHECK(share.value() == doctest::Approx(15.0 / 16));
  // The packets of one round trip count together.
  for (int i = 1; i <= 8; ++i) share.add(now + i, kRoundTrip, 1, i % 2);
  CHECK(share.value() == doctest::Approx(15.0 / 16));
  share.add(now += kRoundTrip, kRoundTrip, 2, 1);
  CHECK(share.value() == doctest::Approx(15.0 / 16 + (0.5 - 15.0 / 16) / 16));
}

TEST_CASE("the share follows a steady one and forgets an old one") {
  MarkedShare share;
  Nanos now = kSecond;
  for (int i = 0; i < 200; ++i) share.add(now += kRoundTrip, kRoundTrip, 100, 7);
  CHECK(share.value() == doctest::Approx(0.07).epsilon(0.001));
  for (int i = 0; i < 200; ++i) share.add(now += kRoundTrip, kRoundTrip, 100, 0);
  CHECK(share.value() < 1e-5);
}

TEST_CASE("nothing that arrived says nothing") {
  MarkedShare share;
  for (int i = 0; i < 100; ++i) share.add(i * kRoundTrip, kRoundTrip, 0, 0);
  CHECK(share.value() == 1);
}

}  // namespace
}  // namespace paralet
