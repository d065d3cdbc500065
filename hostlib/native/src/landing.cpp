// SPDX-License-Identifier: Apache-2.0
#include "landing.hpp"

#include <cstring>

namespace paralet {

std::span<iovec> Landing::prepare(std::byte* target, std::size_t payload_bytes, std::size_t packets, std::size_t rest) {
  target_ = target;
  payload_bytes_ = payload_bytes;
  packets_ = packets;
  rest_ = rest;
  std::byte* frame = frames_.data();
  std::size_t used = 0;
  pieces_[used++] = {.iov_base = frame, .iov_len = wire::kBthBytes};
  for (std::size_t i = 0; i < packets; ++i, frame += kFrameBytes) {
    pieces_[used++] = {.iov_base = target + i * payload_bytes, .iov_len = payload_bytes};
    // One packet's ICRC and the next one's BTH.
    const std::size_t between = i + 1 < packets ? kFrameBytes : wire::kIcrcBytes;
    pieces_[used++] = {.iov_base = frame + wire::kBthBytes, .iov_len = between};
  }
  if (rest > 0) pieces_[used++] = {.iov_base = whole_.data() + whole_.size() - rest, .iov_len = rest};
  return std::span(pieces_).first(used);
}

std::span<std::byte> Landing::gather(std::size_t first) {
  std::byte* end = whole_.data();
  const auto append = [&end](std::span<const std::byte> bytes) {
    std::memmove(end, bytes.data(), bytes.size());
    end += bytes.size();
  };
  for (std::size_t i = first; i < packets_; ++i) {
    append(frame(i).first(wire::kBthBytes));
    append(payload(i));
    append(frame(i).last(wire::kIcrcBytes));
  }
  if (rest_ > 0) append({whole_.data() + whole_.size() - rest_, rest_});
  return {whole_.data(), end};
}

}  // namespace paralet
