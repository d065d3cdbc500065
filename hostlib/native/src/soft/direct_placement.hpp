// SPDX-License-Identifier: Apache-2.0
// Direct placement: the kernel copies payloads straight to their final place. While a WRITE is in progress, the next
// datagrams are received on the assumption that they continue it, because the packets of a QP arrive in order and
// usually back to back. Other packets have then been written only to places that the WRITE still has to write, and are
// taken from there.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <span>

#include "wire/wire.hpp"

namespace paralet {

class DirectPlacement {
 public:
  static constexpr std::size_t kMaxPackets = 64;  ///< of a batch; the kernel joins no more
  /// BTH and ICRC: a packet from the middle of a WRITE without its payload.
  static constexpr std::size_t kFrameBytes = wire::kBthBytes + wire::kIcrcBytes;

  /// The pieces to receive a datagram into: as many payloads of `payload_bytes` as fit go to `target`, one behind the
  /// other, and the rest of the datagram elsewhere. `target` holds at least one payload.
  std::span<iovec> prepare(std::span<std::byte> target, std::size_t payload_bytes);

  /// Packets that there is a place for, of packet_bytes() each.
  [[nodiscard]] std::size_t packets() const { return packets_; }
  [[nodiscard]] std::size_t packet_bytes() const { return payload_bytes_ + kFrameBytes; }
  [[nodiscard]] std::span<const std::byte> frame(std::size_t packet) const {
    return std::span(frames_).subspan(packet * kFrameBytes, kFrameBytes);
  }
  [[nodiscard]] std::span<const std::byte> payload(std::size_t packet) const {
    return {target_ + packet * payload_bytes_, payload_bytes_};
  }
  /// The part of a datagram of `bytes` from packet `first` on, contiguous as it was sent. Valid until prepare.
  std::span<std::byte> gather(std::size_t first, std::size_t bytes);

 private:
  std::byte* target_ = nullptr;
  std::size_t payload_bytes_ = 0;
  std::size_t packets_ = 0;
  std::array<std::byte, kMaxPackets * kFrameBytes> frames_{};
  std::array<std::byte, wire::kMaxDatagramBytes> whole_{};  ///< the rest of a datagram, at its offset in the datagram
  std::array<iovec, 2 * kMaxPackets + 2> pieces_{};
};

}  // namespace paralet
