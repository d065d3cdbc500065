// SPDX-License-Identifier: Apache-2.0
#include "verbs/memory.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errors.hpp"
#include "verbs/port.hpp"

namespace paralet::verbs {
namespace {

constexpr int kRemoteAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr int kDeviceAccess = kRemoteAccess | IBV_ACCESS_REMOTE_READ;  // fences read it; QPs of peers refuse READs

[[noreturn]] void cannot_register(std::uint64_t length) {
  fail("cannot register " + std::to_string(length) + " bytes of memory (is `ulimit -l` large enough?)", errno);
}

}  // namespace

std::uint32_t Memory::add(Region region) {
  const std::uint32_t key = region.mr->rkey;
  regions_.insert_or_assign(key, std::move(region));
  return key;
}

std::uint32_t Memory::register_target(std::byte* base, std::uint64_t length) {
  // The kernel requires that the address that peers use has the same offset in its page as the memory. Peers need not
  // know more of the address. An empty region is still a region, because a message may be empty.
  std::byte* place = length == 0 ? &nothing_ : base;
  const std::uint64_t iova = reinterpret_cast<std::uint64_t>(place) & page_mask_;
  MrHandle mr(library_.reg_mr_iova(pd_, place, std::max<std::uint64_t>(length, 1), iova,
                                   length == 0 ? IBV_ACCESS_LOCAL_WRITE : kRemoteAccess));
  if (!mr) cannot_register(length);
  return add({.mr = std::move(mr), .base = base, .length = length, .iova = iova});
}

std::uint32_t Memory::register_source(const std::byte* base, std::uint64_t length) {
  if (length <= kInlineBytes) return 0;
  const auto iova = reinterpret_cast<std::uint64_t>(base);
  // No access flags: the NIC only reads, and what is sent may be read-only memory.
  MrHandle mr(library_.reg_mr_iova(pd_, const_cast<std::byte*>(base), length, iova, 0));
  if (!mr) cannot_register(length);
  return add({.mr = std::move(mr), .base = base, .length = length, .iova = iova});
}

std::uint32_t Memory::register_sink(std::byte* base, std::uint64_t length) {
  const auto iova = reinterpret_cast<std::uint64_t>(base);
  MrHandle mr(library_.reg_mr_iova(pd_, base, length, iova, IBV_ACCESS_LOCAL_WRITE));
  if (!mr) cannot_register(length);
  return add({.mr = std::move(mr), .base = base, .length = length, .iova = iova});
}

std::uint32_t Memory::register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) {
  if (dmabuf && library_.reg_dmabuf_mr == nullptr)
    throw DeviceError("this libibverbs cannot register a dma-buf (rdma-core 34 can)");
  const std::uint64_t iova = (dmabuf ? dmabuf->offset : reinterpret_cast<std::uint64_t>(base)) & page_mask_;
  MrHandle mr(dmabuf ? library_.reg_dmabuf_mr(pd_, dmabuf->offset, length, iova, dmabuf->fd, kDeviceAccess)
                     : library_.reg_mr_iova(pd_, base, length, iova, kDeviceAccess));
  if (!mr && dmabuf) fail(device_ + " cannot register a dma-buf", errno);
  if (!mr) fail(device_ + " cannot register another device's memory (is nvidia_peermem loaded?)", errno);
  return add({.mr = std::move(mr), .base = base, .length = length, .iova = iova, .on_device = true});
}

std::uint64_t Memory::remote_address(std::uint32_t rkey) const {
  const auto found = regions_.find(rkey);
  return found != regions_.end() ? found->second.iova : 0;
}

bool Memory::on_device(const WorkRequest& request) const {
  const auto found = regions_.find(request.memory);
  return request.memory != 0 && found != regions_.end() && found->second.on_device;
}

LocalMemory Memory::local(const WorkRequest& request) const {
  if (const auto found = regions_.find(request.memory); request.memory != 0 && found != regions_.end()) {
    const Region& region = found->second;
    const auto offset = static_cast<std::uint64_t>(request.data - region.base);
    if (offset <= region.length && request.length <= region.length - offset) {
      return {.sge = {.addr = region.iova + offset, .length = request.length, .lkey = region.mr->lkey},
              .temporary = {}};
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
