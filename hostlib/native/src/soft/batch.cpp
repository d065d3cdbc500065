// SPDX-License-Identifier: Apache-2.0
#include "soft/batch.hpp"

#include <cstring>

#include "base/prefetch.hpp"

namespace paralet {

std::size_t Batch::take(Requester& requester, const UdpFlow& flow, std::size_t limit, Nanos now) {
  std::size_t count = 0;
  std::size_t segment = 0;
  used_ = 0;
  bytes_ = 0;
  std::byte* piece = between_.data();  // start of the current piece
  std::byte* end = piece;
  while (count < limit) {
    if (!requester.can_send(now)) break;
    const std::size_t size = requester.next_packet_bytes();
    // All segments of a batch but the last have one size. A longer packet starts the next batch.
    if (count > 0 && (size > segment || bytes_ + size > kMaxBytes)) break;
    const auto packet = requester.next_packet(now);
    const std::span<const std::byte> payload = packet->payload;
    const std::span header(end, packet->header.length);
    std::memcpy(header.data(), packet->header.bytes.data(), header.size());
    end += header.size();
    if (!payload.empty()) prefetch_to_read(payload.data() + payload.size(), payload.size());  // the next payload
    const std::uint32_t crc = icrc(flow, static_cast<std::uint16_t>(count), header, payload, packet->pad);
    if (payload.size() > kSmallPayload) {
      pieces_[used_++] = {.iov_base = piece, .iov_len = static_cast<std::size_t>(end - piece)};
      pieces_[used_++] = {.iov_base = const_cast<std::byte*>(payload.data()), .iov_len = payload.size()};
      piece = end;
    } else if (!payload.empty()) {
      std::memcpy(end, payload.data(), payload.size());
      end += payload.size();
    }
    std::memset(end, 0, packet->pad);
    put_icrc(end + packet->pad, crc);
    end += packet->pad + wire::kIcrcBytes;
    if (count == 0) segment = size;
    bytes_ += size;
    ++count;
    if (size < segment) break;
  }
  if (count > 0) pieces_[used_++] = {.iov_base = piece, .iov_len = static_cast<std::size_t>(end - piece)};
  segment_bytes_ = static_cast<std::uint16_t>(count > 1 ? segment : 0);
  return count;
}

}  // namespace paralet
