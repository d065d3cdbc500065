// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "layout.hpp"

namespace paralet::cpu_device {
namespace {

std::size_t field_count() {
  const std::string_view lines = layout_fields();
  return static_cast<std::size_t>(std::count(lines.begin(), lines.end(), '\n'));
}

TEST_CASE("a layout takes two integers per field, in the order of the list") {
  std::vector<std::uint32_t> values(2 * field_count());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint32_t>(i + 1);
  Layout layout;
  REQUIRE(decode_layout(2, values, layout));
  CHECK(layout.generation == Generation::batches);
  // The first two lines of the list.
  CHECK(layout.comm_rank.first_bit == 1);
  CHECK(layout.comm_rank.bits == 2);
  CHECK(layout.comm_ranks.first_bit == 3);
}

TEST_CASE("a layout of another form is refused") {
  std::vector<std::uint32_t> values(2 * field_count());
  Layout layout;
  CHECK_FALSE(decode_layout(3, values, layout));
  values.pop_back();
  CHECK_FALSE(decode_layout(2, values, layout));
}

TEST_CASE("members are read where the compiler puts them") {
  struct {
    std::uint8_t before;
    std::int32_t number;
    std::uint64_t low : 21, middle : 21, high : 21;
  } object{.before = 1, .number = -7, .low = 0x1abcde, .middle = 0x12345, .high = 0x1fffff};
  CHECK(read_unsigned(&object, {.first_bit = 0, .bits = 8}) == 1);
  CHECK(read_signed(&object, {.first_bit = 32, .bits = 32}) == -7);
  CHECK(read_unsigned(&object, {.first_bit = 64, .bits = 21}) == 0x1abcde);
  CHECK(read_unsigned(&object, {.first_bit = 85, .bits = 21}) == 0x12345);
  CHECK(read_unsigned(&object, {.first_bit = 106, .bits = 21}) == 0x1fffff);
}

}  // namespace
}  // namespace paralet::cpu_device
