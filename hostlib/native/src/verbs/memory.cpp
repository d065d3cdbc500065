// SPDX-License-Identifier: Apache-2.0
#include "verbs/memory.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errors.hpp"
#include "base/fresh_name.hpp"
#include "verbs/port.hpp"

namespace paralet::verbs {
namespace {

constexpr int kRemoteAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr int kDeviceAccess = kRemoteAccess | IBV_ACCESS_REMOTE_READ;  // fences read it; QPs of peers refuse READs

[[noreturn]] void cannot_register(std::uint64_t length) {
  fail("cannot register " + std::to_string(length) + " bytes of memory (is `ulimit -l` large enough?)", errno);
}

}  // namespace

std::uint32_t Memory::keep(const std::shared_ptr<Registration>& registration) {
  const std::uint32_t region = fresh_name(next_region_, regions_);
  regions_.emplace(region, registration);
  return region;
}

template <typename Enroll>
std::uint32_t Memory::add(const Range& range, Enroll enroll) {
  {
    const MutexLock lock(mutex_);
    if (const auto found = known_.find(range); found != known_.end()) {
      if (const auto registration = found->second.lock()) return keep(registration);
    }
  }
  // Without the lock: pinning takes long. Two threads may register the same range; both registrations are good.
  const auto registration = std::make_shared<Registration>(enroll());
  registration->range = range;
  const MutexLock lock(mutex_);
  known_.insert_or_assign(range, registration);
  return keep(registration);
}

void Memory::deregister(std::uint32_t region) {
  std::shared_ptr<Registration> last;  // ends after the lock: unpinning takes long
  const MutexLock lock(mutex_);
  const auto found = regions_.find(region);
  if (found == regions_.end()) return;
  last = std::move(found->second);
  regions_.erase(found);
  if (last.use_count() > 1) return;
  // Another thread may have registered the same range at the same time; then its entry stays.
  if (const auto entry = known_.find(last->range); entry != known_.end() && entry->second.lock() == last) {
    known_.erase(entry);
  }
}

/// Registers host memory. Relaxed ordering lets the PCIe root complex reorder the NIC's writes of data, which some
/// machines need for the full rate; completions stay behind the data. Not every device or kernel takes the flag.
MrHandle Memory::enroll_host(std::byte* place, std::uint64_t length, std::uint64_t iova, int access) const {
  if (library_.reg_mr_iova2 != nullptr) {
    MrHandle mr(
        library_.reg_mr_iova2(pd_, place, length, iova, static_cast<unsigned>(access) | IBV_ACCESS_RELAXED_ORDERING));
    if (mr) return mr;
  }
  return MrHandle(library_.reg_mr_iova(pd_, place, length, iova, access));
}

std::uint32_t Memory::register_target(std::byte* base, std::uint64_t length) {
  // The kernel requires that the address that peers use has the same offset in its page as the memory. Peers need not
  // know more of the address. An empty region is still a region, because a message may be empty.
  std::byte* place = length == 0 ? &nothing_ : base;
  const int access = length == 0 ? IBV_ACCESS_LOCAL_WRITE : kRemoteAccess;
  const std::uint64_t iova = reinterpret_cast<std::uint64_t>(place) & page_mask_;
  return add({base, length, access}, [&] {
    MrHandle mr = enroll_host(place, std::max<std::uint64_t>(length, 1), iova, access);
    if (!mr) cannot_register(length);
    return Registration{.mr = std::move(mr), .base = base, .length = length, .iova = iova};
  });
}

std::uint32_t Memory::register_source(const std::byte* base, std::uint64_t length) {
  if (length <= kInlineBytes) return 0;
  const auto iova = reinterpret_cast<std::uint64_t>(base);
  return add({base, length, 0}, [&] {
    // No access flags: the NIC only reads, and what is sent may be read-only memory.
    MrHandle mr = enroll_host(const_cast<std::byte*>(base), length, iova, 0);
    if (!mr) cannot_register(length);
    return Registration{.mr = std::move(mr), .base = base, .length = length, .iova = iova};
  });
}

std::uint32_t Memory::register_sink(std::byte* base, std::uint64_t length) {
  const auto iova = reinterpret_cast<std::uint64_t>(base);
  return add({base, length, IBV_ACCESS_LOCAL_WRITE}, [&] {
    MrHandle mr(library_.reg_mr_iova(pd_, base, length, iova, IBV_ACCESS_LOCAL_WRITE));
    if (!mr) cannot_register(length);
    return Registration{.mr = std::move(mr), .base = base, .length = length, .iova = iova};
  });
}

std::uint32_t Memory::register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) {
  if (dmabuf && library_.reg_dmabuf_mr == nullptr)
    throw DeviceError("this libibverbs cannot register a dma-buf (rdma-core 34 can)");
  const std::uint64_t iova = (dmabuf ? dmabuf->offset : reinterpret_cast<std::uint64_t>(base)) & page_mask_;
  return add({base, length, kDeviceAccess}, [&] {
    MrHandle mr(dmabuf ? library_.reg_dmabuf_mr(pd_, dmabuf->offset, length, iova, dmabuf->fd, kDeviceAccess)
                       : library_.reg_mr_iova(pd_, base, length, iova, kDeviceAccess));
    if (!mr && dmabuf) fail(device_ + " cannot register a dma-buf", errno);
    if (!mr) fail(device_ + " cannot register another device's memory (is nvidia_peermem loaded?)", errno);
    return Registration{.mr = std::move(mr), .base = base, .length = length, .iova = iova, .on_device = true};
  });
}

const Memory::Registration* Memory::find(std::uint32_t region) const {
  const auto found = region != 0 ? regions_.find(region) : regions_.end();
  return found != regions_.end() ? found->second.get() : nullptr;
}

std::uint64_t Memory::remote_address(std::uint32_t region) const {
  const MutexLock lock(mutex_);
  const Registration* found = find(region);
  return found != nullptr ? found->iova : 0;
}

std::uint32_t Memory::remote_key(std::uint32_t region) const {
  const MutexLock lock(mutex_);
  const Registration* found = find(region);
  return found != nullptr ? found->mr->rkey : 0;
}

bool Memory::on_device(const WorkRequest& request) const {
  if (request.memory == 0) return false;
  const MutexLock lock(mutex_);
  const Registration* found = find(request.memory);
  return found != nullptr && found->on_device;
}

LocalMemory Memory::local(const WorkRequest& request) const {
  if (request.memory != 0) {
    const MutexLock lock(mutex_);
    if (const Registration* found = find(request.memory); found != nullptr) {
      const auto offset = static_cast<std::uint64_t>(request.data - found->base);
      if (offset <= found->length && request.length <= found->length - offset) {
        return {.sge = {.addr = found->iova + offset, .length = request.length, .lkey = found->mr->lkey},
                .temporary = {}};
      }
    }
  }
  return temporary(request.data, request.length, 0);
}

LocalMemory Memory::temporary(const std::byte* data, std::uint32_t length, int access) const {
  const auto address = reinterpret_cast<std::uint64_t>(data);
  MrHandle mr(library_.reg_mr_iova(pd_, const_cast<std::byte*>(data), length, address, access));
  const std::uint32_t lkey = mr ? mr->lkey : 0;  // the NIC refuses the key 0, so the request fails like any other
  return {.sge = {.addr = address, .length = length, .lkey = lkey}, .temporary = std::move(mr)};
}

}  // namespace paralet::verbs
