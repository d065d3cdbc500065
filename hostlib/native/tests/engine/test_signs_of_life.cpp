// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "engine/signs_of_life.hpp"

namespace paralet {
namespace {

constexpr Ece kConnectX{.vendor_id = 0x02C9, .options = 0x35, .comp_mask = kSignsOfLife};

Signs with_nic() {
  Signs out;
  Ece remote = kConnectX;
  out.agree(true, remote);
  return out;
}

TEST_CASE("signs are agreed on where both sides offer them, and the NIC sees nothing of it") {
  for (const bool ours : {false, true}) {
    for (const bool theirs : {false, true}) {
      Signs signs;
      Ece remote = kConnectX;
      remote.comp_mask = 6 | (theirs ? kSignsOfLife : 0);
      signs.agree(ours, remote);
      CHECK(signs.agreed == (ours && theirs));
      CHECK(signs.acknowledges_alone == (ours && theirs));
      CHECK(remote.comp_mask == 6);
    }
  }
  Ece own{.vendor_id = 1, .options = 2, .comp_mask = kSignsOfLife | 6};
  offer_signs(own, false);
  CHECK(own.comp_mask == 6);
  offer_signs(own, true);
  CHECK(own.comp_mask == (kSignsOfLife | 6));
}

TEST_CASE("nobody asks a peer whose engine acknowledges itself") {
  Signs signs;
  Ece soft{.vendor_id = kSoftVendor, .options = 1, .comp_mask = kSignsOfLife};
  signs.agree(true, soft);
  CHECK(signs.agreed);
  CHECK_FALSE(signs.quiet(100 * kSecond, kSecond));
}

TEST_CASE("a peer without a sign is asked four times, and then given up") {
  Signs signs = with_nic();
  const Nanos retry_time = 4 * kSecond;
  Nanos t = 100 * kSecond;
  signs.heard(t);
  for (int asks = 0; asks < 4; ++asks) {
    CHECK_FALSE(signs.quiet(t + kSecond - 1, retry_time));
    t += kSecond;
    REQUIRE(signs.quiet(t, retry_time));
    CHECK(signs.next(t, true) == Signs::Due::kAsk);
  }
  CHECK_FALSE(signs.quiet(t + kSecond - 1, retry_time));
  CHECK(signs.next(t + kSecond, true) == Signs::Due::kGiveUp);
}

TEST_CASE("a sign begins the asks anew, and so does a time in which nobody waits") {
  Signs signs = with_nic();
  Nanos t = 100 * kSecond;
  for (const bool heard : {true, false}) {
    for (int i = 0; i < 10; ++i) {
      for (int asks = 0; asks < 4; ++asks) CHECK(signs.next(t += kSecond, true) == Signs::Due::kAsk);
      if (heard) {
        signs.heard(t);
      } else {
        CHECK(signs.next(t += kSecond, false) == Signs::Due::kNothing);
      }
    }
  }
}

TEST_CASE("a long stop of this process counts as one ask") {
  Signs signs = with_nic();
  signs.heard(kSecond);
  CHECK(signs.next(2 * kSecond, true) == Signs::Due::kAsk);
  CHECK(signs.next(1000 * kSecond, true) == Signs::Due::kAsk);
}

}  // namespace
}  // namespace paralet
