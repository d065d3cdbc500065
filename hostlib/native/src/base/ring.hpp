// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace paralet {

/// A queue in one block of memory that doubles when full and shrinks only in release(): no allocation in steady state.
template <typename T>
class Ring {
 public:
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return slots_[(head_ + i) & (capacity_ - 1)]; }
  const T& operator[](std::size_t i) const { return slots_[(head_ + i) & (capacity_ - 1)]; }
  T& front() { return (*this)[0]; }
  T& back() { return (*this)[size_ - 1]; }

  void push_back(T value) {
    if (size_ == capacity_) grow();
    ++size_;
    back() = std::move(value);
  }
  void pop_front() {
    front() = T{};
    head_ = (head_ + 1) & (capacity_ - 1);
    --size_;
  }
  void pop_back() {
    back() = T{};
    --size_;
  }
  /// Removes element i. Costs time proportional to i: the elements before it move.
  void erase(std::size_t i) {
    for (; i > 0; --i) (*this)[i] = std::move((*this)[i - 1]);
    pop_front();
  }
  void clear() {
    while (!empty()) pop_front();
  }
  /// Frees the memory of an empty queue.
  void release() {
    if (empty()) *this = {};
  }

 private:
  void grow() {
    const std::uint32_t doubled = capacity_ == 0 ? 4 : 2 * capacity_;
    auto larger = std::make_unique<T[]>(doubled);
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    capacity_ = doubled;
    head_ = 0;
  }

  // 24 bytes in all: every peer, QP and connection has queues, and most of them are idle.
  std::unique_ptr<T[]> slots_;
  std::uint32_t capacity_ = 0;  ///< a power of two, or 0
  std::uint32_t head_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace paralet
