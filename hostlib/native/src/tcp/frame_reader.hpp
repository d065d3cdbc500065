// SPDX-License-Identifier: Apache-2.0
// The receiving half of a QP over TCP: bytes of its connections in, memory and completions out. Every rkey, address and
// length is checked. No sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/memory_table.hpp"
#include "backend/work.hpp"
#include "base/ring.hpp"
#include "tcp/frames.hpp"

namespace paralet::tcp {

/// What the QPs of a device share to receive. It outlives them.
struct ReceiveContext {
  const MemoryTable& memory;
  Ring<ReceiveBuffer>& buffers;  ///< the last one is in caches
  std::vector<Completion>& completions;
};

class FrameReader {
 public:
  FrameReader(ReceiveContext& context, std::uint32_t qpn) : context_(context), qpn_(qpn) {}

  /// Where the next bytes of the stream belong: the rest of a payload, cut to what `sink` holds where its region has
  /// been retired. Empty between payloads, where bytes go through `take`, and when the payload was refused.
  std::span<std::byte> target(std::span<std::byte> sink);
  /// This many bytes have been written to the target.
  void placed(std::size_t bytes);
  /// Takes bytes of the stream that were received elsewhere. Returns how many: fewer than all when it has no buffer for
  /// a message, or has refused a frame.
  std::size_t take(std::span<const std::byte> bytes);

  /// There is no receive buffer for a message. `take`, with no bytes too, goes on when there is one.
  [[nodiscard]] bool stalled() const { return stalled_; }
  /// Why a frame was refused: its connection ends.
  [[nodiscard]] std::optional<Status> refused() const { return refused_; }
  /// Frames that have arrived completely.
  [[nodiscard]] std::uint64_t frames() const { return frames_; }
  /// Messages among them: SENDs and WRITEs with immediate data, modulo 2^32.
  [[nodiscard]] std::uint32_t messages() const { return messages_; }
  [[nodiscard]] std::uint64_t payload_bytes() const { return payload_bytes_; }
  /// Whether a ping has arrived since the last call.
  bool take_ping() { return std::exchange(pinged_, false); }
  /// Whether the payload of a WRITE has arrived completely since the last call.
  bool take_written() { return std::exchange(written_, false); }

  /// Forgets a frame that has arrived in part: its connection has ended, and the next one brings it from its beginning.
  void restart();

 private:
  enum class Stage : std::uint8_t { kHeader, kPayload, kEnd };

  bool begin();
  bool end();
  bool refuse(Status status);

  ReceiveContext& context_;
  std::uint32_t qpn_;
  Stage stage_ = Stage::kHeader;
  bool stalled_ = false;
  std::optional<Status> refused_;
  std::uint8_t header_bytes_ = 0;
  std::array<std::byte, kFrameBytes> header_{};
  Frame frame_;
  std::uint32_t left_ = 0;               ///< bytes of the payload
  std::optional<ReceiveBuffer> buffer_;  ///< of a SEND
  std::uint64_t frames_ = 0;
  std::uint32_t messages_ = 0;
  std::uint64_t payload_bytes_ = 0;
  bool pinged_ = false;
  bool written_ = false;
};

}  // namespace paralet::tcp
