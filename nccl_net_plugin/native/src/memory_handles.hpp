// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/device.hpp"

namespace paralet::plugin {

/// Memory that NCCL has registered. The registration belongs to the device, not to the comm that made it.
struct Memory {
  std::shared_ptr<Device> device;
  std::byte* base = nullptr;
  std::size_t length = 0;
  std::uint32_t rkey = 0;
  bool on_device = false;  ///< GPU memory
  /// The same memory registered with other devices of the engine on this NIC (Core::rkey_for).
  mutable std::vector<std::pair<std::shared_ptr<Device>, std::uint32_t>> shared;

  [[nodiscard]] bool holds(const void* data, std::size_t bytes) const {
    if (bytes == 0) return true;
    const auto offset = reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(base);
    return offset <= length && bytes <= length - offset;
  }
};

/// The `mhandle`s given to NCCL. A handle is no pointer: it names a slot and how often the slot has been used, so that
/// a handle that was deregistered, or is none, is found out without touching memory that it might point to. Any
/// thread.
class MemoryHandles {
 public:
  MemoryHandles();
  /// Throws std::bad_alloc when 4 million regions are registered.
  void* add(Memory memory);
  /// The region of a handle; nullptr when it names none. It stays valid until the handle is removed.
  [[nodiscard]] const Memory* find(const void* handle) const noexcept;
  /// The rkey of a region with another device, which registers it on first use. Throws DeviceError.
  std::uint32_t share(const Memory& memory, const std::shared_ptr<Device>& device);
  /// Ends a handle and returns its region; nullopt when it names none.
  std::optional<Memory> remove(const void* handle);

 private:
  static constexpr std::size_t kChunk = 1024;
  static constexpr std::size_t kChunks = 4096;
  struct Slot {
    std::atomic<std::uint32_t> uses{0};  ///< odd while the slot holds a region
    Memory memory;
  };
  using Chunk = std::array<Slot, kChunk>;
  [[nodiscard]] Slot* slot_of(const void* handle) const noexcept;

  std::mutex mutex_;                         ///< of all but find
  std::vector<std::atomic<Chunk*>> chunks_;  ///< filled from the front; find reads them without the mutex
  std::vector<std::unique_ptr<Chunk>> owned_;
  std::vector<std::uint32_t> free_;
};

}  // namespace paralet::plugin
