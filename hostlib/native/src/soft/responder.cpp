// SPDX-License-Identifier: Apache-2.0
#include "soft/responder.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/prefetch.hpp"

namespace paralet {
namespace {

using wire::Syndrome;

// 0.64 ms (table 47): enough for a receiver to post buffers again, and far below any timeout.
constexpr std::uint8_t kRnrTimerCode = 12;

constexpr auto kInvalid = static_cast<std::uint8_t>(Syndrome::kNakInvalidRequest);
constexpr auto kAccess = static_cast<std::uint8_t>(Syndrome::kNakRemoteAccess);
constexpr auto kNotReady = static_cast<std::uint8_t>(static_cast<std::uint8_t>(Syndrome::kRnrNak) | kRnrTimerCode);

/// Distance a - b of two PSNs as a signed 24-bit number (section 9.7.1).
std::int32_t psn_distance(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(((a - b) & wire::kPsnMask) << 8) >> 8;
}

}  // namespace

Responder::Responder(RcQpShared& shared)
    : shared_(shared), early_(shared.options.reassembly), expected_psn_(shared.options.remote_first_psn) {}

void Responder::respond_nak(std::uint8_t syndrome) {
  if (gap_reported_) return;  // one NAK per gap; the requester's timer covers a lost NAK (section 9.7.5.2.8)
  gap_reported_ = true;
  seen_behind_gap_ = 0;
  nak_due_ = syndrome;
}

/// A packet `distance` PSNs after the missing one. One that comes a second time shows that the requester went back and
/// that the missing packet was lost again, so the gap is reported again. A lower PSN alone would not show this: packets
/// of one round may arrive out of order.
void Responder::note_gap(std::int32_t distance) {
  const std::uint64_t bit = distance <= 64 ? std::uint64_t{1} << (distance - 1) : 0;
  if ((seen_behind_gap_ & bit) != 0) gap_reported_ = false;
  respond_nak(static_cast<std::uint8_t>(Syndrome::kNakSequence));
  seen_behind_gap_ |= bit;
}

std::span<std::byte> Responder::placement_target() const {
  // While packets wait for a missing one, it would be placed where theirs belong.
  if (stopped_ || !early_.empty()) return {};
  if (!in_message_ || !message_is_write_ || write_remaining_ <= shared_.options.path_mtu) return {};
  std::byte* const target = shared_.device.memory.resolve(write_rkey_, write_address_, write_remaining_);
  if (target == nullptr) return {};
  return {target, (write_remaining_ - 1) / shared_.options.path_mtu * shared_.options.path_mtu};
}

/// Where the payload of an early packet, `distance` PSNs behind the missing one, belongs if the missing packets are
/// valid: all but the last packet of a WRITE have the path MTU. nullptr if it belongs to no WRITE in progress, or if
/// direct placement has put a run of packets there, whose other payloads would be overwritten.
std::byte* Responder::place_of(std::uint32_t distance, const wire::Packet& packet) const {
  if (!in_message_ || !message_is_write_ || !packet.kind.write || packet.kind.first) return nullptr;
  const std::uint64_t offset = std::uint64_t{distance} * shared_.options.path_mtu;
  const std::uint64_t end = offset + packet.payload.size();
  const bool fits = packet.kind.last ? end == write_remaining_
                                     : end < write_remaining_ && packet.payload.size() == shared_.options.path_mtu;
  std::byte* const target =
      fits ? shared_.device.memory.resolve(write_rkey_, write_address_, write_remaining_) : nullptr;
  if (target == nullptr) return nullptr;
  const std::less_equal<const std::byte*> not_after;
  const std::byte* const payload = packet.payload.data();
  if (not_after(target, payload) && !not_after(target + write_remaining_, payload)) return nullptr;
  return target + offset;
}

void Responder::on_request(const wire::Packet& packet, bool marked, Nanos arrived) {
  if (stopped_) return;
  ++shared_.counters.rx_packets;
  if (marked) ++shared_.counters.rx_marked;
  const std::int32_t distance = psn_distance(packet.psn, expected_psn_);
  if (distance < 0) {
    ++shared_.counters.duplicates;
    ack_due_ = true;  // its acknowledgement was lost (section 9.7.5.1.3)
    return;
  }
  newest_arrived_ = arrived;
  const bool early = !early_.empty();
  if (distance > 0) {
    ++shared_.counters.out_of_order;
    take_early(distance, packet);
    return;
  }
  if (!take(packet)) return;
  for (auto next = early_.take(expected_psn_); next && take(next->packet);) next = early_.take(expected_psn_);
  if (early) ack_due_ = ack_urgent_ = true;  // the requester waits for news of the gap
}

/// A packet `distance` PSNs after the missing one.
void Responder::take_early(std::int32_t distance, const wire::Packet& packet) {
  if (!early_.enabled()) {
    note_gap(distance);
    return;
  }
  const auto behind = static_cast<std::uint32_t>(distance);
  if (!packet.kind.refused && packet.payload.size() <= shared_.options.path_mtu)
    early_.keep(behind, packet, place_of(behind, packet));
  ack_due_ = ack_urgent_ = true;
}

/// Takes the expected packet. False when it was refused.
bool Responder::take(const wire::Packet& packet) {
  if (const auto refusal = accept(packet)) {
    // RNR and errors leave the expected PSN as it is. With go-back-N the packets in flight behind are dropped as out of
    // order.
    gap_reported_ = false;
    respond_nak(*refusal);
    return false;
  }
  shared_.counters.rx_bytes += packet.payload.size();
  expected_psn_ = (expected_psn_ + 1) & wire::kPsnMask;
  gap_reported_ = false;
  nak_due_.reset();
  if (packet.kind.last) msn_ = (msn_ + 1) & wire::kPsnMask;
  ack_due_ = ack_due_ || packet.ack_request;
  // A request in the middle of a message comes from a sender whose window is full. One at its end may be the last
  // packet for now, and can wait.
  ++unacknowledged_;
  if (packet.ack_request && (!packet.kind.last || unacknowledged_ >= kUrgentPackets)) ack_urgent_ = true;
  return true;
}

std::optional<std::uint8_t> Responder::accept(const wire::Packet& packet) {
  const auto bytes = static_cast<std::uint32_t>(packet.payload.size());
  if (packet.kind.refused) return kInvalid;

  // Order of packets within a message, and their sizes (sections 9.7.4.1.1 to 9.7.4.1.5).
  if (packet.kind.first == in_message_) return kInvalid;
  if (!packet.kind.first && packet.kind.write != message_is_write_) return kInvalid;
  if (bytes > shared_.options.path_mtu) return kInvalid;
  if (!packet.kind.last && bytes != shared_.options.path_mtu) return kInvalid;
  if (!packet.kind.first && packet.kind.last && bytes == 0) return kInvalid;

  const bool needs_buffer = packet.kind.write ? packet.kind.imm : packet.kind.first;
  if (needs_buffer && shared_.device.receive_queue.empty()) return kNotReady;

  if (const auto refusal = packet.kind.write ? accept_write(packet) : accept_send(packet)) return refusal;
  in_message_ = !packet.kind.last;
  message_is_write_ = packet.kind.write;
  return std::nullopt;
}

std::optional<std::uint8_t> Responder::accept_write(const wire::Packet& packet) {
  const auto bytes = static_cast<std::uint32_t>(packet.payload.size());
  const std::uint64_t address = packet.kind.first ? packet.remote_address : write_address_;
  const std::uint32_t rkey = packet.kind.first ? packet.rkey : write_rkey_;
  const std::uint32_t remaining = packet.kind.first ? packet.dma_length : write_remaining_;
  if (packet.kind.last ? bytes != remaining : bytes >= remaining) return kInvalid;
  // The first packet is checked against the whole range. Each later packet is checked again, because the region may
  // be deregistered between packets.
  if (remaining > 0) {
    std::byte* target = shared_.device.memory.resolve(rkey, address, remaining);
    if (target != nullptr) {
      if (target != packet.payload.data()) {
        // memmove: the payload may be in the target of another WRITE (direct_placement.hpp).
        std::memmove(target, packet.payload.data(), bytes);
        prefetch_to_write(target + bytes, std::min(remaining - bytes, shared_.options.path_mtu));
      }
    } else if (!shared_.device.memory.retired(rkey)) {
      return kAccess;
    }
  }
  message_length_ = (packet.kind.first ? 0 : message_length_) + bytes;
  write_address_ = address + bytes;
  write_rkey_ = rkey;
  write_remaining_ = remaining - bytes;
  if (packet.kind.imm) {
    shared_.device.completions.push_back({.kind = Completion::Kind::kReceivedWriteImm,
                                          .status = Status::kSuccess,
                                          .qpn = shared_.options.qpn,
                                          .cookie = shared_.device.receive_queue.back().cookie,
                                          .byte_length = message_length_,
                                          .imm = packet.imm});
    shared_.device.receive_queue.pop_back();
    ++arrived_;
  }
  return std::nullopt;
}

std::optional<std::uint8_t> Responder::accept_send(const wire::Packet& packet) {
  const auto bytes = static_cast<std::uint32_t>(packet.payload.size());
  if (packet.kind.first) {
    if (bytes > shared_.device.receive_queue.back().length) return kInvalid;
    send_buffer_ = shared_.device.receive_queue.back();
    shared_.device.receive_queue.pop_back();
    message_length_ = 0;
  }
  if (bytes > send_buffer_.length - message_length_) return kInvalid;
  if (bytes > 0) std::memcpy(send_buffer_.data + message_length_, packet.payload.data(), bytes);
  message_length_ += bytes;
  if (packet.kind.last) {
    shared_.device.completions.push_back({.kind = Completion::Kind::kReceivedSend,
                                          .status = Status::kSuccess,
                                          .qpn = shared_.options.qpn,
                                          .cookie = send_buffer_.cookie,
                                          .byte_length = message_length_,
                                          .imm = packet.imm});
    ++arrived_;
  }
  return std::nullopt;
}

std::optional<OutgoingPacket> Responder::take_acknowledgement(Nanos now) {
  if (nak_due_ || ack_due_) {
    unacknowledged_ = 0;
    ack_urgent_ = false;
  }
  OutgoingPacket out;
  if (nak_due_) {
    const std::uint8_t syndrome = *nak_due_;
    nak_due_.reset();
    ack_due_ = false;  // a NAK acknowledges everything before it
    out.header = wire::ack_header(shared_.options.remote_qpn, expected_psn_, syndrome, msn_);
    return out;
  }
  if (!ack_due_) return std::nullopt;
  ack_due_ = false;
  out.header = wire::ack_header(shared_.options.remote_qpn, (expected_psn_ - 1) & wire::kPsnMask,
                                static_cast<std::uint8_t>(Syndrome::kAck) | wire::kAckNoCredits, msn_);
  if (shared_.options.mark_counts)
    wire::append_word(out.header, static_cast<std::uint32_t>(shared_.counters.rx_marked));
  if (shared_.options.host_delays) {
    const Nanos waited = std::clamp<Nanos>(now - newest_arrived_, 0, UINT32_MAX);
    wire::append_word(out.header, static_cast<std::uint32_t>(waited));
  }
  out.payload = early_.bitmap(expected_psn_);
  return out;
}

std::uint32_t Responder::stop() {
  stopped_ = true;
  early_.clear();
  nak_due_.reset();
  ack_due_ = ack_urgent_ = false;
  unacknowledged_ = 0;
  return arrived_;
}

}  // namespace paralet
