// SPDX-License-Identifier: Apache-2.0
#include "ll_lines.hpp"

#include <atomic>
#include <cstring>

namespace paralet::cpu_device::ll {
namespace {

constexpr std::size_t word_data_bytes = 4;

std::uint64_t load(const std::byte* slot, std::size_t word) {
  // atomic_ref of a const object comes with C++26.
  auto* words = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(slot));
  return std::atomic_ref(words[word]).load(std::memory_order_acquire);
}

void store(std::byte* slot, std::size_t word, std::uint32_t data, std::uint32_t flag) {
  auto* words = reinterpret_cast<std::uint64_t*>(slot);
  std::atomic_ref(words[word]).store(std::uint64_t{flag} << 32U | data, std::memory_order_release);
}

}  // namespace

std::size_t count_ready(const std::byte* slot, std::size_t from, std::size_t lines, std::uint32_t flag) {
  std::size_t line = from;
  while (line < lines && load(slot, 2 * line) >> 32U == flag && load(slot, 2 * line + 1) >> 32U == flag) ++line;
  return line;
}

void read(const std::byte* slot, std::byte* data, std::size_t bytes) {
  const std::size_t words = bytes / word_data_bytes;
  for (std::size_t word = 0; word < words; ++word) {
    const auto value = static_cast<std::uint32_t>(load(slot, word));
    std::memcpy(data + word * word_data_bytes, &value, word_data_bytes);
  }
  if (const std::size_t rest = bytes % word_data_bytes; rest != 0) {
    const auto value = static_cast<std::uint32_t>(load(slot, words));
    std::memcpy(data + words * word_data_bytes, &value, rest);
  }
}

void write(std::byte* slot, const std::byte* data, std::size_t bytes, std::uint32_t flag) {
  const std::size_t words = bytes / word_data_bytes;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint32_t value = 0;
    std::memcpy(&value, data + word * word_data_bytes, word_data_bytes);
    store(slot, word, value, flag);
  }
  if (bytes % word_data_bytes != 0) {
    std::uint32_t value = 0;
    std::memcpy(&value, data + words * word_data_bytes, bytes % word_data_bytes);
    store(slot, words, value, flag);
  }
  for (std::size_t word = (bytes + word_data_bytes - 1) / word_data_bytes; word < 2 * lines_for(bytes); ++word) {
    store(slot, word, 0, flag);
  }
}

}  // namespace paralet::cpu_device::ll
