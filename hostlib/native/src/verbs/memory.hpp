// SPDX-License-Identifier: Apache-2.0
// Registered memory of one protection domain. Any thread may register and deregister.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "backend/backend.hpp"
#include "base/mutex.hpp"
#include "verbs/verbs_library.hpp"

namespace paralet::verbs {

/// Payloads up to this size are copied into the work request, so their memory is not registered.
inline constexpr std::uint32_t kInlineBytes = 64;

/// What the NIC needs to read or write local memory. `temporary` is a registration for this one request.
struct LocalMemory {
  ibv_sge sge{};
  MrHandle temporary;
};

/// Regions are counted references to registrations with the NIC. A second region of the same bytes with the same access
/// uses the first one's registration: it takes no time and no further entry of the NIC's tables. As with NCCL's own
/// cache, memory must be deregistered before it is unmapped, or a later region at its address meets the old pages.
class Memory {
 public:
  /// `device` is the name that errors mention, `page_bytes` the size of a memory page.
  Memory(ibv_pd* pd, std::string device, std::uint64_t page_bytes)
      : library_(VerbsLibrary::load()), pd_(pd), device_(std::move(device)), page_mask_(page_bytes - 1) {}

  // Each returns the name of a region, 0 where nothing has to be registered, and throws DeviceError.
  /// Peers may write to it.
  std::uint32_t register_target(std::byte* base, std::uint64_t length);
  /// Only sends read it.
  std::uint32_t register_source(const std::byte* base, std::uint64_t length);
  /// Only READs of this device write to it.
  std::uint32_t register_sink(std::byte* base, std::uint64_t length);
  /// Memory of another device (Backend::register_device_memory).
  std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf);
  /// Does nothing for an unknown name.
  void deregister(std::uint32_t region);

  /// Address on the wire of the first byte of a region, 0 where there is no such region.
  [[nodiscard]] std::uint64_t remote_address(std::uint32_t region) const;
  /// Its rkey on the wire, 0 where there is no such region.
  [[nodiscard]] std::uint32_t remote_key(std::uint32_t region) const;
  /// Whether the payload lies in another device's memory, which no processor may touch.
  [[nodiscard]] bool on_device(const WorkRequest& request) const;
  /// The local memory of a request: in the region that the request names, else registered for this request.
  [[nodiscard]] LocalMemory local(const WorkRequest& request) const;
  /// Registers memory for one request, which fails when that cannot be done.
  [[nodiscard]] LocalMemory temporary(const std::byte* data, std::uint32_t length, int access) const;

 private:
  using Range = std::tuple<const std::byte*, std::uint64_t, int>;  ///< base, length in bytes, access
  /// A registration with the NIC.
  struct Registration {
    MrHandle mr;
    const std::byte* base = nullptr;  ///< of another device's memory only a name
    std::uint64_t length = 0;
    std::uint64_t iova = 0;
    bool on_device = false;
    Range range;  ///< its place in `known_`
  };

  /// The region of a range: of a registration that exists, or of the one that `enroll` makes.
  template <typename Enroll>
  std::uint32_t add(const Range& range, Enroll enroll);
  std::uint32_t keep(const std::shared_ptr<Registration>& registration) PARALET_REQUIRES(mutex_);
  [[nodiscard]] const Registration* find(std::uint32_t region) const PARALET_REQUIRES(mutex_);
  [[nodiscard]] MrHandle enroll_host(std::byte* place, std::uint64_t length, std::uint64_t iova, int access) const;

  const VerbsLibrary& library_;
  ibv_pd* pd_;
  std::string device_;
  std::uint64_t page_mask_;
  std::byte nothing_{};  ///< stands for a region of no bytes, which cannot be registered
  mutable Mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<Registration>> regions_ PARALET_GUARDED_BY(mutex_);
  std::map<Range, std::weak_ptr<Registration>> known_ PARALET_GUARDED_BY(mutex_);
  std::uint32_t next_region_ PARALET_GUARDED_BY(mutex_) = 1;
};

}  // namespace paralet::verbs
