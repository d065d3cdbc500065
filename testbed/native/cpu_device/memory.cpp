// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <mutex>

namespace paralet::cpu_device {

namespace {

constexpr std::size_t alignment = 4096;

}  // namespace

void* Memory::allocate(std::size_t bytes, MemoryKind kind) {
  if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - alignment) return nullptr;
  // NCCL imports pinned memory into other places page by page, so no page is shared between allocations.
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  auto* base = static_cast<std::byte*>(std::aligned_alloc(alignment, whole));
  if (base == nullptr) return nullptr;
  insert({.base = base, .bytes = std::max<std::size_t>(bytes, 1), .kind = kind});
  return base;
}

std::optional<Allocation> Memory::remove(void* base, MemoryKind kind) {
  const std::unique_lock lock(mutex_);
  const auto found = by_base_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == by_base_.end() || found->second.kind != kind) return std::nullopt;
  const Allocation allocation = found->second;
  by_base_.erase(found);
  return allocation;
}

void Memory::release(const Allocation& allocation) { std::free(allocation.base); }

bool Memory::add_registered(void* base, std::size_t bytes) {
  return insert({.base = static_cast<std::byte*>(base), .bytes = bytes, .kind = MemoryKind::registered});
}

std::optional<Allocation> Memory::find(const void* address) const {
  const std::shared_lock lock(mutex_);
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  auto after = by_base_.upper_bound(key);
  if (after == by_base_.begin()) return std::nullopt;
  const Allocation& before = std::prev(after)->second;
  return static_cast<const std::byte*>(address) < before.base + before.bytes ? std::optional(before) : std::nullopt;
}

std::size_t Memory::size() const {
  const std::shared_lock lock(mutex_);
  return by_base_.size();
}

bool Memory::insert(const Allocation& allocation) {
  const std::unique_lock lock(mutex_);
  const auto key = reinterpret_cast<std::uintptr_t>(allocation.base);
  const auto after = by_base_.lower_bound(key);
  if (after != by_base_.end() && after->first < key + allocation.bytes) return false;
  if (after != by_base_.begin()) {
    const Allocation& before = std::prev(after)->second;
    if (before.base + before.bytes > allocation.base) return false;
  }
  by_base_.emplace_hint(after, key, allocation);
  return true;
}

}  // namespace paralet::cpu_device
