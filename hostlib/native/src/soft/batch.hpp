// SPDX-License-Identifier: Apache-2.0
// Packets of one QP that go to the kernel in one call (UDP_SEGMENT).
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.hpp"
#include "soft/requester.hpp"
#include "wire/icrc.hpp"
#include "wire/wire.hpp"

namespace paralet {

/// The pieces of one batch. Payloads are sent from where they are.
class Batch {
 public:
  static constexpr std::size_t kMaxPackets = 60;    ///< the kernel takes 64
  static constexpr std::size_t kMaxBytes = 65'000;  ///< to the kernel, a batch is one IP packet

  /// Takes the packets that the requester sends next, at most `limit`, in place of those before. Returns their number.
  std::size_t take(Requester& requester, const UdpFlow& flow, std::size_t limit, Nanos now);

  /// What `take` has taken, if anything. Valid until the next call.
  [[nodiscard]] std::span<iovec> pieces() { return std::span(pieces_).first(used_); }
  /// Bytes of every packet but the last. 0: it is one packet.
  [[nodiscard]] std::uint16_t segment_bytes() const { return segment_bytes_; }
  /// UDP payloads of all packets.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kSmallPayload = 256;  ///< bytes up to which copying costs less than another piece
  static constexpr std::size_t kBetweenBytes = 8 + sizeof(wire::Header) + kSmallPayload;

  std::size_t used_ = 0;
  std::size_t bytes_ = 0;
  std::uint16_t segment_bytes_ = 0;
  /// What is between payloads: the end of each packet (padding and ICRC), the header of the next, and small payloads.
  std::array<std::byte, (kMaxPackets + 1) * kBetweenBytes> between_;
  std::array<iovec, 2 * kMaxPackets + 1> pieces_;
};

}  // namespace paralet
