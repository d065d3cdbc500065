// SPDX-License-Identifier: Apache-2.0
#include "soft/rc_qp.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

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

}  // namespace

RcQp::RcQp(const RcQpOptions& options, RcQpContext& context)
    : options_(options),
      context_(context),
      control_(context.control, options.qpn),
      early_(options.reassembly),
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
  resumes_ = resumes_ || work_.empty();
  posted_ += packets;
  work_.push_back(work);
}

/// Packets that wait for the window: lost ones, and new ones that the responder has room for if they arrive early.
std::uint64_t RcQp::unsent() const {
  const std::uint64_t room = selective() ? Reassembly::kWindow - (next_ - unacked_) : posted_ - next_;
  return board_.lost() + std::min(posted_ - next_, room);
}

bool RcQp::can_send(Nanos now) const {
  if (failed_ || unsent() == 0 || now < rnr_until_) return false;
  if (probe_due_) return true;
  if (probing_ && in_flight() > 0) return false;
  const double window = control_.window();
  if (window >= 1.0) return static_cast<double>(in_flight()) + 1.0 <= window;
  return in_flight() == 0 && now >= pace_until_;
}

bool RcQp::should_send(Nanos now) const {
  if (!can_send(now)) return false;
  if (in_flight() == 0 || probe_due_) return true;
  const double room = control_.window() - static_cast<double>(in_flight());
  return room >= std::min(static_cast<double>(unsent()), min_room());
}

/// Packets that the window must have room for before any is sent.
double RcQp::min_room() const {
  return std::max(1.0, std::min(static_cast<double>(options_.burst), control_.window() / 2));
}

std::uint64_t RcQp::sendable(Nanos now) const {
  if (!can_send(now)) return 0;
  if (probing_ || probe_due_) return 1;
  const auto window = static_cast<std::uint64_t>(std::ceil(control_.window()));
  return std::min(unsent(), window - in_flight());
}

/// Position of the packet that leaves next, and index of the request that holds it. Lost packets leave first.
std::pair<std::uint64_t, std::size_t> RcQp::upcoming() const {
  if (board_.lost() == 0) {
    std::size_t index = cursor_;
    while (next_ >= work_[index].end) ++index;
    return {next_, index};
  }
  const std::uint64_t position = board_.first_lost();
  std::size_t index = 0;
  for (std::size_t count = work_.size(); count > 0;) {  // the first request that ends behind the position
    const std::size_t half = count / 2;
    const bool before = work_[index + half].end <= position;
    index += before ? half + 1 : 0;
    count = before ? count - half - 1 : half;
  }
  return {position, index};
}

std::size_t RcQp::next_packet_bytes() const {
  const auto [position, index] = upcoming();
  const Work& work = work_[index];
  const bool last = position + 1 == work.end;
  const std::uint64_t offset = (position - work.first) * options_.path_mtu;
  const std::size_t payload = last ? work.request.length - offset : options_.path_mtu;
  const std::size_t reth = work.request.kind != WorkKind::kSend && position == work.first ? wire::kRethBytes : 0;
  const std::size_t imm = work.request.kind == WorkKind::kWriteImm && last ? wire::kImmBytes : 0;
  return wire::kBthBytes + reth + imm + ((payload + 3) & ~std::size_t{3}) + wire::kIcrcBytes;
}

std::optional<OutgoingPacket> RcQp::next_packet(Nanos now) {
  if (!can_send(now)) return std::nullopt;
  const auto [position, index] = upcoming();
  const bool lost = position != next_;
  if (!lost) cursor_ = index;
  const Work& work = work_[index];
  const WorkRequest& request = work.request;
  const bool first = position == work.first;
  const bool last = position + 1 == work.end;
  const std::uint64_t offset = (position - work.first) * options_.path_mtu;
  const std::uint32_t bytes = last ? static_cast<std::uint32_t>(request.length - offset) : options_.path_mtu;
  const auto pad = static_cast<std::uint8_t>((4 - (bytes & 3)) & 3);

  // Request acknowledgements often enough that the window never stalls, and with the last packet that can be sent.
  const auto window = static_cast<std::uint64_t>(std::max(1.0, control_.window()));
  ++since_ack_request_;
  const bool ack_request = probing_ || lost || next_ + 1 == posted_ || in_flight() + 1 >= window ||
                           since_ack_request_ >= std::clamp<std::uint64_t>(window / 2, 1, kMaxAckInterval);
  if (ack_request) since_ack_request_ = 0;
  if (next_ - unacked_ >= board_.room()) {
    // Grow at once to what will be needed soon, or a QP that was idle would allocate four times per message.
    board_.grow(flight(), std::min<std::uint64_t>(posted_ - unacked_, static_cast<std::uint64_t>(control_.window())));
  }
  board_.sent(position, now, ack_request, lost);
  probe_due_ = false;

  OutgoingPacket out;
  out.header = wire::data_header(opcode_for(request.kind, first, last), options_.remote_qpn, psn_of(position),
                                 ack_request, pad, request.remote_address, request.rkey, request.length, request.imm);
  out.payload = {request.data + offset, bytes};
  out.pad = pad;

  ++counters_.tx_packets;
  counters_.tx_bytes += bytes;
  if (position < highest_sent_) ++counters_.retransmits;
  if (!lost) ++next_;
  highest_sent_ = std::max(highest_sent_, next_);
  if (timer_ == kNever && resumes_) {
    resumes_ = false;
    if (now - last_progress_ > control_.timeout(context_.min_timeout)) control_.resume();
  }
  if (control_.window() < 1.0) {
    // Windows count full packets, and a receive advertisement is a small part of one.
    const double part = static_cast<double>(bytes + wire::kMaxOverheadBytes) /
                        static_cast<double>(options_.path_mtu + wire::kMaxOverheadBytes);
    pace_until_ = now + static_cast<Nanos>(part * static_cast<double>(control_.draw_pacing_interval()));
  }
  if (timer_ == kNever) {
    last_progress_ = now;
    arm_timer(now);
  }
  return out;
}

RcQp::Checkpoint RcQp::checkpoint() {
  board_.begin_batch();
  return {next_, highest_sent_, since_ack_request_, probe_due_, counters_};
}

void RcQp::arm_timer(Nanos now) {
  const Nanos first = selective() ? silence_before_probe()
                                  : control_.timeout(probes_early() ? options_.probe_after : context_.min_timeout);
  const Nanos most = std::max(first, std::min(kMaxAckTimeout, context_.retry_time / kMinTries));
  const unsigned doublings = selective() ? probes_ / 2 : consecutive_timeouts_;
  const Nanos timeout = std::min(first << std::min(doublings, kMaxBackoff), most);
  // Back-off and NAK-only peers must not extend the retry time.
  timer_ = std::min(now + timeout, last_progress_ + context_.retry_time);
}

/// With selective repeat: how long to wait for news of packets in flight. Where packets get lost, the variation of
/// round trips does not count, since lost or late acknowledgements inflate it. A quarter of a round trip is allowed, as
/// for reordering, and not a whole one (RFC 8985, section 7.2): a probe costs little, and peers acknowledge the last
/// packet at once. Elsewhere silence means that the peer is slow.
Nanos RcQp::silence_before_probe() const {
  const Nanos rtt = control_.smoothed_rtt();
  // Before the first sample a timeout is long. A probe of a slow peer costs one packet.
  const Nanos silence = rtt == 0 ? options_.probe_after
                        : lossy_ ? std::max(options_.probe_after, rtt + rtt / 4)
                                 : control_.timeout(options_.probe_after);
  return std::min(silence, control_.timeout(context_.min_timeout));
}

/// Whether the next expiry of the timer is an early probe, long before a timeout. A lost acknowledgement, a lost NAK
/// and a lost last packet have no successor that reveals them, so only a probe finds them early.
bool RcQp::probes_early() const {
  return !probed_early_ && consecutive_timeouts_ == 0 &&
         control_.timeout(options_.probe_after) < control_.timeout(context_.min_timeout);
}

void RcQp::complete(const Work& work, Status status) {
  context_.completions.push_back({.kind = Completion::Kind::kSent,
                                  .status = status,
                                  .qpn = options_.qpn,
                                  .cookie = work.request.cookie,
                                  .byte_length = work.request.length,
                                  .imm = work.request.imm});
}

void RcQp::advance(std::uint64_t acknowledged_end, const News& news) {
  if (acknowledged_end <= unacked_) return;
  const Nanos now = news.now;
  if (probing_ && ack_requested_before(acknowledged_end)) {
    if (consecutive_timeouts_ > 0) control_.undo_timeout();
    // A late answer to the probe means that earlier acknowledgements were lost: it gives no round-trip sample.
    const Nanos since_probe = now - board_.sent_at(unacked_);
    if (since_probe > 2 * control_.smoothed_rtt()) sent_once_from_ = std::max(sent_once_before_, unacked_ + 1);
    // Packets that are not acknowledged are still on their way. The packets behind a gap would report it.
    if (highest_sent_ < posted_) next_ = highest_sent_;
  } else if (probing_ && consecutive_timeouts_ == 0 && acknowledged_end < highest_sent_) {
    control_.on_loss(now);
  }
  probing_ = false;
  probed_early_ = false;
  const std::uint64_t newest = acknowledged_end - 1;
  const Nanos rtt = newest >= sent_once_from_ ? now - board_.sent_at(newest) : 0;
  const auto packets = static_cast<unsigned>(acknowledged_end - unacked_);
  // The window held the sender back if it had no room for a burst before this acknowledgement.
  const bool limited = static_cast<double>(in_flight()) + min_room() > control_.window();
  control_delivered(packets, rtt, limited, news);

  retire_acknowledged(acknowledged_end, now);
}

/// Tells congestion control of `packets` that have arrived. The count of marks is cumulative, so a lost acknowledgement
/// loses no marks. A wrong count affects at most the packets that this acknowledgement covers.
void RcQp::control_delivered(unsigned packets, Nanos rtt, bool limited, const News& news) {
  unsigned marked = notified_ ? packets : 0;
  notified_ = false;
  if (options_.mark_counts) {
    const auto more = static_cast<std::int32_t>(news.marks - counted_marks_);
    counted_marks_ = news.marks;
    marked = std::min(static_cast<unsigned>(std::max(0, more)), packets);
    counters_.tx_marked += marked;
  }
  control_.on_marks(news.now, packets, marked);
  control_.on_ack(news.now, packets, rtt, news.base_rtt, limited && marked == 0, news.host_delay);
}

/// Completes the requests before `acknowledged_end` and starts the timer anew.
void RcQp::retire_acknowledged(std::uint64_t acknowledged_end, Nanos now) {
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

/// advance, with selective repeat. False when nothing is new.
bool RcQp::advance_selectively(std::uint64_t acknowledged_end, const News& news) {
  const Nanos now = news.now;
  const bool limited = static_cast<double>(in_flight()) + min_room() > control_.window();
  const auto delivered = board_.acknowledge(flight(), acknowledged_end, news.bitmap, now, control_.min_rtt());
  if (delivered.packets == 0) return false;
  // A packet from before the timeout has arrived only now: the peer was slow.
  if (consecutive_timeouts_ > 0 && delivered.first) control_.undo_timeout();
  // The acknowledgement may answer a probe, because earlier ones were lost. Counted from the first copy, the round trip
  // would then include the silence before the probe, and the next silence would be longer still.
  const Nanos since_probe = now - probed_at_;
  const bool answers_probe = probes_ > 0 && since_probe >= control_.min_rtt();
  const Nanos rtt = answers_probe ? std::min(delivered.rtt, since_probe) : delivered.rtt;
  control_delivered(delivered.packets, rtt, limited, news);
  probes_ = 0;
  probe_due_ = false;
  retire_acknowledged(acknowledged_end, now);
  detect_losses(now);
  return true;
}

void RcQp::detect_losses(Nanos now) {
  const std::uint64_t lost = board_.detect_losses(flight(), now, control_.smoothed_rtt());
  if (lost == 0) return;
  lossy_ = true;
  control_.on_losses(now, lost);
}

void RcQp::release_spare() {
  if (!idle()) return;
  work_.release();
  board_.release();
}

/// Whether any packet behind the oldest and before `end` requested an acknowledgement.
bool RcQp::ack_requested_before(std::uint64_t end) const {
  for (std::uint64_t position = unacked_ + 1; position < end; ++position) {
    if (board_.ack_requested(position)) return true;
  }
  return false;
}

void RcQp::go_back(Nanos now) {
  if (selective()) {
    board_.mark_all_lost(flight());
  } else {
    next_ = unacked_;
    cursor_ = 0;
  }
  since_ack_request_ = 0;
  sent_once_from_ = highest_sent_;
  probing_ = false;
  arm_timer(now);
}

void RcQp::rewind(const Checkpoint& checkpoint) {
  next_ = checkpoint.next;
  highest_sent_ = checkpoint.highest_sent;
  since_ack_request_ = checkpoint.since_ack_request;
  probe_due_ = checkpoint.probe_due;
  counters_ = checkpoint.counters;
  board_.take_back();
  cursor_ = 0;
  if (unacked_ == highest_sent_) timer_ = kNever;
}

/// A NAK, or an acknowledgement too short for what both ends have agreed to, has none of it.
RcQp::News RcQp::read(const wire::Packet& acknowledgement, Nanos now, Nanos base_rtt, Nanos age) const {
  News out{.now = now, .base_rtt = base_rtt, .marks = counted_marks_, .host_delay = {}, .bitmap = {}};
  if ((acknowledgement.syndrome & 0xE0) != static_cast<std::uint8_t>(Syndrome::kAck)) return out;
  out.bitmap = acknowledgement.payload;
  if (options_.mark_counts && out.bitmap.size() >= wire::kMarkCountBytes) {
    out.marks = wire::get_u32(out.bitmap.data());
    out.bitmap = out.bitmap.subspan(wire::kMarkCountBytes);
  }
  if (options_.host_delays && out.bitmap.size() >= wire::kHostDelayBytes) {
    out.host_delay = age + Nanos{wire::get_u32(out.bitmap.data())};
    out.bitmap = out.bitmap.subspan(wire::kHostDelayBytes);
  }
  return out;
}

void RcQp::on_acknowledge(const wire::Packet& packet, Nanos now, Nanos base_rtt, Nanos age) {
  if (failed_) return;
  const auto kind = static_cast<std::uint8_t>(packet.syndrome & 0xE0);
  const bool ack = kind == static_cast<std::uint8_t>(Syndrome::kAck);
  // An acknowledgement names the last packet taken. A NAK names the packet that it rejects, and acknowledges all before
  // it (section 9.7.5.2). With selective repeat an acknowledgement may name the packet before the oldest: only its
  // bitmap tells something new.
  const std::uint32_t taken = (packet.psn - psn_of(unacked_) + (ack ? 1 : 0)) & wire::kPsnMask;
  const std::uint64_t sent = highest_sent_ - unacked_;
  if (ack ? taken > sent || (taken == 0 && !selective()) : taken >= sent) {
    ++counters_.stale_acks;
    return;
  }
  if (!ack) ++counters_.naks_received;
  const News news = read(packet, now, base_rtt, age);
  if (selective()) {
    if (!advance_selectively(unacked_ + taken, news) && ack) ++counters_.stale_acks;
  } else {
    advance(unacked_ + taken, news);
  }
  if (ack) return;
  if (kind == static_cast<std::uint8_t>(Syndrome::kRnrNak)) {
    ++counters_.rnr_received;
    last_progress_ = now;  // the receiver is alive: RNR retries have no limit (RNR retry 7, section 9.7.5.2.8)
    consecutive_timeouts_ = probes_ = 0;
    rnr_until_ = now + wire::rnr_delay_ns(packet.syndrome & 0x1F);
    if (selective()) {
      board_.mark_lost(unacked_);  // the packets behind it wait at the responder
      arm_timer(now);
    } else {
      go_back(now);
    }
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

void RcQp::on_congestion_notification() {
  if (failed_ || options_.mark_counts || all_acknowledged()) return;
  ++counters_.tx_marked;
  notified_ = true;
}

Nanos RcQp::deadline() const {
  if (failed_) return kNever;
  Nanos when = std::min(timer_, board_.deadline());
  if (unsent() > 0 && in_flight() == 0) {
    when = std::min(when, std::max(rnr_until_, control_.window() < 1.0 ? pace_until_ : 0));
  }
  return when;
}

void RcQp::on_timer(Nanos now) {
  if (failed_) return;
  if (now >= board_.deadline()) detect_losses(now);
  if (now < timer_) return;
  if (now - last_progress_ >= context_.retry_time) {
    fail(Status::kRetryExceeded);
    return;
  }
  // With selective repeat, probes repeat until the silence is as long as a timeout.
  if (selective() ? now - last_progress_ < control_.timeout(context_.min_timeout) : probes_early()) {
    probed_early_ = true;
  } else {
    lossy_ = true;
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
  if (selective()) {
    // The answer lists what has arrived, and with that the losses. The newest packet tells most and is the likeliest to
    // be missing without a successor that shows it (tail loss probe, RFC 8985, section 7).
    if (probes_++ == 0) board_.mark_lost(highest_sent_ - 1, true);
    if (board_.lost() == 0) board_.mark_lost(unacked_, true);
    probe_due_ = true;
    probed_at_ = now;
    arm_timer(now);
    return;
  }
  const std::uint64_t sent_once = probing_ ? sent_once_before_ : sent_once_from_;
  go_back(now);
  probing_ = true;
  sent_once_before_ = sent_once;
}

void RcQp::on_path_changed(Nanos now) {
  if (failed_ || all_acknowledged()) return;
  consecutive_timeouts_ = probes_ = 0;  // they belong to the old path
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
  board_.clear();
}

std::uint32_t RcQp::stop() {
  stopped_ = true;
  failed_ = true;
  timer_ = kNever;
  board_.clear();
  early_.clear();
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
  board_.clear();
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
  // While packets wait for a missing one, it would be placed where theirs belong.
  if (stopped_ || !early_.empty()) return {};
  if (failed_ || !in_message_ || !message_is_write_ || write_remaining_ <= options_.path_mtu) return {};
  std::byte* const target = context_.memory.resolve(write_rkey_, write_address_, write_remaining_);
  if (target == nullptr) return {};
  return {target, (write_remaining_ - 1) / options_.path_mtu * options_.path_mtu};
}

/// Where the payload of an early packet, `distance` PSNs behind the missing one, belongs if the missing packets are
/// valid: all but the last packet of a WRITE have the path MTU. nullptr if it belongs to no WRITE in progress, or if
/// direct placement has put a run of packets there, whose other payloads would be overwritten.
std::byte* RcQp::place_of(std::uint32_t distance, const wire::Packet& packet) const {
  if (!in_message_ || !message_is_write_ || !packet.kind.write || packet.kind.first) return nullptr;
  const std::uint64_t offset = std::uint64_t{distance} * options_.path_mtu;
  const std::uint64_t end = offset + packet.payload.size();
  const bool fits =
      packet.kind.last ? end == write_remaining_ : end < write_remaining_ && packet.payload.size() == options_.path_mtu;
  std::byte* const target = fits ? context_.memory.resolve(write_rkey_, write_address_, write_remaining_) : nullptr;
  if (target == nullptr) return nullptr;
  const std::less_equal<const std::byte*> not_after;
  const std::byte* const payload = packet.payload.data();
  if (not_after(target, payload) && !not_after(target + write_remaining_, payload)) return nullptr;
  return target + offset;
}

void RcQp::on_request(const wire::Packet& packet, bool marked, Nanos arrived) {
  if (stopped_) return;
  ++counters_.rx_packets;
  if (marked) ++counters_.rx_marked;
  const std::int32_t distance = psn_distance(packet.psn, expected_psn_);
  if (distance < 0) {
    ++counters_.duplicates;
    ack_due_ = true;  // its acknowledgement was lost (section 9.7.5.1.3)
    return;
  }
  newest_arrived_ = arrived;
  const bool early = !early_.empty();
  if (distance > 0) {
    ++counters_.out_of_order;
    if (!selective()) {
      note_gap(distance);
      return;
    }
    if (!packet.kind.refused && packet.payload.size() <= options_.path_mtu) {
      early_.keep(static_cast<std::uint32_t>(distance), packet, place_of(static_cast<std::uint32_t>(distance), packet));
    }
    ack_due_ = ack_urgent_ = true;
    return;
  }
  if (!take(packet)) return;
  for (auto next = early_.take(expected_psn_); next && take(next->packet);) next = early_.take(expected_psn_);
  if (early) ack_due_ = ack_urgent_ = true;  // the requester waits for news of the gap
}

/// Takes the expected packet. False when it was refused.
bool RcQp::take(const wire::Packet& packet) {
  if (const auto refusal = accept(packet)) {
    // RNR and errors leave the expected PSN as it is. With go-back-N the packets in flight behind are dropped as out of
    // order.
    gap_reported_ = false;
    respond_nak(*refusal);
    return false;
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
  return true;
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
  if (needs_buffer && context_.receive_queue.empty()) return kRnr;

  if (packet.kind.write) {
    const std::uint64_t address = packet.kind.first ? packet.remote_address : write_address_;
    const std::uint32_t rkey = packet.kind.first ? packet.rkey : write_rkey_;
    const std::uint32_t remaining = packet.kind.first ? packet.dma_length : write_remaining_;
    if (packet.kind.last ? bytes != remaining : bytes >= remaining) return kInvalid;
    // The first packet is checked against the whole range. Each later packet is checked again, because the region may
    // be deregistered between packets.
    if (remaining > 0) {
      std::byte* target = context_.memory.resolve(rkey, address, remaining);
      if (target != nullptr) {
        if (target != packet.payload.data()) {
          // memmove: the payload may be in the target of another WRITE (direct_placement.hpp).
          std::memmove(target, packet.payload.data(), bytes);
          prefetch_to_write(target + bytes, std::min(remaining - bytes, options_.path_mtu));
        }
      } else if (!context_.memory.retired(rkey)) {
        return kAccess;
      }
    }
    message_length_ = (packet.kind.first ? 0 : message_length_) + bytes;
    write_address_ = address + bytes;
    write_rkey_ = rkey;
    write_remaining_ = remaining - bytes;
    if (packet.kind.imm) {
      context_.completions.push_back({.kind = Completion::Kind::kReceivedWriteImm,
                                      .status = Status::kSuccess,
                                      .qpn = options_.qpn,
                                      .cookie = context_.receive_queue.front().cookie,
                                      .byte_length = message_length_,
                                      .imm = packet.imm});
      context_.receive_queue.pop_front();
      ++arrived_;
    }
  } else {
    if (packet.kind.first) {
      if (bytes > context_.receive_queue.front().length) return kInvalid;
      send_buffer_ = context_.receive_queue.front();
      context_.receive_queue.pop_front();
      message_length_ = 0;
    }
    if (bytes > send_buffer_.length - message_length_) return kInvalid;
    if (bytes > 0) std::memcpy(send_buffer_.data + message_length_, packet.payload.data(), bytes);
    message_length_ += bytes;
    if (packet.kind.last) {
      context_.completions.push_back({.kind = Completion::Kind::kReceivedSend,
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

std::optional<OutgoingPacket> RcQp::take_acknowledgement(Nanos now) {
  if (nak_due_ || ack_due_) {
    unacknowledged_ = 0;
    ack_urgent_ = false;
  }
  OutgoingPacket out;
  if (nak_due_) {
    const std::uint8_t syndrome = *nak_due_;
    nak_due_.reset();
    ack_due_ = false;  // a NAK acknowledges everything before it
    out.header = wire::ack_header(options_.remote_qpn, expected_psn_, syndrome, msn_);
    return out;
  }
  if (!ack_due_) return std::nullopt;
  ack_due_ = false;
  out.header = wire::ack_header(options_.remote_qpn, (expected_psn_ - 1) & wire::kPsnMask,
                                static_cast<std::uint8_t>(Syndrome::kAck) | wire::kAckNoCredits, msn_);
  if (options_.mark_counts) wire::append_word(out.header, static_cast<std::uint32_t>(counters_.rx_marked));
  if (options_.host_delays) {
    const Nanos waited = std::clamp<Nanos>(now - newest_arrived_, 0, UINT32_MAX);
    wire::append_word(out.header, static_cast<std::uint32_t>(waited));
  }
  out.payload = early_.bitmap(expected_psn_);
  return out;
}

}  // namespace paralet
