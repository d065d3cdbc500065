// SPDX-License-Identifier: Apache-2.0
#include "verbs/queue_pairs.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace paralet::verbs {
namespace {

constexpr Nanos kDrainTime = 100 * kMillisecond;  // for a queue pair in the error state to return what it holds

}  // namespace

QpStatistics QueuePair::statistics() const {
  QpCounters counters;
  counters.tx_packets = sends.packets();
  counters.tx_bytes = sends.bytes();
  counters.rx_packets = received_packets;
  counters.rx_bytes = received_bytes;
  counters.timeouts = sends.timeouts();
  return {.counters = counters,
          .port = port,
          .smoothed_rtt = sends.latency(),
          .min_rtt = sends.min_latency(),
          .window = kSendDepth,
          .all_acknowledged = sends.idle(),
          .busy = sends.holds_long(),
          .path_rtt = sends.path_latency(),
          .byte_time = sends.byte_time()};
}

// -- set-up ------------------------------------------------------------------------------------------------------

std::unique_ptr<QueuePair> QueuePairs::make(int access) {
  return std::make_unique<QueuePair>(
      shared_.connector.create(shared_.pd, shared_.completion_queue.get(), shared_.receives.get(), access),
      shared_.sends);
}

QpIdentity QueuePairs::keep(std::unique_ptr<QueuePair> qp) {
  const QpIdentity identity = qp->identity;
  const MutexLock lock(fresh_mutex_);
  fresh_.emplace(identity.qpn, std::move(qp));
  return identity;
}

QueuePair* QueuePairs::fresh(std::uint32_t qpn) const {
  const MutexLock lock(fresh_mutex_);
  const auto found = fresh_.find(qpn);
  return found != fresh_.end() ? found->second.get() : nullptr;
}

QpIdentity QueuePairs::create() { return keep(make(IBV_ACCESS_REMOTE_WRITE)); }

std::uint32_t QueuePairs::create_loopback() {
  auto qp = make(IBV_ACCESS_REMOTE_READ);
  shared_.connector.connect_to_itself(qp->handle.get(), qp->identity);
  qp->connected = true;
  qp->loopback = true;
  qp->sends.set_path_mtu(shared_.connector.path_mtu());
  return keep(std::move(qp)).qpn;
}

Ece QueuePairs::ece(std::uint32_t qpn) const {
  const QueuePair* qp = fresh(qpn);
  return shared_.connector.ece((qp != nullptr ? *qp : at(qpn)).handle.get());
}

bool QueuePairs::connect(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) {
  QueuePair& qp = *fresh(qpn);
  const auto port = shared_.connector.connect(qp.handle.get(), qp.identity, remote, source_port);
  if (!port) return false;
  qp.port = *port;
  qp.connected = true;
  qp.remote = remote.address;
  qp.path_mtu = remote.path_mtu;
  qp.sends.set_path_mtu(remote.path_mtu);
  return true;
}

void QueuePairs::adopt(std::uint32_t qpn) {
  shared_.slow_calls.finish();  // of an earlier queue pair with this number
  const MutexLock lock(fresh_mutex_);
  const auto found = fresh_.find(qpn);
  if (found == fresh_.end()) return;
  if (lost_) found->second->sends.lose_path(Status::kDeviceLost);
  adopted_.insert(fresh_.extract(found));
}

// -- use ---------------------------------------------------------------------------------------------------------

QueuePair* QueuePairs::find(std::uint32_t qpn) const {
  const auto found = adopted_.find(qpn);
  return found != adopted_.end() ? found->second.get() : nullptr;
}

PortChange QueuePairs::set_port(std::uint32_t qpn, std::uint16_t source_port) {
  const QueuePair& qp = at(qpn);
  if (qp.port == source_port) return PortChange::kDone;
  if (qp.sends.failed() || !shared_.connector.moves(source_port)) return PortChange::kRefused;
  shared_.slow_calls.start([this, handle = qp.handle.get(), qpn, source_port]() -> SlowCalls::Then {
    const bool moved = shared_.connector.move(handle, source_port);
    return [this, moved, qpn, source_port] {
      QueuePair* changed = find(qpn);
      if (changed == nullptr) return;
      if (moved) changed->port = source_port;
      shared_.sends.completions.push_back({.kind = Completion::Kind::kPortChanged,
                                           .status = moved ? Status::kSuccess : Status::kLocal,
                                           .qpn = qpn,
                                           .imm = source_port});
    };
  });
  return PortChange::kStarted;
}

void QueuePairs::post(std::uint32_t qpn, const WorkRequest& request) {
  QueuePair& qp = at(qpn);
  qp.sends.post(request);
  if (qp.active || !qp.sends.waiting()) return;
  qp.active = true;
  active_.push_back(&qp);
}

bool QueuePairs::flush() {
  bool any = false;
  for (QueuePair* qp : active_) {
    while (!qp->sends.failed() && qp->sends.hand_over(now())) any = true;
  }
  std::erase_if(active_, [](QueuePair* qp) {
    qp->active = qp->sends.waiting();
    return !qp->active;
  });
  return any;
}

bool QueuePairs::poll(Nanos now) {
  const std::size_t before = shared_.sends.completions.size();
  const bool any = shared_.completion_queue.poll([&](const ibv_wc& wc, Nanos seen) {
    QueuePair* qp = find(wc.qp_num);
    if (!SharedReceiveQueue::owns(wc)) {
      if (qp != nullptr) qp->sends.finish(wc, seen);
      return;
    }
    std::optional<Completion> completion = shared_.receives.finish(wc);
    if (!completion) return;
    if (qp == nullptr) completion->qpn = 0;  // destroyed: a fresh queue pair may have its number
    shared_.sends.completions.push_back(*completion);
    if (qp == nullptr) return;
    qp->received_bytes += wc.byte_len;
    ++qp->received_packets;
  });
  shared_.sends.polled_at = now;
  shared_.receives.post_waiting();
  if (any) ask_for_lost_paths(before);
  return any;
}

/// The NIC gives no reason when it has retried for long enough.
void QueuePairs::ask_for_lost_paths(std::size_t first) {
  std::vector<Completion>& completions = shared_.sends.completions;
  for (std::size_t i = first; i < completions.size(); ++i) {
    if (completions[i].kind != Completion::Kind::kQpBroken || completions[i].status != Status::kRetryExceeded) continue;
    completions[i] = outgrown(at(completions[i].qpn)).value_or(completions[i]);
  }
}

void QueuePairs::look_at_routes() {
  for (const auto& [qpn, qp] : adopted_) {
    if (!qp->connected || qp->loopback || qp->outgrown || !qp->sends.silent()) continue;
    if (const auto news = outgrown(*qp)) shared_.sends.completions.push_back(*news);
  }
}

/// What the engine is told if the packets of this queue pair are too long for the route.
std::optional<Completion> QueuePairs::outgrown(QueuePair& qp) {
  const auto fitting = shared_.routes.narrower(qp.remote, qp.path_mtu);
  if (!fitting) return std::nullopt;
  qp.outgrown = true;
  qp.sends.leave_path();
  return Completion{.kind = Completion::Kind::kPathMtu, .qpn = qp.identity.qpn, .imm = *fitting};
}

void QueuePairs::lose_paths(Status why) {
  if (why == Status::kDeviceLost) lost_ = true;
  for (const auto& [qpn, qp] : adopted_) {
    if (qp->loopback) {
      qp->sends.lose(why);
    } else {
      qp->sends.lose_path(why);
    }
  }
}

Nanos QueuePairs::deadline(Nanos now) const {
  if (std::ranges::any_of(active_, [](const QueuePair* qp) { return qp->sends.ready(); })) return now;
  Nanos when = kNever;
  for (const auto* list : {&stopping_, &ending_}) {
    for (const QueuePair* qp : *list) when = std::min(when, qp->end_by);
  }
  return when;
}

// -- end ---------------------------------------------------------------------------------------------------------

void QueuePairs::stop(std::uint32_t qpn) {
  QueuePair& qp = at(qpn);
  std::erase(active_, &qp);
  qp.active = false;
  qp.sends.stop();
  qp.end_by = now() + kDrainTime;
  stopping_.push_back(&qp);
}

void QueuePairs::destroy(std::uint32_t qpn) {
  adopt(qpn);
  QueuePair* qp = find(qpn);
  if (qp == nullptr || std::ranges::find(ending_, qp) != ending_.end()) return;
  std::erase(active_, qp);
  std::erase(stopping_, qp);
  if (!qp->connected || lost_) {
    end(*qp);
    return;
  }
  qp->sends.fail();
  qp->end_by = now() + kDrainTime;
  ending_.push_back(qp);
}

void QueuePairs::finish(Nanos now) {
  if (!stopping_.empty()) finish_stopping(now);
  if (!ending_.empty()) finish_ending(now);
}

void QueuePairs::finish_stopping(Nanos now) {
  std::erase_if(stopping_, [&](QueuePair* qp) {
    if (!(returned_receives(*qp) && qp->sends.stopped()) && !lost_ && now < qp->end_by) return false;
    if (!qp->sends.stopped()) qp->sends.abandon();
    poll(now);  // receives that ended before the event
    shared_.sends.completions.push_back({.kind = Completion::Kind::kStopped,
                                         .qpn = qp->identity.qpn,
                                         .imm = static_cast<std::uint32_t>(qp->received_packets)});
    return true;
  });
}

void QueuePairs::finish_ending(Nanos now) {
  for (std::size_t i = 0; i < ending_.size();) {
    QueuePair& qp = *ending_[i];
    const bool over = returned_receives(qp) && qp.sends.idle();
    if (!over && !lost_ && now < qp.end_by) {
      ++i;
      continue;
    }
    if (!over) tells_last_wqe_ = tells_last_wqe_ && qp.last_wqe;  // do not wait for it again
    ending_.erase(ending_.begin() + static_cast<std::ptrdiff_t>(i));
    end(qp);
  }
}

void QueuePairs::end(QueuePair& qp) {
  poll(now());  // receives that ended before the event
  std::shared_ptr<QueuePair> ended = std::move(adopted_.extract(qp.identity.qpn).mapped());
  shared_.slow_calls.start([this, ended = std::move(ended)]() mutable -> SlowCalls::Then {
    const std::size_t held = ended->sends.held();
    ended.reset();
    return [this, held] {
      // Some drivers leave the completions of a destroyed QP in the queue. They occupy entries, and the QP number may
      // be used again.
      poll(now());
      shared_.sends.held -= held;
    };
  });
}

}  // namespace paralet::verbs
