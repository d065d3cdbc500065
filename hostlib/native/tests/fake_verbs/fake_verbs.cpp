// SPDX-License-Identifier: Apache-2.0
#include "fake_verbs.hpp"

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

namespace {

using fake_verbs::Nic;
using fake_verbs::Record;

struct Entry {
  ibv_wc wc{};
  std::int64_t visible_at = 0;
};

struct Cq : ibv_cq {
  std::deque<Entry> entries;
};

/// A request on a path that loses it or its acknowledgement.
struct Lost {
  ibv_send_wr request{};
  ibv_sge sge{};
  bool arrived = false;
};

struct Srq : ibv_srq {
  std::deque<std::pair<std::uint64_t, ibv_sge>> receives;
};

struct Mr : ibv_mr {
  std::byte* place = nullptr;
  std::uint64_t iova = 0;
  int access = 0;
};

struct Qp : ibv_qp {
  std::uint32_t peer = 0;
  unsigned access = 0;
  std::deque<std::uint64_t> posted;  ///< whose completions have not been polled
  std::deque<Lost> lost;
  bool flushes = false;         ///< is to return what it holds
  std::uint16_t port = 0;       ///< UDP source port
  std::uint32_t path_mtu = 0;   ///< payload bytes per packet
  unsigned gid = 0;             ///< index of the own GID
  std::int64_t busy_until = 0;  ///< when its last long request is through
  unsigned unacknowledged = 0;  ///< events that the user has taken and not acknowledged
  ibv_ece ece{};
};

struct DeviceMemory {
  std::byte* base;
  std::size_t length;
};

/// All state, under one lock.
struct World {
  std::mutex mutex;
  Nic nic;
  Record record;
  ibv_device device{};
  std::map<std::uint32_t, std::unique_ptr<Qp>> qps;
  std::map<std::uint32_t, std::unique_ptr<Mr>> regions;
  std::map<int, DeviceMemory> shared;
  std::map<ibv_context*, std::deque<ibv_async_event>> events;  ///< of the open contexts
  std::map<std::uint16_t, fake_verbs::Path> paths;             ///< by source port
  std::map<unsigned, fake_verbs::Path> gids;                   ///< by index of the own GID
  std::map<unsigned, std::pair<unsigned, unsigned>> routes;    ///< refuse_routes
  std::uint32_t longest = 0;                                   ///< narrow_route
  std::vector<ibv_context*> contexts;                          ///< that are open, oldest first
  std::set<ibv_context*> failed;                               ///< of them: fail_nic
  std::map<ibv_srq*, Srq*> srqs;
  std::size_t received = 0;  ///< completions of receives that have not been polled
  std::uint32_t next_qpn = fake_verbs::kFirstQpn;
  std::uint32_t next_key = 1001;
  std::condition_variable registrations;
  std::size_t held_bytes = 0;               ///< hold_registrations
  std::size_t held_deregistered_bytes = 0;  ///< hold_deregistrations
  std::condition_variable calls;
  fake_verbs::Call held_call{};  ///< hold_call
  unsigned calls_before = 0;
  bool holds_call = false;     ///< the call is still to come
  bool call_released = false;  ///< the held call may return
  std::condition_variable acknowledged;
  bool holds_flushes = false;
  bool used = false;       ///< a call other than ibv_fork_init was made
  bool fork_safe = false;  ///< ibv_fork_init was called before
};

World& world() {
  static auto& one = *new World;  // NOLINT(cppcoreguidelines-owning-memory): outlives all users
  return one;
}

template <typename... Values>
void note(const char* format, Values... values) {
  std::array<char, 80> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  world().record.calls.emplace_back(text.data());
}

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

void ring(const ibv_cq& cq) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(cq.channel->fd, &one, sizeof one);
}

std::int64_t clock_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

void deliver(ibv_cq* queue, const ibv_wc& entry, std::int64_t visible_at = 0) {
  auto& cq = static_cast<Cq&>(*queue);
  cq.entries.push_back({entry, visible_at});
  ring(cq);
}

/// Records the work that could complete at once, as when queue pairs fail: the completion queue must have room for it.
void count_work(const Srq& srq) {
  std::size_t work = srq.receives.size() + world().received;
  for (const auto& [qpn, qp] : world().qps) work += qp->posted.size();
  world().record.most_work = std::max(world().record.most_work, work);
}

/// The memory that a peer addresses through this queue pair, nullptr without that access.
std::byte* remote(const Qp& to, const ibv_send_wr& request, std::size_t length, int access) {
  const auto found = world().regions.find(request.wr.rdma.rkey);
  if (found == world().regions.end() || (found->second->access & access) == 0) return nullptr;
  if (found->second->pd != to.pd) return nullptr;
  const std::uint64_t offset = request.wr.rdma.remote_addr - found->second->iova;
  return offset + length <= found->second->length ? found->second->place + offset : nullptr;
}

/// Where the NIC finds local memory.
std::byte* local(const ibv_sge& sge) {
  const auto found = world().regions.find(sge.lkey);
  if (found == world().regions.end()) return nullptr;
  const std::uint64_t offset = sge.addr - found->second->iova;
  return offset + sge.length <= found->second->length ? found->second->place + offset : nullptr;
}

ibv_wc_status receive(Qp& to, ibv_wc entry, const std::byte* payload) {
  auto& srq = static_cast<Srq&>(*to.srq);
  if (srq.receives.empty()) return IBV_WC_RNR_RETRY_EXC_ERR;
  const auto [wr_id, sge] = srq.receives.front();
  srq.receives.pop_front();
  if (payload != nullptr) std::memcpy(local(sge), payload, entry.byte_len);
  entry.wr_id = wr_id;
  entry.qp_num = to.qp_num;
  ++world().received;
  deliver(to.recv_cq, entry);
  return IBV_WC_SUCCESS;
}

ibv_wc_status carry_out(Qp& from, const ibv_send_wr& request) {
  const auto found = world().qps.find(from.peer);
  if (from.state == IBV_QPS_ERR) return IBV_WC_WR_FLUSH_ERR;
  if (found == world().qps.end() || found->second->state != IBV_QPS_RTS) return IBV_WC_RETRY_EXC_ERR;
  Qp& to = *found->second;
  const ibv_sge none{};
  const ibv_sge& sge = request.num_sge > 0 ? *request.sg_list : none;
  const bool inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
  auto* payload = reinterpret_cast<std::byte*>(sge.addr);  // NOLINT(performance-no-int-to-ptr)
  if (!inlined && sge.length > 0 && (payload = local(sge)) == nullptr) return IBV_WC_LOC_PROT_ERR;
  if (inlined) {
    for (const auto& [fd, memory] : world().shared) {
      if (payload >= memory.base && payload < memory.base + memory.length) ++world().record.inlined_from_device;
    }
  }
  ibv_wc entry{};
  entry.byte_len = sge.length;
  if (request.opcode == IBV_WR_RDMA_READ) {
    const std::byte* source = remote(to, request, sge.length, IBV_ACCESS_REMOTE_READ);
    if (source == nullptr || (to.access & IBV_ACCESS_REMOTE_READ) == 0) return IBV_WC_REM_ACCESS_ERR;
    ++world().record.reads;
    std::memcpy(payload, source, sge.length);
    return IBV_WC_SUCCESS;
  }
  if (request.opcode == IBV_WR_SEND) {
    entry.opcode = IBV_WC_RECV;
    return receive(to, entry, payload);
  }
  if (sge.length > 0) {
    std::byte* target = remote(to, request, sge.length, IBV_ACCESS_REMOTE_WRITE);
    if (target == nullptr) return IBV_WC_REM_ACCESS_ERR;
    std::memcpy(target, payload, sge.length);
  }
  if (request.opcode == IBV_WR_RDMA_WRITE) return IBV_WC_SUCCESS;
  entry.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  entry.imm_data = request.imm_data;
  return receive(to, entry, nullptr);
}

/// Whether calls about the context fail, and its queue pairs send and return nothing.
bool failed(ibv_context* context) { return world().failed.contains(context); }

fake_verbs::Path path_of(const Qp& qp) {
  using enum fake_verbs::Path;
  if (failed(qp.context)) return kDead;
  if (const auto found = world().gids.find(qp.gid); found != world().gids.end() && found->second != kGood) {
    return found->second;
  }
  const auto found = world().paths.find(qp.port);
  return found != world().paths.end() ? found->second : kGood;
}

/// Whether the other end is in the error state, or on a failed NIC: no answer comes, as from a dead path.
bool unreachable(const Qp& from) {
  const auto found = world().qps.find(from.peer);
  return found != world().qps.end() && (found->second->state == IBV_QPS_ERR || failed(found->second->context));
}

/// Whether a request has a packet that the network loses because of its length.
bool too_long(const Qp& from, const ibv_send_wr& request) {
  const std::uint32_t longest = world().longest;
  return longest > 0 && from.path_mtu > longest && request.num_sge > 0 && request.sg_list->length > longest;
}

/// Carries out a request, or keeps it where the path loses something. `arrived`: only its acknowledgement was lost.
void send(Qp& from, const ibv_send_wr& request, bool arrived) {
  const fake_verbs::Path path = path_of(from);
  const bool lossy =
      path != fake_verbs::Path::kGood || unreachable(from) || !from.lost.empty() || too_long(from, request);
  if (from.state == IBV_QPS_RTS && lossy) {
    Lost lost{.request = request, .sge = request.num_sge > 0 ? *request.sg_list : ibv_sge{}, .arrived = arrived};
    lost.request.next = nullptr;
    const bool in_order = std::ranges::all_of(from.lost, [](const Lost& each) { return each.arrived; });
    if (path == fake_verbs::Path::kMute && !unreachable(from) && !arrived && in_order) {
      lost.arrived = carry_out(from, request) == IBV_WC_SUCCESS;
    }
    from.lost.push_back(lost);
    return;
  }
  ibv_wc entry{};
  entry.wr_id = request.wr_id;
  entry.qp_num = from.qp_num;
  entry.status = arrived ? IBV_WC_SUCCESS : carry_out(from, request);
  if (entry.status != IBV_WC_SUCCESS) from.state = IBV_QPS_ERR;
  std::int64_t visible_at = 0;
  if (entry.status == IBV_WC_SUCCESS && (world().nic.ns_per_byte > 0 || world().nic.rtt_ns > 0)) {
    const std::int64_t bytes = request.num_sge > 0 ? request.sg_list->length : 0;
    const std::int64_t now = clock_ns();
    if (bytes >= 16384) from.busy_until = std::max(from.busy_until, now) + bytes * world().nic.ns_per_byte;
    visible_at = std::max(from.busy_until, now) + world().nic.rtt_ns;
  }
  if (entry.status != IBV_WC_SUCCESS || (request.send_flags & IBV_SEND_SIGNALED) != 0) {
    deliver(from.send_cq, entry, visible_at);
  }
}

/// Sends again what was lost, when the path has changed.
void send_again(Qp& from) {
  if (path_of(from) != fake_verbs::Path::kGood || unreachable(from)) return;
  std::deque<Lost> lost;
  lost.swap(from.lost);
  for (Lost& each : lost) {
    each.request.sg_list = &each.sge;
    send(from, each.request, each.arrived);
  }
}

void raise_event(ibv_context* context, const ibv_async_event& event) {
  const auto found = world().events.find(context);
  if (found == world().events.end()) return;
  found->second.push_back(event);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(context->async_fd, &one, sizeof one);
}

/// The queue pair fails: what it holds comes back, the first of it with this status, and it takes no more receives.
void flush(Qp& qp, ibv_wc_status first = IBV_WC_WR_FLUSH_ERR) {
  if (failed(qp.context)) return;
  qp.flushes = world().holds_flushes;
  if (qp.flushes) return;
  for (const Lost& each : std::exchange(qp.lost, {})) {
    ibv_wc entry{};
    entry.wr_id = each.request.wr_id;
    entry.status = std::exchange(first, IBV_WC_WR_FLUSH_ERR);
    entry.qp_num = qp.qp_num;
    deliver(qp.send_cq, entry);
  }
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
  event.element.qp = &qp;
  raise_event(qp.context, event);
}

int post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** /*refused*/) {
  const std::lock_guard lock(world().mutex);
  for (ibv_send_wr* request = requests; request != nullptr; request = request->next) {
    Qp& from = *world().qps.at(qp->qp_num);
    from.posted.push_back(request->wr_id);
    count_work(static_cast<Srq&>(*qp->srq));
    send(from, *request, false);
  }
  return 0;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* request, ibv_recv_wr** /*refused*/) {
  const std::lock_guard lock(world().mutex);
  static_cast<Srq*>(srq)->receives.emplace_back(request->wr_id, *request->sg_list);
  count_work(static_cast<Srq&>(*srq));
  return 0;
}

int poll_cq(ibv_cq* queue, int most, ibv_wc* out) {
  const std::lock_guard lock(world().mutex);
  if (world().nic.holds) return 0;
  auto& cq = static_cast<Cq&>(*queue);
  int count = 0;
  const std::int64_t now = clock_ns();
  while (count < most) {
    const auto next = std::ranges::find_if(cq.entries, [&](const Entry& each) { return each.visible_at <= now; });
    if (next == cq.entries.end()) break;
    const ibv_wc entry = out[count++] = next->wc;
    cq.entries.erase(next);
    const bool receive = (entry.opcode & IBV_WC_RECV) != 0;
    if (receive) --world().received;
    if (const auto found = world().qps.find(entry.qp_num); !receive && found != world().qps.end()) {
      auto& posted = found->second->posted;
      while (!posted.empty() && posted.front() <= entry.wr_id) posted.pop_front();
    }
  }
  return count;
}

int req_notify_cq(ibv_cq* queue, int /*solicited*/) {
  const std::lock_guard lock(world().mutex);
  if (!static_cast<Cq*>(queue)->entries.empty()) ring(*queue);
  return 0;
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

/// Waits if hold_call names this call.
void wait_while_held(fake_verbs::Call call, std::unique_lock<std::mutex>& lock) {
  if (!world().holds_call || world().held_call != call || world().calls_before-- > 0) return;
  world().holds_call = false;
  ++world().record.held;
  world().calls.wait(lock, [] { return world().call_released; });
  --world().record.held;
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

namespace fake_verbs {

Nic& nic() { return world().nic; }
void hold_completions(bool holds) {
  const std::lock_guard lock(world().mutex);
  world().nic.holds = holds;
}
void hold_flushes(bool holds) {
  const std::lock_guard lock(world().mutex);
  world().holds_flushes = holds;
  for (auto& [qpn, qp] : world().qps) {
    if (qp->flushes) flush(*qp);
  }
}
Record record() {
  const std::lock_guard lock(world().mutex);
  Record out = world().record;
  out.regions = world().regions.size();
  out.queue_pairs = world().qps.size();
  out.fork_safe = world().fork_safe;
  for (const auto& [qpn, qp] : world().qps) out.lost += qp->lost.size();
  for (const auto& [name, srq] : world().srqs) out.receives += srq->receives.size();
  return out;
}
void reset() {
  world().nic = {};
  world().record = {};
  world().shared.clear();
  world().paths.clear();
  world().gids.clear();
  world().routes.clear();
  world().longest = 0;
  world().next_qpn = kFirstQpn;
  world().holds_flushes = false;
}
void happen(int type, std::uint32_t number) {
  const std::lock_guard lock(world().mutex);
  ibv_async_event event{};
  event.event_type = static_cast<ibv_event_type>(type);
  const auto found = world().qps.find(number);
  const bool of_qp = type == IBV_EVENT_QP_FATAL && found != world().qps.end();
  if (type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE) {
    event.element.port_num = static_cast<int>(number);
  } else if (of_qp) {
    event.element.qp = found->second.get();
  }
  for (auto& [context, events] : world().events) {
    if (of_qp && context != found->second->context) continue;
    events.push_back(event);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(context->async_fd, &one, sizeof one);
  }
}
void happen_on(std::size_t context, int type, std::uint32_t number) {
  const std::lock_guard lock(world().mutex);
  ibv_async_event event{};
  event.event_type = static_cast<ibv_event_type>(type);
  event.element.port_num = static_cast<int>(number);
  raise_event(world().contexts.at(context), event);
}
void fail_nic(std::size_t context) {
  const std::lock_guard lock(world().mutex);
  world().failed.insert(world().contexts.at(context));
  ibv_async_event event{};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  raise_event(world().contexts.at(context), event);
}
void hold_registrations(std::size_t bytes) {
  const std::lock_guard lock(world().mutex);
  world().held_bytes = bytes;
  world().registrations.notify_all();
}
void hold_deregistrations(std::size_t bytes) {
  const std::lock_guard lock(world().mutex);
  world().held_deregistered_bytes = bytes;
  world().registrations.notify_all();
}
void hold_call(Call call, unsigned before) {
  const std::lock_guard lock(world().mutex);
  world().held_call = call;
  world().calls_before = before;
  world().holds_call = true;
  world().call_released = false;
}
void release_call() {
  const std::lock_guard lock(world().mutex);
  world().holds_call = false;
  world().call_released = true;
  world().calls.notify_all();
}
int modify_udp_sport(std::uint32_t qpn, std::uint16_t port) {
  std::unique_lock lock(world().mutex);
  wait_while_held(Call::kSetPort, lock);
  note("sport %u %u", qpn, port);
  if (world().nic.sport_error != 0) return world().nic.sport_error;
  Qp& qp = *world().qps.at(qpn);
  qp.port = port;
  send_again(qp);
  return 0;
}
void set_path(std::uint16_t port, Path path) {
  const std::lock_guard lock(world().mutex);
  world().paths[port] = path;
  for (auto& [qpn, qp] : world().qps) send_again(*qp);
}
void set_gid(unsigned index, Path path) {
  const std::lock_guard lock(world().mutex);
  world().gids[index] = path;
  for (auto& [qpn, qp] : world().qps) send_again(*qp);
}
void break_queue_pairs(std::uint16_t port) {
  const std::lock_guard lock(world().mutex);
  for (auto& [qpn, qp] : world().qps) {
    if (qp->port != port || qp->state != IBV_QPS_RTS) continue;
    qp->state = IBV_QPS_ERR;
    flush(*qp);
  }
}
void narrow_route(std::uint32_t path_mtu) {
  const std::lock_guard lock(world().mutex);
  world().longest = path_mtu;
}
void end_retries(unsigned gid) {
  const std::lock_guard lock(world().mutex);
  for (auto& [qpn, qp] : world().qps) {
    if (qp->gid != gid || qp->state != IBV_QPS_RTS || qp->lost.empty()) continue;
    qp->state = IBV_QPS_ERR;
    flush(*qp, IBV_WC_RETRY_EXC_ERR);
  }
}
void refuse_routes(unsigned gid, unsigned before, unsigned count) {
  const std::lock_guard lock(world().mutex);
  world().routes[gid] = {before, count};
}
void share_device_memory(int fd, std::byte* base, std::size_t length) { world().shared[fd] = {base, length}; }

}  // namespace fake_verbs

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
