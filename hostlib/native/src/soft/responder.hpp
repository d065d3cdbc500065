// SPDX-License-Identifier: Apache-2.0
// The receiving half of a queue pair, without I/O: request packets in, payloads to their places, completions and
// acknowledgements out (IBTA volume 1, sections 9.7.4 and 9.7.5). It takes packets in PSN order. What it does with a
// packet that comes early is agreed with the requester:
//
//   go-back-N         drops it and reports the gap once, by a NAK (go_back_n.hpp)
//   selective repeat  keeps it (reassembly.hpp), and lists in each acknowledgement what it keeps
//
// Acknowledgements coalesce until taken. One is urgent when the requester waits for it: it asked for one in the middle
// of a message, a gap opened or closed, or kUrgentPackets packets are not acknowledged.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.hpp"
#include "soft/rc_qp_options.hpp"
#include "soft/reassembly.hpp"
#include "wire/wire.hpp"

namespace paralet {

class Responder {
 public:
  /// `shared` outlives the responder.
  explicit Responder(RcQpShared& shared);

  /// Where the missing payloads of the WRITE in progress go, without that of its last packet. Empty when no WRITE is in
  /// progress.
  [[nodiscard]] std::span<std::byte> placement_target() const;
  /// A request packet for this QP whose ICRC was verified. Its payload may already be in its final place. `marked`: a
  /// switch has set its congestion mark. `arrived`: when it came to the socket.
  void on_request(const wire::Packet& packet, bool marked = false, Nanos arrived = 0);
  /// Whether the acknowledgement that is due must not be delayed: the sender waits for it, or it is a NAK.
  [[nodiscard]] bool acknowledgement_urgent() const { return nak_due_ || ack_urgent_; }
  /// The receive buffer of an unfinished SEND, nullptr when there is none. Post it again when the QP is destroyed.
  [[nodiscard]] const ReceiveBuffer* held_buffer() const {
    return in_message_ && !message_is_write_ ? &send_buffer_ : nullptr;
  }
  /// Whether packets were accepted that no acknowledgement covers yet.
  [[nodiscard]] bool has_unacknowledged() const { return unacknowledged_ > 0; }
  /// The acknowledgement that is due, if any. Its payload is valid until the next call of on_request.
  std::optional<OutgoingPacket> take_acknowledgement(Nanos now = 0);
  /// Accepts nothing from now on. Returns the messages that have arrived so far.
  std::uint32_t stop();

  [[nodiscard]] const QpCounters& counters() const { return shared_.counters; }

 private:
  void respond_nak(std::uint8_t syndrome);
  void note_gap(std::int32_t distance);
  void take_early(std::int32_t distance, const wire::Packet& packet);
  [[nodiscard]] std::byte* place_of(std::uint32_t distance, const wire::Packet& packet) const;
  bool take(const wire::Packet& packet);
  std::optional<std::uint8_t> accept(const wire::Packet& packet);  ///< the NAK syndrome, or nothing when taken
  std::optional<std::uint8_t> accept_write(const wire::Packet& packet);
  std::optional<std::uint8_t> accept_send(const wire::Packet& packet);

  static constexpr unsigned kUrgentPackets = 16;

  RcQpShared& shared_;

  Reassembly early_;                   ///< packets behind a missing one
  Nanos newest_arrived_ = 0;           ///< the newest packet that was no copy
  std::uint64_t seen_behind_gap_ = 0;  ///< bit i: PSN expected_psn_ + 1 + i came since the NAK
  std::uint64_t write_address_ = 0;    ///< next byte of the WRITE in progress
  ReceiveBuffer send_buffer_;          ///< buffer of the SEND in progress
  std::uint32_t expected_psn_;
  std::uint32_t arrived_ = 0;  ///< messages that took a receive
  std::uint32_t msn_ = 0;
  std::uint32_t write_rkey_ = 0;
  std::uint32_t write_remaining_ = 0;
  std::uint32_t message_length_ = 0;  ///< bytes of the message so far
  unsigned unacknowledged_ = 0;       ///< packets taken since the last acknowledgement
  bool gap_reported_ = false;
  bool in_message_ = false;
  bool message_is_write_ = false;
  bool ack_due_ = false;
  bool ack_urgent_ = false;
  bool stopped_ = false;
  std::optional<std::uint8_t> nak_due_;
};

}  // namespace paralet
