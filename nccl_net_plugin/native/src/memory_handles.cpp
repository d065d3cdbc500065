// SPDX-License-Identifier: Apache-2.0
#include "memory_handles.hpp"

#include <new>
#include <utility>

namespace paralet::plugin {

// A handle: uses of the slot in the upper 32 bits, number of the slot in the lower. Uses are odd, so no handle is NULL.

MemoryHandles::MemoryHandles() : chunks_(kChunks) {}

MemoryHandles::Slot* MemoryHandles::slot_of(const void* handle) const noexcept {
  const auto number = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(handle));
  if (number / kChunk >= kChunks) return nullptr;
  Chunk* const chunk = chunks_[number / kChunk].load(std::memory_order_acquire);
  return chunk != nullptr ? &(*chunk)[number % kChunk] : nullptr;
}

void* MemoryHandles::add(Memory memory) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    if (owned_.size() == kChunks) throw std::bad_alloc();
    free_.reserve((owned_.size() + 1) * kChunk);  // so that remove does not allocate
    owned_.push_back(std::make_unique<Chunk>());
    chunks_[owned_.size() - 1].store(owned_.back().get(), std::memory_order_release);
    for (std::size_t i = kChunk; i-- > 0;) {
      free_.push_back(static_cast<std::uint32_t>((owned_.size() - 1) * kChunk + i));
    }
  }
  const std::uint32_t number = free_.back();
  free_.pop_back();
  Slot& slot = (*owned_[number / kChunk])[number % kChunk];
  slot.memory = std::move(memory);
  const std::uint64_t uses = slot.uses.load(std::memory_order_relaxed) + 1;
  slot.uses.store(static_cast<std::uint32_t>(uses), std::memory_order_release);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): NCCL's type for a handle is a pointer
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>((uses & UINT32_MAX) << 32 | number));
}

const Memory* MemoryHandles::find(const void* handle) const noexcept {
  const auto uses = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(handle) >> 32);
  const Slot* slot = slot_of(handle);
  const bool live = slot != nullptr && uses % 2 == 1 && slot->uses.load(std::memory_order_acquire) == uses;
  return live ? &slot->memory : nullptr;
}

std::uint32_t MemoryHandles::share(const Memory& memory, const std::shared_ptr<Device>& device) {
  const std::lock_guard lock(mutex_);
  for (const auto& [known, rkey] : memory.shared) {
    if (known == device) return rkey;
  }
  memory.shared.emplace_back(device, 0);
  try {
    return memory.shared.back().second = device->register_memory(memory.base, memory.length);
  } catch (...) {
    memory.shared.pop_back();
    throw;
  }
}

std::optional<Memory> MemoryHandles::remove(const void* handle) {
  const std::lock_guard lock(mutex_);
  if (find(handle) == nullptr) return std::nullopt;
  Slot& slot = *slot_of(handle);
  slot.uses.fetch_add(1, std::memory_order_release);
  free_.push_back(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(handle)));
  return std::exchange(slot.memory, {});
}

}  // namespace paralet::plugin
