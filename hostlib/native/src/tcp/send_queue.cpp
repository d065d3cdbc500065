// SPDX-License-Identifier: Apache-2.0
#include "tcp/send_queue.hpp"

#include <algorithm>
#include <cstring>

namespace paralet::tcp {

void SendQueue::post(const WorkRequest& request) {
  works_.push_back({.request = request});
  if (request.kind != WorkKind::kSend) ++writes_;
  posted_bytes_ += kFrameBytes + request.length;
}

void SendQueue::gather(Batch& batch, std::size_t most) const {
  batch.used = batch.bytes = 0;
  std::byte* piece = batch.between.data();  // start of the current piece
  std::byte* end = piece;
  const auto close_piece = [&] {
    if (end == piece) return;
    batch.pieces[batch.used++] = {.iov_base = piece, .iov_len = static_cast<std::size_t>(end - piece)};
    piece = end;
  };
  std::size_t offset = offset_;
  const std::size_t last = std::min(works_.size(), next_ + Batch::kFrames);
  for (std::size_t i = next_; i < last && batch.bytes < most; ++i, offset = 0) {
    const WorkRequest& request = works_[i].request;
    if (offset < kFrameBytes) {
      std::array<std::byte, kFrameBytes> header;
      encode(Frame{.kind = request.kind,
                   .length = request.length,
                   .rkey = request.rkey,
                   .imm = request.imm,
                   .address = request.remote_address},
             header);
      end = std::copy(header.begin() + static_cast<std::ptrdiff_t>(offset), header.end(), end);
      batch.bytes += kFrameBytes - offset;
      offset = kFrameBytes;
    }
    const std::size_t sent = offset - kFrameBytes;
    const std::size_t left = request.length - sent;
    if (left == 0) continue;
    if (request.length <= Batch::kShortPayload) {
      std::memcpy(end, request.data + sent, left);
      end += left;
      batch.bytes += left;
      continue;
    }
    close_piece();
    const std::size_t taken = std::min(left, most - std::min(most, batch.bytes));
    if (taken == 0) break;
    batch.pieces[batch.used++] = {.iov_base = const_cast<std::byte*>(request.data + sent), .iov_len = taken};
    batch.bytes += taken;
  }
  close_piece();
}

void SendQueue::handed_over(std::size_t bytes) {
  stream_bytes_ += bytes;
  offset_ += bytes;
  while (next_ < works_.size() && offset_ >= size(works_[next_])) {
    offset_ -= size(works_[next_]);
    works_[next_].end = stream_bytes_ - offset_;
    ++next_;
  }
}

/// Removes the oldest request.
void SendQueue::pop() {
  if (works_.front().request.kind != WorkKind::kSend) --writes_;
  works_.pop_front();
  ++first_;
}

void SendQueue::finish(Status status, std::uint32_t qpn, std::vector<Completion>& completions) {
  const WorkRequest& request = works_.front().request;
  completions.push_back({.kind = Completion::Kind::kSent,
                         .status = status,
                         .qpn = qpn,
                         .cookie = request.cookie,
                         .byte_length = request.length});
  if (request.kind != WorkKind::kWrite) ++consumed_;
  if (status == Status::kSuccess) finished_ += request.length;
  pop();
}

bool SendQueue::acknowledge(std::uint64_t stream_bytes, std::uint32_t qpn, std::vector<Completion>& completions) {
  bool any = false;
  acknowledged_ = stream_bytes;
  while (next_ > 0 && works_.front().end <= stream_bytes && !unanswered(0)) {
    front_ = works_.front().end;
    finish(Status::kSuccess, qpn, completions);
    --next_;
    any = true;
  }
  return any;
}

bool SendQueue::answer(std::uint64_t frames, std::uint32_t qpn, std::vector<Completion>& completions) {
  for (std::size_t i = 0; i < next_; ++i) {
    if (!unanswered(i)) continue;
    if (frames <= first_ + i || frames > first_ + next_) return false;
    taken_ = frames;
    acknowledge(acknowledged_, qpn, completions);
    return true;
  }
  return false;
}

/// What has arrived of the oldest request counts as sent, though it is sent again, or never completely.
void SendQueue::leave_front() {
  finished_ = payload_bytes();
  front_ = acknowledged_;
}

std::uint64_t SendQueue::payload_bytes() const {
  const std::uint64_t of_front = acknowledged_ > front_ + kFrameBytes ? acknowledged_ - front_ - kFrameBytes : 0;
  return finished_ + (works_.empty() ? 0 : std::min<std::uint64_t>(of_front, works_[0].request.length));
}

bool SendQueue::resume(std::uint64_t frames, std::uint32_t qpn, std::vector<Completion>& completions) {
  // Frames that have arrived had left: a frame that has not left completely cannot be among them.
  if (frames < first_ || frames - first_ > next_) return false;
  if (frames == first_) leave_front();
  while (first_ < frames) finish(Status::kSuccess, qpn, completions);
  next_ = offset_ = 0;
  stream_bytes_ = posted_bytes_ = acknowledged_ = front_ = 0;
  for (std::size_t i = 0; i < works_.size(); ++i) posted_bytes_ += size(works_[i]);
  return true;
}

void SendQueue::fail(Status status, std::uint32_t qpn, std::vector<Completion>& completions) {
  leave_front();
  for (; !works_.empty(); status = Status::kFlushed) finish(status, qpn, completions);
  next_ = offset_ = 0;
  posted_bytes_ = stream_bytes_;
}

std::vector<WorkRequest> SendQueue::take_back(std::uint32_t arrived, std::uint32_t qpn,
                                              std::vector<Completion>& completions) {
  std::uint32_t done = arrived - consumed_;
  std::vector<WorkRequest> out;
  while (!works_.empty()) {
    const WorkRequest request = works_.front().request;
    if (done == 0) {
      leave_front();
      out.push_back(request);
      pop();
      continue;
    }
    finish(Status::kSuccess, qpn, completions);
    if (request.kind != WorkKind::kWrite) --done;
  }
  next_ = offset_ = 0;
  posted_bytes_ = stream_bytes_;
  return out;
}

}  // namespace paralet::tcp
