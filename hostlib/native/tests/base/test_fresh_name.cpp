// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "base/fresh_name.hpp"

namespace paralet {
namespace {

TEST_CASE("fresh names wrap around, are never 0 and never in use") {
  const std::map<std::uint32_t, int> connections{{0xFFFFFFFF, 1}, {2, 1}};
  const std::set<std::uint32_t> listeners{1, 4};
  std::uint32_t next = 0xFFFFFFFE;
  CHECK(fresh_name(next, connections, listeners) == 0xFFFFFFFE);
  CHECK(fresh_name(next, connections, listeners) == 3);
  CHECK(fresh_name(next, connections, listeners) == 5);
  CHECK(fresh_name(next) == 6);
}

}  // namespace
}  // namespace paralet
