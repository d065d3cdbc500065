// SPDX-License-Identifier: Apache-2.0
#include "verbs/send_queue.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

namespace paralet::verbs {
namespace {

constexpr std::size_t kBatch = 32;            // requests of a chain
constexpr std::uint64_t kSignalEvery = 16;    // requests; the last of a chain is signalled too
constexpr Nanos kFresh = 200 * kMillisecond;  // a latency older than this counts as unknown

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
  if (failed_) {
    complete(kind_of(request), request.cookie, 0, Status::kFlushed);
  } else {
    waiting_.push_back(request);
  }
}

bool SendQueue::hand_over(Nanos now) {
  std::array<ibv_send_wr, kBatch> requests{};
  std::array<LocalMemory, kBatch> memory;
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
    if (i + 1 == count || sequence % kSignalEvery == 0) to.send_flags |= IBV_SEND_SIGNALED;
    if (inlined && from.length != 0) to.send_flags |= IBV_SEND_INLINE;
    set_operation(to, from);
  }
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(qp_, requests.data(), &refused);
  const std::size_t taken =
      error == 0 || refused == nullptr ? count : static_cast<std::size_t>(refused - requests.data());
  for (std::size_t i = 0; i < taken; ++i) {
    const WorkRequest& request = waiting_.front();
    posted_.push_back({.cookie = request.cookie,
                       .length = request.length,
                       .kind = kind_of(request),
                       .at = now,
                       .temporary = std::move(memory[i].temporary)});
    bytes_ += request.length;
    packets_ += request.length == 0 ? 1 : (request.length + path_mtu_ - 1) / path_mtu_;
    waiting_.pop_front();
  }
  context_.held += taken;
  if (error != 0) lose(Status::kDeviceLost);  // there was room, so the queue pair or the device is broken
  return true;
}

bool SendQueue::ready() const {
  return !waiting_.empty() && posted_.size() < kSendDepth && context_.held < context_.limit;
}

void SendQueue::finish(const ibv_wc& wc, Nanos now) {
  if (wc.wr_id < oldest_ || wc.wr_id - oldest_ >= posted_.size()) return;  // failed with an earlier one
  context_.held -= wc.wr_id - oldest_;
  while (oldest_ < wc.wr_id) complete_oldest(Status::kSuccess, now);
  if (wc.status == IBV_WC_SUCCESS) {
    --context_.held;
    complete_oldest(Status::kSuccess, now);
  } else {
    fail_all(status_of(wc.status));
  }
}

void SendQueue::fail() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  VerbsLibrary::load().modify_qp(qp_, &attributes, IBV_QP_STATE);
  // The NIC returns what it holds as flushed. Until then it may read that memory.
  if (posted_.empty()) fail_all(Status::kFlushed);
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

void SendQueue::complete(Completion::Kind kind, std::uint64_t cookie, std::uint32_t length, Status status) {
  context_.completions.push_back(
      {.kind = kind, .status = status, .qpn = qp_->qp_num, .cookie = cookie, .byte_length = length});
}

void SendQueue::complete_oldest(Status status, Nanos now) {
  const Posted& posted = posted_.front();
  complete(posted.kind, posted.cookie, posted.length, status);
  if (status == Status::kSuccess) {
    const Nanos sample = std::max<Nanos>(1, now - posted.at);
    latency_ = latency_ == 0 ? sample : latency_ + (sample - latency_) / 8;
    min_latency_ = min_latency_ == 0 ? sample : std::min(min_latency_, sample);
    sampled_at_ = now;
  }
  posted_.pop_front();
  ++oldest_;
}

void SendQueue::fail_all(Status status) {
  failed_ = true;
  flushing_ = posted_.size();
  while (!posted_.empty()) {
    complete_oldest(status, 0);
    status = Status::kFlushed;
  }
  for (const WorkRequest& request : waiting_) complete(kind_of(request), request.cookie, 0, Status::kFlushed);
  waiting_.clear();
}

PathEstimate SendQueue::estimate(Nanos polled_at) const {
  // A path that was slow a while ago may be fast now: an idle lane without recent samples is tried again.
  const bool unknown = posted_.empty() && polled_at - sampled_at_ > kFresh;
  return {.smoothed_rtt = unknown ? 0 : latency_,
          .fresh_until = sampled_at_ + kFresh,
          .window = kSendDepth,
          .hungry = false};
}

}  // namespace paralet::verbs
