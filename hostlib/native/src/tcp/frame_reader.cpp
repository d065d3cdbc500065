// SPDX-License-Identifier: Apache-2.0
#include "tcp/frame_reader.hpp"

#include <algorithm>
#include <cstring>

namespace paralet::tcp {

bool FrameReader::refuse(Status status) {
  refused_ = status;
  return false;
}

std::span<std::byte> FrameReader::target(std::span<std::byte> sink) {
  if (stage_ != Stage::kPayload || refused_) return {};
  if (buffer_) return {buffer_->data + (frame_.length - left_), left_};
  // Looked up again each time: the region may have been given back meanwhile.
  const std::uint64_t address = frame_.address + (frame_.length - left_);
  if (std::byte* const place = context_.memory.resolve(frame_.rkey, address, left_)) return {place, left_};
  if (context_.memory.retired(frame_.rkey)) return sink.first(std::min<std::size_t>(left_, sink.size()));
  refuse(Status::kRemoteAccess);
  return {};
}

void FrameReader::placed(std::size_t bytes) {
  payload_bytes_ += bytes;
  left_ -= static_cast<std::uint32_t>(bytes);
  if (left_ > 0) return;
  stage_ = Stage::kEnd;
  end();
}

std::size_t FrameReader::take(std::span<const std::byte> bytes) {
  std::array<std::byte, 4096> sink;
  std::span<const std::byte> rest = bytes;
  while (!refused_) {
    if (stage_ == Stage::kEnd) {
      if (!end()) break;
    } else if (stage_ == Stage::kPayload) {
      if (rest.empty()) break;
      const std::span<std::byte> to = target(sink);
      const std::span<const std::byte> part = rest.first(std::min(to.size(), rest.size()));
      if (part.empty()) break;
      std::memcpy(to.data(), part.data(), part.size());
      rest = rest.subspan(part.size());
      placed(part.size());
    } else {
      const std::size_t part = std::min(kFrameBytes - header_bytes_, rest.size());
      std::copy_n(rest.begin(), part, header_.begin() + header_bytes_);
      header_bytes_ = static_cast<std::uint8_t>(header_bytes_ + part);
      rest = rest.subspan(part);
      if (header_bytes_ < kFrameBytes || !begin()) break;
    }
  }
  return bytes.size() - rest.size();
}

/// The header is complete. False when the frame was refused, or has to wait for a receive buffer.
bool FrameReader::begin() {
  const auto frame = decode_frame(header_);
  if (!frame) return refuse(Status::kRemoteInvalid);
  if (frame->kind == WorkKind::kSend) {
    stalled_ = context_.buffers.empty();
    if (stalled_) return false;
    if (frame->length > context_.buffers.back().length) return refuse(Status::kRemoteInvalid);
    buffer_ = context_.buffers.back();
    context_.buffers.pop_back();
  } else if (frame->length > 0 && context_.memory.resolve(frame->rkey, frame->address, frame->length) == nullptr &&
             !context_.memory.retired(frame->rkey)) {
    return refuse(Status::kRemoteAccess);
  }
  frame_ = *frame;
  left_ = frame_.length;
  header_bytes_ = 0;
  stage_ = left_ > 0 ? Stage::kPayload : Stage::kEnd;
  return true;
}

/// The frame is complete. False when its message has to wait for a receive buffer.
bool FrameReader::end() {
  if (frame_.kind == WorkKind::kWriteImm) {
    stalled_ = context_.buffers.empty();
    if (stalled_) return false;
    buffer_ = context_.buffers.back();
    context_.buffers.pop_back();
  }
  if (frame_.kind != WorkKind::kWrite) {
    context_.completions.push_back(
        {.kind = frame_.kind == WorkKind::kSend ? Completion::Kind::kReceivedSend : Completion::Kind::kReceivedWriteImm,
         .qpn = qpn_,
         .cookie = buffer_->cookie,
         .byte_length = frame_.length,
         .imm = frame_.imm});
    ++messages_;
  }
  if (frame_.kind == WorkKind::kWrite && frame_.length == 0) pinged_ = true;
  if (frame_.kind != WorkKind::kSend && frame_.length > 0) written_ = true;
  buffer_.reset();
  ++frames_;
  stage_ = Stage::kHeader;
  return true;
}

void FrameReader::restart() {
  if (buffer_) context_.buffers.push_back(*buffer_);
  buffer_.reset();
  stage_ = Stage::kHeader;
  stalled_ = false;
  pinged_ = false;
  written_ = false;
  header_bytes_ = 0;
  left_ = 0;
}

}  // namespace paralet::tcp
