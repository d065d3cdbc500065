// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "ll_lines.hpp"

namespace paralet::cpu_device {
namespace {

constexpr std::size_t slot_bytes = 4096;

struct alignas(16) Slot {
  std::byte bytes[slot_bytes];
};

TEST_CASE("data of any length passes through lines, and nothing behind them is written") {
  for (std::size_t size = 0; size <= 100; ++size) {
    Slot slot;
    std::memset(slot.bytes, 0xab, slot_bytes);
    std::vector<std::byte> data(size);
    for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i + 1);
    ll::write(slot.bytes, data.data(), size, 77);
    const std::size_t lines = (size + 7) / 8;
    CHECK(ll::lines_for(size) == lines);
    CHECK(ll::count_ready(slot.bytes, 0, lines, 77) == lines);
    for (std::size_t i = lines * 16; i < slot_bytes; ++i) REQUIRE(slot.bytes[i] == std::byte{0xab});
    std::vector<std::byte> read(size + 1, std::byte{0xcd});
    ll::read(slot.bytes, read.data(), size);
    CHECK(std::equal(data.begin(), data.end(), read.begin()));
    CHECK(read[size] == std::byte{0xcd});
  }
}

TEST_CASE("a line is data, flag, data, flag, as NCCL's proxies read it") {
  Slot slot{};
  const std::uint32_t data[3] = {0x11111111, 0x22222222, 0x33333333};
  ll::write(slot.bytes, reinterpret_cast<const std::byte*>(data), sizeof(data), 5);
  const std::uint32_t expected[8] = {0x11111111, 5, 0x22222222, 5, 0x33333333, 5, 0, 5};
  CHECK(std::memcmp(slot.bytes, expected, sizeof(expected)) == 0);
}

TEST_CASE("a line is ready when both of its flags fit") {
  Slot slot{};
  std::uint32_t words[12] = {1, 9, 2, 9, 3, 9, 4, 8, 5, 9, 6, 9};
  std::memcpy(slot.bytes, words, sizeof(words));
  CHECK(ll::count_ready(slot.bytes, 0, 3, 9) == 1);
  words[7] = 9;
  std::memcpy(slot.bytes, words, sizeof(words));
  CHECK(ll::count_ready(slot.bytes, 1, 3, 9) == 3);
  words[5] = 8;
  std::memcpy(slot.bytes, words, sizeof(words));
  CHECK(ll::count_ready(slot.bytes, 0, 3, 9) == 1);
}

TEST_CASE("flags are the step plus one modulo 2^32, and the 8 steps before the middle and the end of it clean up") {
  CHECK(ll::flag_of(0) == 1);
  CHECK(ll::flag_of(0xffffffffULL) == 0);
  CHECK(ll::flag_of(0x100000000ULL) == 1);
  CHECK_FALSE(ll::is_cleaning_step(0x7ffffff7ULL));
  CHECK(ll::is_cleaning_step(0x7ffffff8ULL));
  CHECK(ll::is_cleaning_step(0x7fffffffULL));
  CHECK_FALSE(ll::is_cleaning_step(0x80000000ULL));
  CHECK(ll::is_cleaning_step(0xfffffffaULL));
}

}  // namespace
}  // namespace paralet::cpu_device
