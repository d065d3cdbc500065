// SPDX-License-Identifier: Apache-2.0
// Registered memory of one protection domain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "backend/backend.hpp"
#include "verbs/verbs_library.hpp"

namespace paralet::verbs {

/// Payloads up to this size are copied into the work request, so their memory is not registered.
inline constexpr std::uint32_t kInlineBytes = 64;

/// What the NIC needs to read or write local memory. `temporary` is a registration for this one request.
struct LocalMemory {
  ibv_sge sge{};
  MrHandle temporary;
};

class Memory {
 public:
  /// `device` is the name that errors mention, `page_bytes` the size of a memory page.
  Memory(ibv_pd* pd, std::string device, std::uint64_t page_bytes)
      : library_(VerbsLibrary::load()), pd_(pd), device_(std::move(device)), page_mask_(page_bytes - 1) {}

  // Each returns the key of the region, 0 where nothing has to be registered, and throws DeviceError.
  /// Peers may write to it.
  std::uint32_t register_target(std::byte* base, std::uint64_t length);
  /// Only sends read it.
  std::uint32_t register_source(const std::byte* base, std::uint64_t length);
  /// Only READs of this device write to it.
  std::uint32_t register_sink(std::byte* base, std::uint64_t length);
  /// Memory of another device (Backend::register_device_memory).
  std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf);
  void deregister(std::uint32_t key) { regions_.erase(key); }

  /// Address on the wire of the first byte of a region, 0 where there is no such region.
  [[nodiscard]] std::uint64_t remote_address(std::uint32_t rkey) const;
  /// Whether the payload lies in another device's memory, which no processor may touch.
  [[nodiscard]] bool on_device(const WorkRequest& request) const;
  /// The local memory of a request: in the region that the request names, else registered for this request.
  [[nodiscard]] LocalMemory local(const WorkRequest& request) const;
  /// Registers memory for one request, which fails when that cannot be done.
  [[nodiscard]] LocalMemory temporary(const std::byte* data, std::uint32_t length, int access) const;

 private:
  struct Region {
    MrHandle mr;
    const std::byte* base = nullptr;  ///< of another device's memory only a name
    std::uint64_t length = 0;
    std::uint64_t iova = 0;
    bool on_device = false;
  };
  std::uint32_t add(Region region);

  const VerbsLibrary& library_;
  ibv_pd* pd_;
  std::string device_;
  std::uint64_t page_mask_;
  std::byte nothing_{};  ///< stands for a region of no bytes, which cannot be registered
  std::map<std::uint32_t, Region> regions_;
};

}  // namespace paralet::verbs
