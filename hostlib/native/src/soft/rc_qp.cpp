// SPDX-License-Identifier: Apache-2.0
#include "soft/rc_qp.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/rc_timing.hpp"
#include "base/prefetch.hpp"

namespace paralet {
namespace {

using wire::Opcode;
using wire::Syndrome;

// 0.64 ms (table 47): enough for a receiver to post buffers again, and far below any timeout.
constexpr std::uint8_t kRnrTimerCode = 12;
constexpr std::uint64_t kMaxAckInterval = 64;
constexpr unsigned kMaxBackoff = 6;

/// Distance a - b of two PSNs as a signed 24-bit number (section 9.7.1).
std::int32_t psn_distance(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(((a - b) & wire::kPsnMask) << 8) >> 8;
}

Opcode opcode_for(WorkKind kind, bool first, bool last) {
  if (kind == WorkKind::kSend) {
    if (first) return last ? Opcode::kSendOnly : Opcode::kSendFirst;
    return last ? Opcode::kSendLast : Opcode::kSendMiddle;
  }
  const bool imm = kind == WorkKind::kWriteImm;
  if (first && last) return imm ? Opcode::kWriteOnlyImm : Opcode::kWriteOnly;
  if (first) return Opcode::kWriteFirst;
  if (last) return imm ? Opcode::kWriteLastImm : Opcode::kWriteLast;
  return Opcode::kWriteMiddle;
}

/// Seeds packet spacing by QPN, so that the QPs of one device space their packets differently.
DelayControlOptions with_seed(DelayControlOptions options, std::uint32_t qpn) {
  options.seed = qpn;
  return options;
}

}  // namespace

RcQp::RcQp(const RcQpOptions& options, const DelayControlOptions& control, const MemoryTable& memory,
           ReceiveQueue& receive_queue, std::vector<Completion>& completions)
    : options_(options),
      memory_(memory),
      receive_queue_(receive_queue),
      completions_(completions),
      control_(with_seed(control, options.qpn)),
      expected_psn_(options.remote_first_psn) {}

std::uint32_t RcQp::psn_of(std::uint64_t position) const {
  return (options_.first_psn + static_cast<std::uint32_t>(position)) & wire::kPsnMask;
}

void RcQp::post(const WorkRequest& request) {
  const std::uint64_t packets =
      std::max<std::uint64_t>(1, (request.length + options_.path_mtu - 1) / options_.path_mtu);
  const Work work{.request = request, .first = posted_, .end = posted_ + packets};
  if (failed_) {
    complete(work, Status::kFlushed);
    return;
  }
  posted_ += packets;
  work_.push_back(work);
}

bool RcQp::can_send(Nanos now) const {
  if (failed_ || next_ == posted_ || now < rnr_until_) return false;
  if (probing_ && in_flight() > 0) return false;
  const double window = control_.window();
  if (window >= 1.0) return static_cast<double>(in_flight()) + 1.0 <= window;
  return in_flight() == 0 && now >= pace_until_;
}

bool RcQp::should_send(Nanos now) const {
  if (!can_send(now)) return false;
  if (in_flight() == 0) return true;
  const double room = control_.window() - static_cast<double>(in_flight());
  return room >= std::min(static_cast<double>(posted_ - next_), min_room());
}

/// Packets that the window must have room for before any is sent.
double RcQp::min_room() const {
  return std::max(1.0, std::min(static_cast<double>(options_.burst), control_.window() / 2));
}

std::uint64_t RcQp::sendable(Nanos now) const {
  if (!can_send(now)) return 0;
  if (probing_) return 1;
  const auto window = static_cast<std::uint64_t>(std::ceil(control_.window()));
  return std::min(posted_ - next_, window - in_flight());
}

std::size_t RcQp::next_packet_bytes() const {
  std::size_t index = cursor_;
  while (next_ >= work_[index].end) ++index;
  const Work& work = work_[index];
  const bool last = next_ + 1 == work.end;
  const std::uint64_t offset = (next_ - work.first) * options_.path_mtu;
  const std::size_t payload = last ? work.request.length - offset : options_.path_mtu;
  const std::size_t reth = work.request.kind != WorkKind::kSend && next_ == work.first ? wire::kRethBytes : 0;
  const std::size_t imm = work.request.kind == WorkKind::kWriteImm && last ? wire::kImmBytes : 0;
  return wire::kBthBytes + reth + imm + ((payload + 3) & ~std::size_t{3}) + wire::kIcrcBytes;
}

std::optional<OutgoingPacket> RcQp::next_packet(Nanos now) {
  if (!can_send(now)) return std::nullopt;
  while (next_ >= work_[cursor_].end) ++cursor_;
  const Work& work = work_[cursor_];
  const WorkRequest& request = work.request;
  const bool first = next_ == work.first;
  const bool last = next_ + 1 == work.end;
  const std::uint64_t offset = (next_ - work.first) * options_.path_mtu;
  const std::uint32_t bytes = last ? static_cast<std::uint32_t>(request.length - offset) : options_.path_mtu;
  const auto pad = static_cast<std::uint8_t>((4 - (bytes & 3)) & 3);

  // Request acknowledgements often enough that the window never stalls, and with the last packet that can be sent.
  const auto window = static_cast<std::uint64_t>(std::max(1.0, control_.window()));
  ++since_ack_request_;
  const bool ack_request = probing_ || next_ + 1 == posted_ || in_flight() + 1 >= window ||
                           since_ack_request_ >= std::clamp<std::uint64_t>(window / 2, 1, kMaxAckInterval);
  if (ack_request) since_ack_request_ = 0;
  if (in_flight() >= sent_.size()) grow_sent();
  sent_[next_ & (sent_.size() - 1)] = {.at = static_cast<std::uint64_t>(now) & (~std::uint64_t{0} >> 1),
                                       .ack_requested = ack_request};

  OutgoingPacket out;
  out.header = wire::data_header(opcode_for(request.kind, first, last), options_.remote_qpn, psn_of(next_), ack_request,
                                 pad, request.remote_address, request.rkey, request.length, request.imm);
  out.payload = {request.data + offset, bytes};
  out.pad = pad;

  ++counters_.tx_packets;
  counters_.tx_bytes += bytes;
  if (next_ < highest_sent_) ++counters_.retransmits;
  ++next_;
  highest_sent_ = std::max(highest_sent_, next_);
  if (control_.window() < 1.0) pace_until_ = now + control_.draw_pacing_interval();
  if (timer_ == kNever) {
    last_progress_ = now;
    arm_timer(now);
  }
  return out;
}

void RcQp::arm_timer(Nanos now) {
  const Nanos first = control_.timeout(probes_early() ? options_.probe_after : options_.min_timeout);
  const Nanos most = std::max(first, std::min(kMaxAckTimeout, options_.retry_time / kMinTries));
  const Nanos timeout = std::min(first << std::min(consecutive_timeouts_, kMaxBackoff), most);
  // Back-off and NAK-only peers must not extend the retry time.
  timer_ = std::min(now + timeout, last_progress_ + options_.retry_time);
}

/// Whether the next expiry of the timer is an early probe, long before a timeout. A lost acknowledgement, a lost NAK
/// and a lost last packet have no successor that reveals them, so only a probe finds them early.
bool RcQp::probes_early() const {
  return !probed_early_ && consecutive_timeouts_ == 0 &&
         control_.timeout(options_.probe_after) < control_.timeout(options_.min_timeout);
}

void RcQp::complete(const Work& work, Status status) {
  completions_.push_back({.kind = Completion::Kind::kSent,
                          .status = status,
                          .qpn = options_.qpn,
                          .cookie = work.request.cookie,
                          .byte_length = work.request.length,
                          .imm = work.request.imm});
}

void RcQp::advance(std::uint64_t acknowledged_end, Nanos now, Nanos base_rtt) {
  if (acknowledged_end <= unacked_) return;
  if (probing_ && ack_requested_before(acknowledged_end)) {
    if (consecutive_timeouts_ > 0) control_.undo_timeout();
    // A late answer to the probe means that earlier acknowledgements were lost: it gives no round-trip sample.
    const Nanos since_probe = now - static_cast<Nanos>(sent_[unacked_ & (sent_.size() - 1)].at);
    if (since_probe > 2 * control_.smoothed_rtt()) sent_once_from_ = std::max(sent_once_before_, unacked_ + 1);
    // Packets that are not acknowledged are still on their way. The packets behind a gap would report it.
    if (highest_sent_ < posted_) next_ = highest_sent_;
  } else if (probing_ && consecutive_timeouts_ == 0 && acknowledged_end < highest_sent_) {
    control_.on_loss(now);
  }
  probing_ = false;
  probed_early_ = false;
  const std::uint64_t newest = acknowledged_end - 1;
  const Nanos rtt = newest >= sent_once_from_ ? now - static_cast<Nanos>(sent_[newest & (sent_.size() - 1)].at) : 0;
  const auto packets = static_cast<unsigned>(acknowledged_end - unacked_);
  // The window held the sender back if it had no room for a burst before this acknowledgement.
  const bool limited = static_cast<double>(in_flight()) + min_room() > control_.window();
  control_.on_ack(now, packets, rtt, base_rtt, limited);

  unacked_ = acknowledged_end;
  next_ = std::max(next_, unacked_);
  while (!work_.empty() && work_.front().end <= unacked_) {
    complete(work_.front(), Status::kSuccess);
    if (work_.front().request.kind != WorkKind::kWrite) ++consumed_;
    work_.pop_front();
    if (cursor_ > 0) --cursor_;
  }
  consecutive_timeouts_ = 0;
  last_progress_ = now;
  if (unacked_ == highest_sent_) {
    timer_ = kNever;
  } else {
    arm_timer(now);
  }
}

void RcQp::grow_sent() {
  // Grow at once to what will be needed soon, or a QP that was idle would allocate four times per message.
  const auto soon = std::min<std::uint64_t>(posted_ - unacked_, static_cast<std::uint64_t>(control_.window()));
  std::vector<Sent> larger(std::max<std::size_t>({8, 2 * sent_.size(), std::bit_ceil(soon)}));
  for (std::uint64_t position = unacked_; position < highest_sent_; ++position) {
    larger[position & (larger.size() - 1)] = sent_[position & (sent_.size() - 1)];
  }
  sent_ = std::move(larger);
}

void RcQp::release_spare() {
  if (!idle()) return;
  work_.release();
  sent_ = std::vector<Sent>();  // an empty list in braces would leave the capacity as it is
}

/// Whether any packet behind the oldest and before `end` requested an acknowledgement.
bool RcQp::ack_requested_before(std::uint64_t end) const {
  for (std::uint64_t position = unacked_ + 1; position < end; ++position) {
    if (sent_[position & (sent_.size() - 1)].ack_requested) return true;
  }
  return false;
}

void RcQp::go_back(Nanos now) {
  next_ = unacked_;
  cursor_ = 0;
  since_ack_request_ = 0;
  sent_once_from_ = highest_sent_;
  probing_ = false;
  arm_timer(now);
}

void RcQp::rewind(const Checkpoint& checkpoint) {
  next_ = checkpoint.next;
  highest_sent_ = checkpoint.highest_sent;
  since_ack_request_ = checkpoint.since_ack_request;
  counters_ = checkpoint.counters;
  cursor_ = 0;
  if (unacked_ == highest_sent_) timer_ = kNever;
}

void RcQp::on_acknowledge(const wire::Packet& packet, Nanos now, Nanos base_rtt) {
  if (failed_) return;
  const std::uint32_t delta = (packet.psn - psn_of(unacked_)) & wire::kPsnMask;
  const bool outstanding = delta < highest_sent_ - unacked_;
  const auto kind = static_cast<std::uint8_t>(packet.syndrome & 0xE0);
  if (kind == static_cast<std::uint8_t>(Syndrome::kAck)) {
    if (!outstanding) {
      ++counters_.stale_acks;
      return;
    }
    advance(unacked_ + delta + 1, now, base_rtt);
    return;
  }
  // A NAK names the packet that it rejects and acknowledges all packets before it (section 9.7.5.2).
  if (!outstanding) {
    ++counters_.stale_acks;
    return;
  }
  ++counters_.naks_received;
  advance(unacked_ + delta, now, base_rtt);
  if (kind == static_cast<std::uint8_t>(Syndrome::kRnrNak)) {
    ++counters_.rnr_received;
    last_progress_ = now;  // the receiver is alive: RNR retries have no limit (RNR retry 7, section 9.7.5.2.8)
    consecutive_timeouts_ = 0;
    rnr_until_ = now + wire::rnr_delay_ns(packet.syndrome & 0x1F);
    go_back(now);
    timer_ = std::max(timer_, rnr_until_);
    return;
  }
  switch (static_cast<Syndrome>(packet.syndrome)) {
    case Syndrome::kNakSequence:
      control_.on_loss(now);
      go_back(now);
      return;
    case Syndrome::kNakInvalidRequest:
      fail(Status::kRemoteInvalid);
      return;
    case Syndrome::kNakRemoteAccess:
      fail(Status::kRemoteAccess);
      return;
    default:
      fail(Status::kRemoteOperation);
      return;
  }
}

Nanos RcQp::deadline() const {
  if (failed_) return kNever;
  Nanos when = timer_;
  if (next_ != posted_ && in_flight() == 0) {
    when = std::min(when, std::max(rnr_until_, control_.window() < 1.0 ? pace_until_ : 0));
  }
  return when;
}

void RcQp::on_timer(Nanos now) {
  if (failed_ || now < timer_) return;
  if (now - last_progress_ >= options_.retry_time) {
    fail(Status::kRetryExceeded);
    return;
  }
  if (probes_early()) {
    probed_early_ = true;
  } else {
    ++counters_.timeouts;
    ++consecutive_timeouts_;
    control_.on_timeout(now, consecutive_timeouts_ > 1);
  }
  probe(now);
}

/// Sends only the oldest packet again (F-RTO, RFC 5682). An acknowledgement that also covers a later packet which had
/// requested one proves that the peer was only slow: the responder accepts packets in order, so none was lost.
void RcQp::probe(Nanos now) {
  pace_until_ = now;
  const std::uint64_t sent_once = probing_ ? sent_once_before_ : sent_once_from_;
  go_back(now);
  probing_ = true;
  sent_once_before_ = sent_once;
}

void RcQp::on_path_changed(Nanos now) {
  if (failed_ || all_acknowledged()) return;
  consecutive_timeouts_ = 0;  // they belong to the old path
  pace_until_ = now;
  go_back(now);
}

void RcQp::fail(Status status) {
  if (failed_) return;
  failed_ = true;
  timer_ = kNever;
  bool first = true;
  while (!work_.empty()) {
    complete(work_.front(), first ? status : Status::kFlushed);
    work_.pop_front();
    first = false;
  }
  cursor_ = 0;
  next_ = unacked_ = highest_sent_ = posted_;
}

std::uint32_t RcQp::stop() {
  stopped_ = true;
  failed_ = true;
  timer_ = kNever;
  nak_due_.reset();
  ack_due_ = ack_urgent_ = false;
  unacknowledged_ = 0;
  return arrived_;
}

std::vector<WorkRequest> RcQp::take_back(std::uint32_t arrived) {
  std::uint32_t done = arrived - consumed_;
  std::vector<WorkRequest> out;
  for (; !work_.empty(); work_.pop_front()) {
    const Work& work = work_.front();
    if (done == 0) {
      out.push_back(work.request);
      continue;
    }
    complete(work, Status::kSuccess);
    if (work.request.kind != WorkKind::kWrite) --done;
  }
  cursor_ = 0;
  next_ = unacked_ = highest_sent_ = posted_;
  return out;
}

// -- responder --------------------------------------------------------------------------------------------------

void RcQp::respond_nak(std::uint8_t syndrome) {
  if (gap_reported_) return;  // one NAK per gap; the requester's timer covers a lost NAK (section 9.7.5.2.8)
  gap_reported_ = true;
  seen_behind_gap_ = 0;
  nak_due_ = syndrome;
}

/// A packet `distance` PSNs after the missing one. One that comes a second time shows that the requester went back and
/// that the missing packet was lost again, so the gap is reported again. A lower PSN alone would not show this: packets
/// of one round may arrive out of order.
void RcQp::note_gap(std::int32_t distance) {
  const std::uint64_t bit = distance <= 64 ? std::uint64_t{1} << (distance - 1) : 0;
  if ((seen_behind_gap_ & bit) != 0) gap_reported_ = false;
  respond_nak(static_cast<std::uint8_t>(Syndrome::kNakSequence));
  seen_behind_gap_ |= bit;
}

std::span<std::byte> RcQp::placement_target() const {
  if (stopped_) return {};
  if (failed_ || !in_message_ || !message_is_write_ || write_remaining_ <= options_.path_mtu) return {};
  std::byte* const target = memory_.resolve(write_rkey_, write_address_, write_remaining_);
  if (target == nullptr) return {};
  return {target, (write_remaining_ - 1) / options_.path_mtu * options_.path_mtu};
}

void RcQp::on_request(const wire::Packet& packet) {
  if (stopped_) return;
  ++counters_.rx_packets;
  const std::int32_t distance = psn_distance(packet.psn, expected_psn_);
  if (distance < 0) {
    ++counters_.duplicates;
    ack_due_ = true;  // its acknowledgement was lost (section 9.7.5.1.3)
    return;
  }
  if (distance > 0) {
    ++counters_.out_of_order;
    note_gap(distance);
    return;
  }
  if (const auto refusal = accept(packet)) {
    // RNR and errors leave the expected PSN as it is. The packets in flight behind are dropped as out of order.
    gap_reported_ = false;
    respond_nak(*refusal);
    return;
  }
  counters_.rx_bytes += packet.payload.size();
  expected_psn_ = (expected_psn_ + 1) & wire::kPsnMask;
  gap_reported_ = false;
  nak_due_.reset();
  if (packet.kind.last) msn_ = (msn_ + 1) & wire::kPsnMask;
  ack_due_ = ack_due_ || packet.ack_request;
  // A request in the middle of a message comes from a sender whose window is full. One at its end may be the last
  // packet for now, and can wait.
  ++unacknowledged_;
  if (packet.ack_request && (!packet.kind.last || unacknowledged_ >= kUrgentPackets)) ack_urgent_ = true;
}

std::optional<std::uint8_t> RcQp::accept(const wire::Packet& packet) {
  constexpr auto kInvalid = static_cast<std::uint8_t>(Syndrome::kNakInvalidRequest);
  constexpr auto kAccess = static_cast<std::uint8_t>(Syndrome::kNakRemoteAccess);
  constexpr auto kRnr = static_cast<std::uint8_t>(static_cast<std::uint8_t>(Syndrome::kRnrNak) | kRnrTimerCode);
  const auto bytes = static_cast<std::uint32_t>(packet.payload.size());
  if (packet.kind.refused) return kInvalid;

  // Order of packets within a message, and their sizes (sections 9.7.4.1.1 to 9.7.4.1.5).
  if (packet.kind.first == in_message_) return kInvalid;
  if (!packet.kind.first && packet.kind.write != message_is_write_) return kInvalid;
  if (bytes > options_.path_mtu) return kInvalid;
  if (!packet.kind.last && bytes != options_.path_mtu) return kInvalid;
  if (!packet.kind.first && packet.kind.last && bytes == 0) return kInvalid;

  const bool needs_buffer = packet.kind.write ? packet.kind.imm : packet.kind.first;
  if (needs_buffer && receive_queue_.empty()) return kRnr;

  if (packet.kind.write) {
    const std::uint64_t address = packet.kind.first ? packet.remote_address : write_address_;
    const std::uint32_t rkey = packet.kind.first ? packet.rkey : write_rkey_;
    const std::uint32_t remaining = packet.kind.first ? packet.dma_length : write_remaining_;
    if (packet.kind.last ? bytes != remaining : bytes >= remaining) return kInvalid;
    // The first packet is checked against the whole range. Each later packet is checked again, because the region may
    // be deregistered between packets.
    if (remaining > 0) {
      std::byte* target = memory_.resolve(rkey, address, remaining);
      if (target != nullptr) {
        if (target != packet.payload.data()) {
          // memmove: the payload may be in the target of another WRITE (direct_placement.hpp).
          std::memmove(target, packet.payload.data(), bytes);
          prefetch_to_write(target + bytes, std::min(remaining - bytes, options_.path_mtu));
        }
      } else if (!memory_.retired(rkey)) {
        return kAccess;
      }
    }
    message_length_ = (packet.kind.first ? 0 : message_length_) + bytes;
    write_address_ = address + bytes;
    write_rkey_ = rkey;
    write_remaining_ = remaining - bytes;
    if (packet.kind.imm) {
      completions_.push_back({.kind = Completion::Kind::kReceivedWriteImm,
                              .status = Status::kSuccess,
                              .qpn = options_.qpn,
                              .cookie = receive_queue_.front().cookie,
                              .byte_length = message_length_,
                              .imm = packet.imm});
      receive_queue_.pop_front();
      ++arrived_;
    }
  } else {
    if (packet.kind.first) {
      if (bytes > receive_queue_.front().length) return kInvalid;
      send_buffer_ = receive_queue_.front();
      receive_queue_.pop_front();
      message_length_ = 0;
    }
    if (bytes > send_buffer_.length - message_length_) return kInvalid;
    if (bytes > 0) std::memcpy(send_buffer_.data + message_length_, packet.payload.data(), bytes);
    message_length_ += bytes;
    if (packet.kind.last) {
      completions_.push_back({.kind = Completion::Kind::kReceivedSend,
                              .status = Status::kSuccess,
                              .qpn = options_.qpn,
                              .cookie = send_buffer_.cookie,
                              .byte_length = message_length_,
                              .imm = packet.imm});
      ++arrived_;
    }
  }
  in_message_ = !packet.kind.last;
  message_is_write_ = packet.kind.write;
  return std::nullopt;
}

std::optional<wire::Header> RcQp::take_acknowledgement() {
  if (nak_due_ || ack_due_) {
    unacknowledged_ = 0;
    ack_urgent_ = false;
  }
  if (nak_due_) {
    const std::uint8_t syndrome = *nak_due_;
    nak_due_.reset();
    ack_due_ = false;  // a NAK acknowledges everything before it
    return wire::ack_header(options_.remote_qpn, expected_psn_, syndrome, msn_);
  }
  if (!ack_due_) return std::nullopt;
  ack_due_ = false;
  return wire::ack_header(options_.remote_qpn, (expected_psn_ - 1) & wire::kPsnMask,
                          static_cast<std::uint8_t>(Syndrome::kAck) | wire::kAckNoCredits, msn_);
}

}  // namespace paralet
