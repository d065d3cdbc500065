// SPDX-License-Identifier: Apache-2.0
// The functions of libibverbs that programs call.
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "world.hpp"

using namespace fake_verbs::inner;

namespace {

/// The GIDs of the port, by index: link-local, IPv4 and IPv6.
std::array<std::pair<unsigned, ibv_gid>, 3> own_gids() {
  std::array<std::pair<unsigned, ibv_gid>, 3> out{{{1, {}}, {3, {}}, {5, {}}}};
  ibv_gid& link_local = out[0].second;
  link_local.raw[0] = 0xFE;
  link_local.raw[1] = 0x80;
  link_local.raw[15] = 1;
  ibv_gid& ipv4 = out[1].second;
  ipv4.raw[10] = ipv4.raw[11] = 0xFF;
  const std::uint32_t address = htonl(fake_verbs::kAddress);
  std::memcpy(&ipv4.raw[12], &address, sizeof address);
  out[2].second.raw[15] = 1;
  return out;
}

ibv_mr* keep_region(ibv_pd* pd, std::byte* place, std::size_t length, std::uint64_t iova, int access) {
  errno = EIO;
  if (pd != nullptr && failed(pd->context)) return nullptr;  // the tests of SendQueue have none
  auto mr = std::make_unique<Mr>();
  mr->pd = pd;
  mr->length = length;
  mr->place = place;
  mr->iova = iova;
  mr->access = access;
  mr->lkey = mr->rkey = world().next_key++;
  return world().regions.emplace(mr->rkey, std::move(mr)).first->second.get();
}

/// The queue pair that an event is of, nullptr for other events.
Qp* queue_pair_of(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return static_cast<Qp*>(event.element.qp);
    default:
      return nullptr;
  }
}

/// The attributes of the port that the first libraries knew too.
void fill(ibv_port_attr& port) {
  port.state = IBV_PORT_ACTIVE;
  port.active_mtu = IBV_MTU_1024;
  port.active_width = world().nic.link_width;
  port.active_speed = world().nic.link_speed;
  port.link_layer = world().nic.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
}

/// As libibverbs does, clears what the caller has room for and fills in what this library knows.
int query_port(ibv_context* /*context*/, std::uint8_t /*port*/, ibv_port_attr* out, std::size_t room) {
  std::memset(out, 0, room);
  std::array<std::byte, 56> known{};
  ibv_port_attr port{};
  fill(port);
  std::memcpy(known.data(), &port, sizeof port);
  std::memcpy(known.data() + 52, &world().nic.link_speed_ex, sizeof world().nic.link_speed_ex);
  std::memcpy(out, known.data(), std::min(room, world().nic.port_attributes));
  return 0;
}

}  // namespace

extern "C" {

FAKE_VERBS_API std::uint16_t fake_verbs_port(std::uint32_t qpn) {
  const std::lock_guard lock(world().mutex);
  return world().qps.at(qpn)->port;
}

FAKE_VERBS_API int ibv_fork_init() {
  const std::lock_guard lock(world().mutex);
  world().fork_safe = !world().used;
  return world().used ? EINVAL : 0;
}
FAKE_VERBS_API ibv_device** ibv_get_device_list(int* count) {
  world().used = true;
  static std::array<ibv_device*, 2> list{};
  world().device.transport_type = IBV_TRANSPORT_IB;
  std::strcpy(world().device.name, "fake0");
  list = {&world().device, nullptr};
  *count = 1;
  return list.data();
}
FAKE_VERBS_API void ibv_free_device_list(ibv_device** /*list*/) {}
FAKE_VERBS_API const char* ibv_get_device_name(ibv_device* device) { return device->name; }

FAKE_VERBS_API ibv_context* ibv_open_device(ibv_device* device) {
  auto* extended = new verbs_context{};  // NOLINT(cppcoreguidelines-owning-memory): ibv_close_device
  ibv_context* context = &extended->context;
  if (world().nic.port_attributes > 0) {
    context->abi_compat = __VERBS_ABI_IS_EXTENDED;
    extended->sz = sizeof *extended;
    extended->query_port = query_port;
  }
  context->device = device;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_srq_recv = post_srq_recv;
  context->ops.post_send = post_send;
  context->async_fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  const std::lock_guard lock(world().mutex);
  world().events[context];
  world().contexts.push_back(context);
  return context;
}
FAKE_VERBS_API int ibv_close_device(ibv_context* context) {
  {
    const std::lock_guard lock(world().mutex);
    world().events.erase(context);
    std::erase(world().contexts, context);
    world().failed.erase(context);
  }
  ::close(context->async_fd);
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
  delete reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(context) - offsetof(verbs_context, context));
  return 0;
}
FAKE_VERBS_API int ibv_query_device(ibv_context* /*context*/, ibv_device_attr* out) {
  out->max_cqe = world().nic.completions;
  out->max_srq_wr = 4096;
  out->phys_port_cnt = 1;
  return 0;
}
#undef ibv_query_port
FAKE_VERBS_API int ibv_query_port(ibv_context* /*context*/, std::uint8_t /*port*/, _compat_ibv_port_attr* out) {
  fill(*reinterpret_cast<ibv_port_attr*>(out));
  return 0;
}
FAKE_VERBS_API ssize_t _ibv_query_gid_table(ibv_context* /*context*/, ibv_gid_entry* entries, std::size_t most,
                                            std::uint32_t /*flags*/, std::size_t /*entry_size*/) {
  std::size_t count = 0;
  for (const auto& [index, gid] : own_gids()) {
    if (count == most) break;
    ibv_gid_entry& entry = entries[count++];
    entry = {};
    entry.gid = gid;
    entry.gid_index = index;
    entry.port_num = 1;
    entry.gid_type = world().nic.infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
  }
  return static_cast<ssize_t>(count);
}
FAKE_VERBS_API int _ibv_query_gid_ex(ibv_context* /*context*/, std::uint32_t /*port*/, std::uint32_t index,
                                     ibv_gid_entry* out, std::uint32_t /*flags*/, std::size_t /*entry_size*/) {
  std::array<ibv_gid_entry, 8> entries{};
  const ssize_t count = _ibv_query_gid_table(nullptr, entries.data(), entries.size(), 0, sizeof *out);
  const auto end = entries.begin() + count;
  const auto found = std::find_if(entries.begin(), end, [&](const auto& entry) { return entry.gid_index == index; });
  if (found == end) return ENODATA;
  *out = *found;
  return 0;
}
FAKE_VERBS_API ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* pd = new ibv_pd{};  // NOLINT(cppcoreguidelines-owning-memory): ibv_dealloc_pd
  pd->context = context;
  return pd;
}
FAKE_VERBS_API int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;  // NOLINT(cppcoreguidelines-owning-memory)
  return 0;
}
#ifndef FAKE_VERBS_OLD
FAKE_VERBS_API ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* place, std::size_t length, std::uint64_t iova,
                                        unsigned access) {
  std::unique_lock lock(world().mutex);
  errno = EINVAL;
  if (!world().nic.relaxed_ordering) return nullptr;
  if ((reinterpret_cast<std::uint64_t>(place) ^ iova) % world().nic.page_bytes != 0) return nullptr;
  ++world().record.registering;
  world().registrations.wait(lock, [&] { return world().held_bytes != length; });
  --world().record.registering;
  ++world().record.relaxed;
  return keep_region(pd, static_cast<std::byte*>(place), length, iova, static_cast<int>(access));
}
#endif
#undef ibv_reg_mr_iova
FAKE_VERBS_API ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* place, std::size_t length, std::uint64_t iova, int access) {
  const std::lock_guard lock(world().mutex);
  errno = EINVAL;
  if ((reinterpret_cast<std::uint64_t>(place) ^ iova) % world().nic.page_bytes != 0) return nullptr;
  return keep_region(pd, static_cast<std::byte*>(place), length, iova, access);
}
FAKE_VERBS_API int ibv_dereg_mr(ibv_mr* mr) {
  std::unique_lock lock(world().mutex);
  ++world().record.deregistering;
  world().registrations.wait(lock, [length = mr->length] { return world().held_deregistered_bytes != length; });
  --world().record.deregistering;
  world().regions.erase(mr->rkey);
  return 0;
}
FAKE_VERBS_API ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new ibv_comp_channel{};  // NOLINT(cppcoreguidelines-owning-memory)
  channel->context = context;
  channel->fd = ::eventfd(0, EFD_CLOEXEC);
  return channel;
}
FAKE_VERBS_API int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  delete channel;  // NOLINT(cppcoreguidelines-owning-memory)
  return 0;
}
FAKE_VERBS_API ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* /*user*/, ibv_comp_channel* channel,
                                     int /*vector*/) {
  auto* cq = new Cq;  // NOLINT(cppcoreguidelines-owning-memory)
  static_cast<ibv_cq&>(*cq) = {};
  cq->context = context;
  cq->channel = channel;
  cq->cqe = entries;
  return cq;
}
FAKE_VERBS_API int ibv_destroy_cq(ibv_cq* cq) {
  delete static_cast<Cq*>(cq);  // NOLINT(cppcoreguidelines-owning-memory)
  return 0;
}
FAKE_VERBS_API int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** /*cq*/, void** /*user*/) {
  std::uint64_t count = 0;
  return ::read(channel->fd, &count, sizeof count) == sizeof count ? 0 : -1;
}
FAKE_VERBS_API void ibv_ack_cq_events(ibv_cq* /*cq*/, unsigned /*count*/) {}
FAKE_VERBS_API ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* /*attributes*/) {
  auto* srq = new Srq;  // NOLINT(cppcoreguidelines-owning-memory)
  static_cast<ibv_srq&>(*srq) = {};
  srq->context = pd->context;
  srq->pd = pd;
  const std::lock_guard lock(world().mutex);
  world().srqs.emplace(srq, srq);
  return srq;
}
FAKE_VERBS_API int ibv_destroy_srq(ibv_srq* srq) {
  {
    const std::lock_guard lock(world().mutex);
    world().srqs.erase(srq);
  }
  delete static_cast<Srq*>(srq);  // NOLINT(cppcoreguidelines-owning-memory)
  return 0;
}
FAKE_VERBS_API ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  std::unique_lock lock(world().mutex);
  wait_while_held(fake_verbs::Call::kCreate, lock);
  errno = EIO;
  if (failed(pd->context)) return nullptr;
  auto qp = std::make_unique<Qp>();
  static_cast<ibv_qp&>(*qp) = {};
  qp->context = pd->context;
  qp->pd = pd;
  qp->send_cq = attributes->send_cq;
  qp->recv_cq = attributes->recv_cq;
  qp->srq = attributes->srq;
  qp->qp_num = world().next_qpn++;
  return world().qps.emplace(qp->qp_num, std::move(qp)).first->second.get();
}
FAKE_VERBS_API int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  std::unique_lock lock(world().mutex);
  if (attributes->qp_state == IBV_QPS_RTR) wait_while_held(fake_verbs::Call::kConnect, lock);
  if (failed(qp->context)) return EIO;
  if (attributes->qp_state == IBV_QPS_RTR) {
    auto& [before, count] = world().routes[attributes->ah_attr.grh.sgid_index];
    if (before > 0) {
      --before;
    } else if (count > 0) {
      --count;
      return EHOSTUNREACH;
    }
  }
  Qp& changed = *world().qps.at(qp->qp_num);
  const bool fails = attributes->qp_state == IBV_QPS_ERR && changed.state != IBV_QPS_INIT;
  changed.state = attributes->qp_state;
  if (fails) flush(changed);
  if ((mask & IBV_QP_PKEY_INDEX) != 0) world().record.pkeys.push_back(attributes->pkey_index);
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) changed.access = attributes->qp_access_flags;
  if (attributes->qp_state == IBV_QPS_RTR) {
    changed.peer = attributes->dest_qp_num;
    const std::uint32_t label = attributes->ah_attr.grh.flow_label;
    changed.port = static_cast<std::uint16_t>(((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | 0xC000);
    world().record.labels.push_back(attributes->ah_attr.grh.flow_label);
    changed.path_mtu = 128U << static_cast<unsigned>(attributes->path_mtu);
    changed.gid = attributes->ah_attr.grh.sgid_index;
    const ibv_gid& gid = attributes->ah_attr.grh.dgid;
    world().record.gids.emplace_back(attributes->ah_attr.grh.sgid_index,
                                     std::string(std::begin(gid.raw), std::end(gid.raw)));
    note("rtr %u", qp->qp_num);
  } else if (attributes->qp_state == IBV_QPS_RTS) {
    note("rts %u", qp->qp_num);
  }
  return 0;
}
FAKE_VERBS_API int ibv_destroy_qp(ibv_qp* qp) {
  std::unique_lock lock(world().mutex);
  wait_while_held(fake_verbs::Call::kDestroy, lock);
  // As ibv_destroy_qp(3) says.
  world().acknowledged.wait(lock, [qp] { return static_cast<Qp*>(qp)->unacknowledged == 0; });
  if (world().nic.discards) {
    std::erase_if(static_cast<Cq*>(qp->send_cq)->entries, [&](const Entry& entry) {
      if (entry.wc.qp_num != qp->qp_num) return false;
      if ((entry.wc.opcode & IBV_WC_RECV) != 0) --world().received;
      return true;
    });
  }
  // The kernel takes the events of a queue pair back with it (ib_uverbs_release_uevent, uverbs_main.c).
  for (auto& [context, events] : world().events) {
    std::erase_if(events, [&](const ibv_async_event& event) { return event.element.qp == qp; });
  }
  world().qps.erase(qp->qp_num);
  return 0;
}
FAKE_VERBS_API int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  std::uint64_t one = 0;
  if (::read(context->async_fd, &one, sizeof one) != sizeof one) return -1;
  const std::lock_guard lock(world().mutex);
  auto& events = world().events.at(context);
  if (events.empty()) return -1;  // it went with its queue pair
  *event = events.front();
  events.pop_front();
  if (Qp* qp = queue_pair_of(*event)) ++qp->unacknowledged;
  return 0;
}
FAKE_VERBS_API void ibv_ack_async_event(ibv_async_event* event) {
  const std::lock_guard lock(world().mutex);
  if (Qp* qp = queue_pair_of(*event)) --qp->unacknowledged;
  world().acknowledged.notify_all();
}

#ifndef FAKE_VERBS_OLD
FAKE_VERBS_API int ibv_query_ece(ibv_qp* qp, ibv_ece* out) {
  const std::lock_guard lock(world().mutex);
  *out = world().qps.at(qp->qp_num)->ece;
  if (out->vendor_id == 0) *out = {world().nic.ece_vendor, fake_verbs::kEceOptions, 0};
  note("query_ece %u", qp->qp_num);
  return 0;
}
FAKE_VERBS_API int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  const std::lock_guard lock(world().mutex);
  note("set_ece %u %#x", qp->qp_num, ece->options);
  if (world().nic.ece_error != 0) return world().nic.ece_error;
  if (ece->comp_mask != 0) {  // bits that the library does not know
    ++world().record.refused_ece;
    return EOPNOTSUPP;
  }
  world().qps.at(qp->qp_num)->ece = {ece->vendor_id, ece->options & fake_verbs::kEceAgreed, 0};
  return 0;
}
FAKE_VERBS_API ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                                         int fd, int access) {
  const std::lock_guard lock(world().mutex);
  const auto found = world().shared.find(fd);
  errno = world().nic.dmabuf_error;
  if (errno != 0) return nullptr;
  errno = EBADF;
  if (found == world().shared.end()) return nullptr;
  errno = EINVAL;
  if (offset + length > found->second.length || (offset ^ iova) % world().nic.page_bytes != 0) return nullptr;
  return keep_region(pd, found->second.base + offset, length, iova, access);
}
#endif
}
