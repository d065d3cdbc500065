// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace paralet {

/// A value that one thread at a time publishes and any thread reads. Neither waits for a lock: a reader that meets a
/// change reads again (a sequence lock).
template <typename T>
class Snapshot {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Snapshot(const T& value = {}) { publish(value); }

  void publish(const T& value) {
    std::array<std::uint64_t, kWords> words{};
    std::memcpy(words.data(), &value, sizeof value);
    const std::uint64_t before = sequence_.load(std::memory_order_relaxed);
    sequence_.store(before + 1, std::memory_order_relaxed);
    // A reader that sees one of these words also sees the odd number before it.
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    sequence_.store(before + 2, std::memory_order_release);
  }

  [[nodiscard]] T read() const {
    std::array<std::uint64_t, kWords> words;
    for (;;) {
      const std::uint64_t before = sequence_.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && sequence_.load(std::memory_order_relaxed) == before) break;
    }
    T out;
    std::memcpy(static_cast<void*>(&out), words.data(), sizeof out);
    return out;
  }

 private:
  static constexpr std::size_t kWords = (sizeof(T) + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);

  std::atomic<std::uint64_t> sequence_{0};  ///< odd while a value is being written
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};

}  // namespace paralet
