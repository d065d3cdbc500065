// SPDX-License-Identifier: Apache-2.0
// Payloads that the kernel copies straight to where they belong. Packets of a QP come in order, and many of them one
// behind the other: while a WRITE is in progress, what arrives next is received as if it were the packets that go on
// with it. What turns out to be something else has been written only where the WRITE has yet to write, and is taken
// from there.
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

  /// Where to receive any datagram: payloads of `payload_bytes` each one behind the other to `target`, as
  /// many as there is room for, and what is left beside. `target` holds one payload at least.
  std::span<iovec> prepare(std::span<std::byte> target, std::size_t payload_bytes);

  /// How many packets there is a place for, of packet_bytes() each.
  [[nodiscard]] std::size_t packets() const { return packets_; }
  [[nodiscard]] std::size_t packet_bytes() const { return payload_bytes_ + kFrameBytes; }
  [[nodiscard]] std::span<const std::byte> frame(std::size_t packet) const {
    return std::span(frames_).subspan(packet * kFrameBytes, kFrameBytes);
  }
  [[nodiscard]] std::span<const std::byte> payload(std::size_t packet) const {
    return {target_ + packet * payload_bytes_, payload_bytes_};
  }
  /// Of a datagram of `bytes`, all from packet `first` on as it came. Valid until prepare.
  std::span<std::byte> gather(std::size_t first, std::size_t bytes);

 private:
  std::byte* target_ = nullptr;
  std::size_t payload_bytes_ = 0;
  std::size_t packets_ = 0;
  std::array<std::byte, kMaxPackets * kFrameBytes> frames_{};
  std::array<std::byte, wire::kMaxDatagramBytes> whole_{};  ///< what is left beside lies where it does in the datagram
  std::array<iovec, 2 * kMaxPackets + 2> pieces_{};
};

}  // namespace paralet
