// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <limits>

#include "memory.hpp"

namespace paralet::cpu_device {
namespace {

TEST_CASE("an address belongs to the allocation that it lies in") {
  Memory memory;
  auto* base = static_cast<std::byte*>(memory.allocate(100, MemoryKind::device));
  REQUIRE(base != nullptr);
  CHECK(memory.find(base)->base == base);
  CHECK(memory.find(base + 99)->bytes == 100);
  CHECK_FALSE(memory.find(base + 100));
  CHECK_FALSE(memory.find(base - 1));
  const auto removed = memory.remove(base, MemoryKind::device);
  REQUIRE(removed);
  CHECK_FALSE(memory.find(base));
  Memory::release(*removed);
}

TEST_CASE("only the start of an allocation of the same kind is removed") {
  Memory memory;
  auto* base = static_cast<std::byte*>(memory.allocate(10, MemoryKind::pinned));
  CHECK_FALSE(memory.remove(base, MemoryKind::device));
  CHECK_FALSE(memory.remove(base + 1, MemoryKind::pinned));
  const auto removed = memory.remove(base, MemoryKind::pinned);
  REQUIRE(removed);
  CHECK_FALSE(memory.remove(base, MemoryKind::pinned));
  Memory::release(*removed);
}

TEST_CASE("registered ranges do not overlap") {
  Memory memory;
  std::array<std::byte, 64> own{};
  CHECK(memory.add_registered(&own[16], 16));
  CHECK_FALSE(memory.add_registered(&own[16], 1));
  CHECK_FALSE(memory.add_registered(&own[8], 16));
  CHECK_FALSE(memory.add_registered(&own[31], 16));
  CHECK(memory.add_registered(&own[32], 16));
  CHECK(memory.add_registered(&own[0], 16));
  CHECK(memory.size() == 3);
}

TEST_CASE("too much memory is none") {
  Memory memory;
  CHECK(memory.allocate(std::numeric_limits<std::size_t>::max(), MemoryKind::device) == nullptr);
  CHECK(memory.size() == 0);
}

}  // namespace
}  // namespace paralet::cpu_device
