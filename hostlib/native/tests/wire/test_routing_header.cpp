// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cstddef>

#include "wire/routing_header.hpp"

using namespace paralet;
using namespace paralet::wire;

TEST_CASE("a routing header lists the destination's place and the nodes, last first") {
  const std::array nodes{*parse_address("fd03::1"), *parse_address("fd03::2")};
  const auto header = routing_header(nodes);
  REQUIRE(header.size() == routing_header_bytes(2));
  CHECK(header.size() == 56);
  // RFC 8754, section 2: length without the first 8 bytes, in units of 8; type; segments left; last entry; flags; tag.
  const std::array<unsigned, 8> fixed{0, 6, 4, 2, 2, 0, 0, 0};
  for (std::size_t i = 0; i < fixed.size(); ++i) CHECK(std::to_integer<unsigned>(header[i]) == fixed[i]);
  for (std::size_t i = 8; i < 24; ++i) CHECK(header[i] == std::byte{0});
  CHECK(header[24] == std::byte{0xFD});
  CHECK(header[39] == std::byte{2});
  CHECK(header[55] == std::byte{1});
}

TEST_CASE("a path without nodes has no routing header") { CHECK(routing_header_bytes(0) == 0); }
