// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <set>

#include "backend/memory_table.hpp"
#include "bytes.hpp"

namespace paralet {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST_CASE("a range resolves to its place, and only within its region") {
  MemoryTable table;
  test::Bytes memory(1000);
  const std::uint32_t rkey = table.add(memory.data(), memory.size());
  CHECK(table.resolve(rkey, 0, 1000) == memory.data());
  CHECK(table.resolve(rkey, 999, 1) == memory.data() + 999);
  CHECK(table.resolve(rkey, 1000, 0) == memory.data() + 1000);
  CHECK(table.resolve(rkey, 0, 1001) == nullptr);
  CHECK(table.resolve(rkey, 999, 2) == nullptr);
  CHECK(table.resolve(rkey, 1000, 1) == nullptr);
  CHECK(table.resolve(rkey, 1001, 0) == nullptr);
}

TEST_CASE("offset plus length may not overflow") {
  MemoryTable table;
  test::Bytes memory(1000);
  const std::uint32_t rkey = table.add(memory.data(), memory.size());
  CHECK(table.resolve(rkey, kMax, 1) == nullptr);
  CHECK(table.resolve(rkey, 1, kMax) == nullptr);
  CHECK(table.resolve(rkey, kMax, kMax) == nullptr);
  CHECK(table.resolve(rkey, kMax - 999, 1000) == nullptr);
}

TEST_CASE("regions are added and removed by their keys") {
  MemoryTable table;
  test::Bytes memory(64);
  std::set<std::uint32_t> keys;
  for (std::size_t i = 0; i < 64; ++i) keys.insert(table.add(memory.data() + i, 64 - i));
  CHECK(keys.size() == 64);
  CHECK_FALSE(keys.contains(0));
  CHECK(table.size() == 64);
  const std::uint32_t gone = *keys.begin();
  CHECK(table.remove(gone));
  CHECK_FALSE(table.remove(gone));
  CHECK(table.resolve(gone, 0, 1) == nullptr);
  CHECK(table.resolve(*keys.rbegin(), 0, 1) != nullptr);
  CHECK(table.size() == 63);
}

TEST_CASE("keys are unpredictable") {
  // 256 draws of 32 bits: equal high bits throughout would be one chance in 2^255 for each bit.
  MemoryTable table;
  std::byte byte{};
  std::uint32_t ones = 0;
  std::uint32_t zeros = 0;
  for (int i = 0; i < 256; ++i) {
    const std::uint32_t rkey = table.add(&byte, 1);
    ones |= rkey;
    zeros |= ~rkey;
  }
  CHECK(ones == 0xFFFFFFFF);
  CHECK(zeros == 0xFFFFFFFF);
}

TEST_CASE("a retired region does not resolve, and stays known until it is removed") {
  MemoryTable table;
  std::array<std::byte, 64> memory{};
  const std::uint32_t rkey = table.add(memory.data(), memory.size());
  CHECK(!table.retired(rkey));
  table.retire(rkey);
  CHECK(table.retired(rkey));
  CHECK(table.resolve(rkey, 0, 1) == nullptr);
  CHECK(table.remove(rkey));
  CHECK(!table.retired(rkey));
  table.retire(rkey);  // an unknown key has no effect
  CHECK(!table.retired(rkey));
}

}  // namespace
}  // namespace paralet
