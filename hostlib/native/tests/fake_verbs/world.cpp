// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>

namespace fake_verbs::inner {

World& world() {
  static auto& one = *new World;  // NOLINT(cppcoreguidelines-owning-memory): outlives all users
  return one;
}

namespace {

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

}  // namespace

bool failed(ibv_context* context) { return world().failed.contains(context); }

namespace {

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

}  // namespace

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

void flush(Qp& qp, ibv_wc_status first) {
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
  std::unique_lock lock(world().mutex);
  world().resumed.wait(lock, [queue] { return world().stopped == nullptr || world().stopped != queue->context; });
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

void wait_while_held(fake_verbs::Call call, std::unique_lock<std::mutex>& lock) {
  if (!world().holds_call || world().held_call != call || world().calls_before-- > 0) return;
  world().holds_call = false;
  ++world().record.held;
  world().calls.wait(lock, [] { return world().call_released; });
  --world().record.held;
}

}  // namespace fake_verbs::inner
