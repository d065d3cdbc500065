// SPDX-License-Identifier: Apache-2.0
// What tests do to the NIC and the network.
#include <unistd.h>

#include "world.hpp"

namespace fake_verbs {

using inner::flush;
using inner::note;
using inner::Qp;
using inner::raise_event;
using inner::send_again;
using inner::wait_while_held;
using inner::world;

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
void stop(std::size_t context) {
  const std::lock_guard lock(world().mutex);
  world().stopped = world().contexts.at(context);
}
void resume() {
  const std::lock_guard lock(world().mutex);
  world().stopped = nullptr;
  world().resumed.notify_all();
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
