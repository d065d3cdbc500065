// SPDX-License-Identifier: Apache-2.0
#include "backend/memory_table.hpp"

#include "base/random.hpp"

namespace paralet {

std::uint32_t MemoryTable::add(std::byte* base, std::uint64_t length) {
  for (;;) {
    const std::uint32_t rkey = random_u32();
    if (rkey != 0 && regions_.try_emplace(rkey, Region{base, length, false}).second) return rkey;
  }
}

void MemoryTable::add_as(std::uint32_t rkey, std::byte* base, std::uint64_t length) {
  regions_.insert_or_assign(rkey, Region{base, length, false});
}

void MemoryTable::retire(std::uint32_t rkey) {
  if (const auto found = regions_.find(rkey); found != regions_.end()) found->second.retired = true;
}

bool MemoryTable::retired(std::uint32_t rkey) const {
  const auto found = regions_.find(rkey);
  return found != regions_.end() && found->second.retired;
}

std::byte* MemoryTable::resolve(std::uint32_t rkey, std::uint64_t offset, std::uint64_t length) const {
  const auto found = regions_.find(rkey);
  if (found == regions_.end()) return nullptr;
  const Region& region = found->second;
  if (region.retired || offset > region.length || length > region.length - offset) return nullptr;
  return region.base + offset;
}

}  // namespace paralet
