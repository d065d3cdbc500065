// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "bytes.hpp"
#include "engine/handshake.hpp"
#include "engine/send_payloads.hpp"

namespace paralet::handshake {
namespace {

using test::Bytes;
using test::to_hex;

TEST_CASE("between fused devices an advertisement has 52 bytes, with an rkey for each member") {
  const Advertisement advertisement{
      .connection = 1, .sequence = 2, .tag = 3, .slot = 4, .rkeys = {5, 6, 7, 8}, .address = 9, .length = 10};
  const auto bytes = encode(advertisement, true);
  const auto decoded = decode_advertisement(bytes);
  REQUIRE(decoded);
  CHECK(decoded->rkeys == advertisement.rkeys);
  CHECK(decoded->length == 10);
  CHECK_FALSE(decode_advertisement(std::span(bytes).first(kAdvertisementBytes)));
  auto other = bytes;
  other[0] = std::byte{1};
  CHECK_FALSE(decode_advertisement(other));
}

TEST_CASE("invalid handles are refused") {
  const auto bytes = encode(Handle{});
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK_FALSE(decode_handle(std::span(bytes).first(length)));
  }
  Bytes longer(bytes.begin(), bytes.end());
  longer.push_back(std::byte{0});
  CHECK_FALSE(decode_handle(longer));
  for (std::size_t i = 0; i < 6; ++i) {  // magic and version
    auto changed = bytes;
    changed[i] ^= std::byte{1};
    CHECK_FALSE(decode_handle(changed));
  }
}

TEST_CASE("advertisements have 40 bytes and decode to the same advertisement") {
  const Advertisement advertisement{.connection = 0x01020304,
                                    .sequence = 0x05060708,
                                    .tag = 0x090A0B0C,
                                    .slot = 0x0D0E,
                                    .rkeys = {0x0F101112},
                                    .eager = 0x292A2B2C,
                                    .address = 0x1314151617181920,
                                    .length = 0x2122232425262728};
  const auto all = encode(advertisement, false);
  const std::span<const std::byte> bytes(all.data(), kAdvertisementBytes);
  CHECK(to_hex(bytes) ==
        "0101"
        "0d0e"
        "01020304"
        "05060708"
        "090a0b0c"
        "0f101112"
        "292a2b2c"
        "1314151617181920"
        "2122232425262728");
  const auto decoded = decode_advertisement(bytes);
  REQUIRE(decoded);
  const auto again = encode(*decoded, false);
  CHECK(to_hex(std::span(again).first(kAdvertisementBytes)) == to_hex(bytes));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK_FALSE(decode_advertisement(std::span(bytes).first(length)));
  }
  Bytes other(bytes.begin(), bytes.end());
  other[0] = std::byte{2};
  CHECK_FALSE(decode_advertisement(other));
  other.assign(bytes.begin(), bytes.end());
  other[1] = std::byte{2};
  CHECK_FALSE(decode_advertisement(other));
}

TEST_CASE("the end of a flowlet has 12 bytes and decodes to the same values") {
  const auto bytes = encode(FlowletEnd{.slot = 0x0D0E, .count = 0x0102, .bytes = 0x21222324});
  CHECK(to_hex(bytes) ==
        "0201"
        "0d0e"
        "0102"
        "0000"
        "21222324");
  const auto decoded = decode_flowlet_end(bytes);
  REQUIRE(decoded);
  CHECK(to_hex(encode(*decoded)) == to_hex(bytes));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK_FALSE(decode_flowlet_end(std::span(bytes).first(length)));
  }
  auto other = bytes;
  other[0] = std::byte{1};
  CHECK_FALSE(decode_flowlet_end(other));
  other = bytes;
  other[1] = std::byte{2};
  CHECK_FALSE(decode_flowlet_end(other));
}

/// Items of SENDs, which have a fixed length.
template <typename Decode>
void check_item(std::span<const std::byte> bytes, Decode decode, bool more_follows = false) {
  const auto decoded = decode(bytes);
  REQUIRE(decoded);
  CHECK(to_hex(encode(*decoded)) == to_hex(bytes));
  for (std::size_t length = 0; length < bytes.size(); ++length) CHECK_FALSE(decode(bytes.first(length)));
  for (const std::size_t at : {0U, 1U, 2U, 3U}) {
    Bytes other(bytes.begin(), bytes.end());
    other[at] ^= std::byte{0x40};
    CHECK_FALSE(decode(std::span<const std::byte>(other)));
  }
  Bytes longer(bytes.begin(), bytes.end());
  longer.emplace_back();
  CHECK(decode(std::span<const std::byte>(longer)).has_value() == more_follows);
}

TEST_CASE("eager messages, asks and credits have the bytes that docs/protocol.md describes") {
  const auto message =
      encode(EagerMessage{.connection = 0x01020304, .number = 0x05060708, .advertised = 0x090A0B0C, .tag = 0x0D0E0F10});
  CHECK(to_hex(message) ==
        "0401"
        "0000"
        "01020304"
        "05060708"
        "090a0b0c"
        "0d0e0f10");
  check_item(message, decode_eager_message, true);
  const auto ask = encode(Ask{.connection = 0x01020304, .number = 0x05060708});
  CHECK(to_hex(ask) ==
        "0501"
        "0000"
        "01020304"
        "05060708");
  check_item(ask, decode_ask);
  const auto credit =
      encode(EagerCredit{.connection = 0x01020304, .taken = 0x05060708, .done = 0x090A0B0C, .advertised = 0x0D0E0F10});
  CHECK(to_hex(credit) ==
        "0601"
        "0000"
        "01020304"
        "05060708"
        "090a0b0c"
        "0d0e0f10");
  check_item(credit, decode_eager_credit);
}

TEST_CASE("immediate data holds slot and number of flowlets") {
  CHECK(immediate(0xABCD, 0x0102) == 0xABCD0102);
  CHECK(immediate(0, 65535) == 0x0000FFFF);
}

}  // namespace
}  // namespace paralet::handshake
