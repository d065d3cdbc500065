// SPDX-License-Identifier: Apache-2.0
// The memory of the device, which is the host's: what is allocated or registered, and where an address belongs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>

namespace paralet::cpu_device {

enum class MemoryKind : std::uint8_t {
  device,      // cudaMalloc and its kin
  pinned,      // cudaHostAlloc
  registered,  // the program's own, after cudaHostRegister
};

struct Allocation {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
};

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Memory of at least one byte, aligned to a page. Null where there is none.
  void* allocate(std::size_t bytes, MemoryKind kind);
  // Takes an allocation of this kind out of the table; its memory lives until release(). Nothing where there is none.
  std::optional<Allocation> remove(void* base, MemoryKind kind);
  static void release(const Allocation& allocation);

  // False where the range overlaps another.
  bool add_registered(void* base, std::size_t bytes);

  // The allocation that an address lies in.
  std::optional<Allocation> find(const void* address) const;
  std::size_t size() const;

 private:
  bool insert(const Allocation& allocation);

  mutable std::shared_mutex mutex_;
  std::map<std::uintptr_t, Allocation> by_base_;
};

}  // namespace paralet::cpu_device
