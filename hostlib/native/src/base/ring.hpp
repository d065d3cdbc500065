// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace paralet {

/// A queue in one block of memory that doubles when full and shrinks only in release(): no allocation in steady state.
template <typename T>
class Ring {
 public:
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  const T& operator[](std::size_t i) const { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  T& front() { return (*this)[0]; }
  T& back() { return (*this)[size_ - 1]; }

  void push_back(T value) {
    if (size_ == slots_.size()) grow();
    ++size_;
    back() = std::move(value);
  }
  void pop_front() {
    front() = T{};
    head_ = (head_ + 1) & (slots_.size() - 1);
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
    std::vector<T> larger(slots_.empty() ? 4 : 2 * slots_.size());
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    head_ = 0;
  }
  std::vector<T> slots_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace paralet
