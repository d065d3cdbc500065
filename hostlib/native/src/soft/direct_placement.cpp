// SPDX-License-Identifier: Apache-2.0
#include "soft/direct_placement.hpp"

#include <algorithm>
#include <cstring>

namespace paralet {

std::span<iovec> DirectPlacement::prepare(std::span<std::byte> target, std::size_t payload_bytes) {
  target_ = target.data();
  payload_bytes_ = payload_bytes;
  packets_ = std::min({target.size() / payload_bytes, wire::kMaxDatagramBytes / packet_bytes(), kMaxPackets});
  std::byte* frame = frames_.data();
  std::size_t used = 0;
  pieces_[used++] = {.iov_base = frame, .iov_len = wire::kBthBytes};
  for (std::size_t i = 0; i < packets_; ++i, frame += kFrameBytes) {
    pieces_[used++] = {.iov_base = target_ + i * payload_bytes, .iov_len = payload_bytes};
    // One packet's ICRC and the next one's BTH.
    const std::size_t between = i + 1 < packets_ ? kFrameBytes : wire::kIcrcBytes;
    pieces_[used++] = {.iov_base = frame + wire::kBthBytes, .iov_len = between};
  }
  const std::size_t placed = packets_ * packet_bytes();
  pieces_[used++] = {.iov_base = whole_.data() + placed, .iov_len = wire::kMaxDatagramBytes - placed};
  return std::span(pieces_).first(used);
}

std::span<std::byte> DirectPlacement::gather(std::size_t first, std::size_t bytes) {
  std::size_t position = first * packet_bytes();
  std::byte* end = whole_.data();
  const auto append = [&](std::span<const std::byte> piece) {
    const std::size_t taken = std::min(piece.size(), bytes - position);
    std::memmove(end, piece.data(), taken);
    end += taken;
    position += taken;
  };
  for (std::size_t i = first; i < packets_ && position < bytes; ++i) {
    append(frame(i).first(wire::kBthBytes));
    append(payload(i));
    append(frame(i).last(wire::kIcrcBytes));
  }
  if (position < bytes) append(std::span(whole_).subspan(position));
  return {whole_.data(), end};
}

}  // namespace paralet
