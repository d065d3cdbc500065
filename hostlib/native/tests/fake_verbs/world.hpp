// SPDX-License-Identifier: Apache-2.0
// The fake's state, and the network between its queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "fake_verbs.hpp"

namespace fake_verbs::inner {

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
  ibv_context* stopped = nullptr;                              ///< of them: stop
  std::condition_variable resumed;
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

World& world();

/// Records a call.
template <typename... Values>
void note(const char* format, Values... values) {
  std::array<char, 80> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  world().record.calls.emplace_back(text.data());
}

/// Whether calls about the context fail, and its queue pairs send and return nothing.
bool failed(ibv_context* context);
/// Sends again what was lost, when the path has changed.
void send_again(Qp& from);
void raise_event(ibv_context* context, const ibv_async_event& event);
/// The queue pair fails: what it holds comes back, the first of it with this status, and it takes no more receives.
void flush(Qp& qp, ibv_wc_status first = IBV_WC_WR_FLUSH_ERR);
/// Waits if hold_call names this call.
void wait_while_held(fake_verbs::Call call, std::unique_lock<std::mutex>& lock);
int post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** refused);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* request, ibv_recv_wr** refused);
int poll_cq(ibv_cq* queue, int most, ibv_wc* out);
int req_notify_cq(ibv_cq* queue, int solicited);

}  // namespace fake_verbs::inner
