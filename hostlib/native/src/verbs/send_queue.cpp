// SPDX-License-Identifier: Apache-2.0
#include "verbs/send_queue.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "backend/rc_timing.hpp"

namespace paralet::verbs {
namespace {

constexpr std::size_t kBatch = 32;            // requests of a chain
constexpr std::uint64_t kSignalEvery = 16;    // requests; the last of a chain is signalled too
constexpr Nanos kFresh = 200 * kMillisecond;  // a latency older than this counts as unknown
// A long request says little about the round trip. Ahead of one, on an idle queue, a WRITE of no bytes measures it.
constexpr Nanos kProbeEvery = 10 * kMillisecond;
// Before a device has measured anything, a slow link is assumed: 1 Gbit/s, in nanoseconds per byte.
constexpr double kAssumedByteTime = 8;
constexpr Nanos kAccuracy = 4;  // a sample is accurate if it is at least 4 times its uncertainty

/// Whether a request takes a receive of the peer.
bool consumes(const WorkRequest& request) {
  return request.kind == WorkKind::kWriteImm || request.kind == WorkKind::kSend;
}

Status status_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return Status::kSuccess;
    case IBV_WC_REM_ACCESS_ERR:
      return Status::kRemoteAccess;
    case IBV_WC_REM_INV_REQ_ERR:
      return Status::kRemoteInvalid;
    case IBV_WC_REM_OP_ERR:
      return Status::kRemoteOperation;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return Status::kRetryExceeded;
    case IBV_WC_WR_FLUSH_ERR:
      return Status::kFlushed;
    case IBV_WC_FATAL_ERR:
      return Status::kDeviceLost;
    default:
      return Status::kLocal;
  }
}

/// Only fences READ.
Completion::Kind kind_of(const WorkRequest& request) {
  return request.kind == WorkKind::kRead ? Completion::Kind::kFenced : Completion::Kind::kSent;
}

void set_operation(ibv_send_wr& to, const WorkRequest& from) {
  to.wr.rdma = {.remote_addr = from.remote_address, .rkey = from.rkey};
  switch (from.kind) {
    case WorkKind::kWrite:
      to.opcode = IBV_WR_RDMA_WRITE;
      break;
    case WorkKind::kWriteImm:
      to.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      to.imm_data = htonl(from.imm);
      break;
    case WorkKind::kSend:
      to.opcode = IBV_WR_SEND;
      break;
    case WorkKind::kRead:
      to.opcode = IBV_WR_RDMA_READ;
      break;
  }
}

}  // namespace

void SendQueue::post(const WorkRequest& request) {
  if (stopping_) {
    withdrawn_.push_back({.request = request});
  } else if (failed_) {
    complete(request, Status::kFlushed);
  } else {
    waiting_.push_back(request);
  }
}

bool SendQueue::wants_probe(Nanos now) const {
  return posted_.empty() && !waiting_.empty() && waiting_.front().length >= kLongBytes &&
         now - measured_at_ >= kProbeEvery && context_.limit - context_.held >= 2;
}

bool SendQueue::hand_over(Nanos now) {
  if (stopping_ || broken_) return false;
  std::array<ibv_send_wr, kBatch> requests{};
  std::array<LocalMemory, kBatch> memory;
  const bool probe = wants_probe(now);
  if (probe) waiting_.push_front({.kind = WorkKind::kWrite});
  const std::size_t room = std::min(kSendDepth - posted_.size(), context_.limit - context_.held);
  const std::size_t count = std::min({room, waiting_.size(), requests.size()});
  if (count == 0) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const WorkRequest& from = waiting_[i];
    ibv_send_wr& to = requests[i];
    const bool inlined =
        from.kind != WorkKind::kRead && from.length <= inline_bytes_ && !context_.memory.on_device(from);
    if (inlined) {
      memory[i].sge = {.addr = reinterpret_cast<std::uint64_t>(from.data), .length = from.length, .lkey = 0};
    } else {
      memory[i] = context_.memory.local(from);
    }
    const std::uint64_t sequence = oldest_ + posted_.size() + i;
    to.wr_id = sequence;
    to.next = i + 1 < count ? &requests[i + 1] : nullptr;
    to.sg_list = &memory[i].sge;
    to.num_sge = from.length == 0 ? 0 : 1;
    if (i + 1 == count || sequence % kSignalEvery == 0 || (probe && i == 0)) to.send_flags |= IBV_SEND_SIGNALED;
    if (inlined && from.length != 0) to.send_flags |= IBV_SEND_INLINE;
    set_operation(to, from);
  }
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(qp_, requests.data(), &refused);
  const std::size_t taken =
      error == 0 || refused == nullptr ? count : static_cast<std::size_t>(refused - requests.data());
  for (std::size_t i = 0; i < taken; ++i) {
    const WorkRequest& request = waiting_.front();
    held_bytes_ += request.length;
    context_.held_bytes += request.length;
    bytes_ += request.length;
    packets_ += request.length == 0 ? 1 : (request.length + path_mtu_ - 1) / path_mtu_;
    posted_.push_back({.request = request,
                       .at = now,
                       .measured = held_bytes_ < kLongBytes,
                       .probe = probe && i == 0,
                       .temporary = std::move(memory[i].temporary)});
    waiting_.pop_front();
  }
  context_.held += taken;
  if (error != 0) lose(Status::kDeviceLost);  // there was room, so the queue pair or the device is broken
  return true;
}

bool SendQueue::ready() const {
  return !stopping_ && !broken_ && !waiting_.empty() && posted_.size() < kSendDepth && context_.held < context_.limit;
}

void SendQueue::finish(const ibv_wc& wc, Nanos seen) {
  if (broken_ || wc.wr_id < oldest_ || wc.wr_id - oldest_ >= posted_.size()) return;  // failed with an earlier one
  const std::uint64_t ended = wc.wr_id - oldest_;
  if (wc.status == IBV_WC_SUCCESS) measure(ended, seen);
  context_.held -= ended;
  while (oldest_ < wc.wr_id) complete_oldest(Status::kSuccess);
  if (wc.status == IBV_WC_SUCCESS) {
    --context_.held;
    complete_oldest(Status::kSuccess);
    return;
  }
  Status status = status_of(wc.status);
  if (status == Status::kRetryExceeded && context_.port_down) status = Status::kPortDown;
  const bool of_path = status == Status::kRetryExceeded || status == Status::kPortDown || status == Status::kFlushed;
  if (of_path && !failing_ && posted_.front().request.kind != WorkKind::kRead) {
    lose_path(status);
    broken_ = true;
  } else {
    fail_all(status);
  }
}

/// Requests up to number `last` of `posted_` have ended, after the last poll and before `seen`. Short requests measure
/// the round trip, long ones the time per byte, and neither gives a sample of the other.
void SendQueue::measure(std::uint64_t last, Nanos seen) {
  timeouts_ += expiries(overdue());
  progressed_at_ = seen;
  const Posted& newest = posted_[last];
  const Between ended{.earliest = std::min(std::max(context_.polled_at, newest.at), seen), .latest = seen};
  if (newest.measured) {
    measure_latency(newest.at, ended);
    period_ = ended;
    period_bytes_ = 0;
    measured_at_ = seen;
  } else {
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i <= last; ++i) bytes += posted_[i].request.length;
    measure_bytes(bytes, posted_.front().at, ended);
  }
  ended_ = ended;
}

void SendQueue::measure_latency(Nanos begun, const Between& ended) {
  const Nanos sample = std::max<Nanos>(1, ended.latest - begun);
  latency_ = latency_ == 0 ? sample : latency_ + (sample - latency_) / 8;
  min_latency_ = min_latency_ == 0 ? sample : std::min(min_latency_, sample);
  if (kAccuracy * ended.width() > sample) return;
  path_latency_ = path_latency_ == 0 ? sample : path_latency_ + (sample - path_latency_) / 8;
  const Nanos floor = ended.earliest - begun;
  path_floor_ = path_floor_ == 0 ? floor : std::min(path_floor_, floor);
}

/// Requests of `bytes` that were handed over at `begun`. Completions come at the rate of the bytes, a round trip after
/// the bytes themselves, so a period between two completions measures it. It goes on until the uncertainty of its two
/// ends is small beside it, and breaks where the NIC had nothing to send.
void SendQueue::measure_bytes(std::uint64_t bytes, Nanos begun, const Between& ended) {
  if (const Nanos idle_until = begun + path_floor_; idle_until > ended_.earliest) {
    period_ = {.earliest = idle_until, .latest = std::max(idle_until, ended_.latest)};
    period_bytes_ = 0;
  }
  period_bytes_ += bytes;
  const Nanos time = ended.middle() - period_.middle();
  if (period_bytes_ < kLongBytes || time <= 0 || kAccuracy * (period_.width() + ended.width()) > time) return;
  const double sample = static_cast<double>(time) / static_cast<double>(period_bytes_);
  byte_time_ = byte_time_ == 0 ? sample : (byte_time_ + sample) / 2;  // follows the share of the link quickly
  period_ = ended;
  period_bytes_ = 0;
}

void SendQueue::fail() {
  failing_ = true;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  VerbsLibrary::load().modify_qp(qp_, &attributes, IBV_QP_STATE);
  // The NIC returns what it holds as flushed. Until then it may read that memory. A broken queue pair has done so.
  if (posted_.empty() || broken_) fail_all(Status::kFlushed);
}

void SendQueue::lose(Status why) {
  if (failed_) return;
  context_.completions.push_back({.kind = Completion::Kind::kQpFailed, .status = why, .qpn = qp_->qp_num});
  if (why == Status::kDeviceLost) {
    fail_all(Status::kFlushed);  // no completion will come
  } else {
    fail();
  }
}

void SendQueue::lose_path(Status why) {
  if (failing_ || failed_ || broken_ || left_) return;
  context_.completions.push_back({.kind = Completion::Kind::kQpBroken, .status = why, .qpn = qp_->qp_num});
}

void SendQueue::stop() {
  stopping_ = true;
  fail();
}

std::vector<WorkRequest> SendQueue::take_back(std::uint32_t received) {
  std::uint32_t done = received - consumed_;
  std::vector<WorkRequest> out;
  for (const Posted& posted : withdrawn_) {
    if (done == 0) {
      if (!posted.probe) out.push_back(posted.request);
      continue;
    }
    if (!posted.probe) complete(posted.request, Status::kSuccess);
    if (consumes(posted.request)) --done;
  }
  withdrawn_.clear();
  return out;
}

void SendQueue::complete(const WorkRequest& request, Status status) {
  context_.completions.push_back({.kind = kind_of(request),
                                  .status = status,
                                  .qpn = qp_->qp_num,
                                  .cookie = request.cookie,
                                  .byte_length = request.length});
}

void SendQueue::complete_oldest(Status status) {
  const Posted& posted = posted_.front();
  if (!posted.probe || status != Status::kSuccess) complete(posted.request, status);
  if (status == Status::kSuccess && consumes(posted.request)) ++consumed_;
  held_bytes_ -= posted.request.length;
  context_.held_bytes -= posted.request.length;
  posted_.pop_front();
  ++oldest_;
}

void SendQueue::fail_all(Status status) {
  failed_ = true;
  flushing_ = posted_.size();
  if (stopping_) {
    context_.held_bytes -= std::exchange(held_bytes_, 0);
    oldest_ += posted_.size();
    std::ranges::move(posted_, std::back_inserter(withdrawn_));
    posted_.clear();
    for (const WorkRequest& request : waiting_) withdrawn_.push_back({.request = request});
  } else {
    while (!posted_.empty()) {
      complete_oldest(status);
      status = Status::kFlushed;
    }
    for (const WorkRequest& request : waiting_) complete(request, Status::kFlushed);
  }
  waiting_.clear();
}

/// How much longer the NIC was silent, when it was last polled, than what it holds should take. A late poll does not
/// count as silence of the path.
Nanos SendQueue::overdue() const {
  if (posted_.empty()) return 0;
  const double expected = byte_time_ > 0 ? static_cast<double>(held_bytes_) * byte_time_
                                         : static_cast<double>(context_.held_bytes) * kAssumedByteTime;
  const Nanos silence = context_.polled_at - std::max(posted_.front().at, progressed_at_);
  return std::max<Nanos>(0, silence - static_cast<Nanos>(expected));
}

/// Timeouts within such a time. As in `soft`, each is twice as long as the one before, within bounds.
std::uint64_t SendQueue::expiries(Nanos overdue) const {
  const Nanos first = std::max(context_.min_timeout, 4 * latency_);
  const Nanos most = std::max(first, std::min(kMaxAckTimeout, context_.retry_time / kMinTries));
  std::uint64_t out = 0;
  for (Nanos timeout = first; overdue >= timeout; timeout = std::min(2 * timeout, most)) {
    overdue -= timeout;
    ++out;
  }
  return out;
}

PathEstimate SendQueue::estimate() const {
  // A path that was slow a while ago may be fast now: an idle lane without recent samples is tried again. The round
  // trip of a lane that waits for its requests is at least the time that they are late.
  const bool unknown = posted_.empty() && context_.polled_at - progressed_at_ > kFresh;
  // Packets that the path delivers in a round trip.
  const double window = byte_time_ > 0 && latency_ > 0
                            ? static_cast<double>(latency_) / (byte_time_ * static_cast<double>(path_mtu_))
                            : static_cast<double>(kSendDepth);
  return {.smoothed_rtt = unknown ? 0 : std::max(latency_, overdue()),
          .fresh_until = progressed_at_ + kFresh,
          .window = static_cast<float>(std::clamp(window, 1.0, static_cast<double>(kSendDepth))),
          .app_limited = false};
}

}  // namespace paralet::verbs
