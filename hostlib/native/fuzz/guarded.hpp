// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sanitizer/asan_interface.h>

#include <cstddef>
#include <vector>

namespace paralet::fuzz {

/// Memory of which only open windows may be accessed: AddressSanitizer poisons the rest.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : memory_(bytes) { close(0, bytes); }
  ~Guarded() { open(0, memory_.size()); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::byte* at(std::size_t offset) { return memory_.data() + offset; }
  std::byte* open(std::size_t offset, std::size_t bytes) {
    __asan_unpoison_memory_region(at(offset), bytes);
    return at(offset);
  }
  void close(std::size_t offset, std::size_t bytes) { __asan_poison_memory_region(at(offset), bytes); }

 private:
  std::vector<std::byte> memory_;
};

}  // namespace paralet::fuzz
