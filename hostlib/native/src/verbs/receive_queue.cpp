// SPDX-License-Identifier: Apache-2.0
#include "verbs/receive_queue.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "verbs/port.hpp"

namespace paralet::verbs {
namespace {

// Receives up to this size arrive in memory that is registered once, and are copied from there.
constexpr std::uint32_t kSmallBytes = 512;

}  // namespace

SharedReceiveQueue::SharedReceiveQueue(ibv_pd* pd, const Memory& memory, std::uint32_t depth)
    : memory_(memory), small_(std::size_t{depth} * kSmallBytes), receives_(depth) {
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = depth;
  attributes.attr.max_sge = 1;
  queue_.reset(VerbsLibrary::load().create_srq(pd, &attributes));
  if (!queue_) fail("cannot create a shared receive queue", errno);
  for (std::uint64_t slot = std::min(depth, attributes.attr.max_wr); slot-- > 0;) free_.push_back(slot);
  small_mr_.reset(VerbsLibrary::load().reg_mr_iova(
      pd, small_.data(), small_.size(), reinterpret_cast<std::uint64_t>(small_.data()), IBV_ACCESS_LOCAL_WRITE));
  if (!small_mr_) fail("cannot register memory (is `ulimit -l` large enough?)", errno);
}

std::byte* SharedReceiveQueue::small_buffer(std::uint64_t slot) { return small_.data() + slot * kSmallBytes; }

void SharedReceiveQueue::post(const ReceiveBuffer& buffer) {
  waiting_.push_back(buffer);
  post_waiting();
}

void SharedReceiveQueue::post_waiting() {
  while (!waiting_.empty() && !free_.empty()) {
    const ReceiveBuffer& buffer = waiting_.front();
    const std::uint64_t slot = free_.back();
    LocalMemory memory;
    if (buffer.length <= kSmallBytes) {
      memory.sge = {.addr = reinterpret_cast<std::uint64_t>(small_buffer(slot)),
                    .length = buffer.length,
                    .lkey = small_mr_->lkey};
    } else {
      memory = memory_.temporary(buffer.data, buffer.length, IBV_ACCESS_LOCAL_WRITE);
    }
    ibv_recv_wr request{};
    request.wr_id = kMark | slot;
    request.sg_list = &memory.sge;
    request.num_sge = buffer.length == 0 ? 0 : 1;
    ibv_recv_wr* refused = nullptr;
    if (ibv_post_srq_recv(queue_.get(), &request, &refused) != 0) return;  // full: again after the next completion
    receives_[slot] = {buffer, std::move(memory.temporary)};
    free_.pop_back();
    waiting_.pop_front();
  }
}

std::optional<Completion> SharedReceiveQueue::finish(const ibv_wc& wc) {
  const std::uint64_t slot = wc.wr_id & ~kMark;
  const Receive receive = std::exchange(receives_[slot], {});
  free_.push_back(slot);
  if (wc.status != IBV_WC_SUCCESS) {  // the message that took the buffer will not come
    waiting_.push_back(receive.buffer);
    return std::nullopt;
  }
  const bool with_imm = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
  if (!with_imm && receive.buffer.length <= kSmallBytes && wc.byte_len != 0) {
    std::memcpy(receive.buffer.data, small_buffer(slot), wc.byte_len);
  }
  return Completion{.kind = with_imm ? Completion::Kind::kReceivedWriteImm : Completion::Kind::kReceivedSend,
                    .status = Status::kSuccess,
                    .qpn = wc.qp_num,
                    .cookie = receive.buffer.cookie,
                    .byte_length = wc.byte_len,
                    .imm = with_imm ? ntohl(wc.imm_data) : 0};
}

}  // namespace paralet::verbs
