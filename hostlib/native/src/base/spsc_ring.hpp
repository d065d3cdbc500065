// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace paralet {

/// A queue of fixed room between two threads: one pushes, the other pops, and neither waits. Each end may go from
/// thread to thread, as long as something else orders its users. No allocation after the constructor.
template <typename T>
class SpscRing {
 public:
  /// `room` is a power of two.
  explicit SpscRing(std::size_t room) : mask_(room - 1), slots_(std::make_unique<T[]>(room)) {}

  /// The pushing end. False when the ring is full.
  bool push(T value) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - known_head_ > mask_) {
      known_head_ = head_.load(std::memory_order_acquire);
      if (tail - known_head_ > mask_) return false;
    }
    slots_[tail & mask_] = std::move(value);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }
  /// The popping end. False when the ring is empty.
  bool pop(T& value) {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == known_tail_) {
      known_tail_ = tail_.load(std::memory_order_acquire);
      if (head == known_tail_) return false;
    }
    value = std::move(slots_[head & mask_]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }
  /// Any thread; what another one does meanwhile may be missed.
  [[nodiscard]] bool empty() const {
    return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire);
  }

 private:
  static constexpr std::size_t kCacheLine = 64;

  const std::size_t mask_;
  const std::unique_ptr<T[]> slots_;
  // Each end has a cache line of its own, and looks at the other's only when the ring seems full or empty.
  alignas(kCacheLine) std::atomic<std::size_t> tail_{0};
  std::size_t known_head_ = 0;
  alignas(kCacheLine) std::atomic<std::size_t> head_{0};
  std::size_t known_tail_ = 0;
};

}  // namespace paralet
