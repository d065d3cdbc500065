// SPDX-License-Identifier: Apache-2.0
// Packets from the middle of a WRITE whose payloads the kernel copies straight to where they belong: what comes next is
// known before it is received, as packets of a QP come in order. What turns out to be something else has been written
// only where the WRITE has yet to write, and is put together again from there.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <span>

#include "wire.hpp"

namespace paralet {

class Landing {
 public:
  static constexpr std::size_t kMaxPackets = 64;  ///< of a batch; the kernel joins no more
  /// BTH and ICRC: a packet of this kind without its payload.
  static constexpr std::size_t kFrameBytes = wire::kBthBytes + wire::kIcrcBytes;

  /// Where to receive `packets` packets whose payloads of `payload_bytes` each go to `target` one behind the other, and
  /// `rest` bytes of a shorter packet behind them. At most kMaxPackets and one datagram in all.
  std::span<iovec> prepare(std::byte* target, std::size_t payload_bytes, std::size_t packets, std::size_t rest);

  [[nodiscard]] std::size_t packets() const { return packets_; }
  [[nodiscard]] std::span<const std::byte> frame(std::size_t packet) const {
    return std::span(frames_).subspan(packet * kFrameBytes, kFrameBytes);
  }
  [[nodiscard]] std::span<const std::byte> payload(std::size_t packet) const {
    return {target_ + packet * payload_bytes_, payload_bytes_};
  }
  /// The packets from `first` on as they came, one behind the other, with the shorter one. Valid until prepare.
  std::span<std::byte> gather(std::size_t first);

 private:
  std::byte* target_ = nullptr;
  std::size_t payload_bytes_ = 0;
  std::size_t packets_ = 0;
  std::size_t rest_ = 0;
  std::array<std::byte, kMaxPackets * kFrameBytes> frames_{};
  std::array<std::byte, 65536> whole_{};  ///< the shorter packet lies at its end
  std::array<iovec, 2 * kMaxPackets + 2> pieces_{};
};

}  // namespace paralet
