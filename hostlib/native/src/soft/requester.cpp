// SPDX-License-Identifier: Apache-2.0
#include "soft/requester.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/rc_timing.hpp"

namespace paralet {
namespace {

using wire::Opcode;
using wire::Syndrome;

constexpr std::uint64_t kMaxAckInterval = 64;
constexpr unsigned kMaxBackoff = 6;

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

Requester::Requester(RcQpShared& shared) : state_(shared), recovery_(recovery_for(state_)) {}

Requester::Recovery Requester::recovery_for(RequesterState& state) {
  if (state.shared.options.selective_repeat()) return Recovery(std::in_place_type<SelectiveRepeat>, state);
  return Recovery(std::in_place_type<GoBackN>, state);
}

LossRecovery& Requester::recovery() {
  return std::visit([](LossRecovery& chosen) -> LossRecovery& { return chosen; }, recovery_);
}

std::uint32_t Requester::psn_of(std::uint64_t position) const {
  return (state_.shared.options.first_psn + static_cast<std::uint32_t>(position)) & wire::kPsnMask;
}

// -- sending ----------------------------------------------------------------------------------------------------

void Requester::post(const WorkRequest& request) {
  const std::uint64_t packets = std::max<std::uint64_t>(
      1, (request.length + state_.shared.options.path_mtu - 1) / state_.shared.options.path_mtu);
  const Work work{.request = request, .first = state_.flight.posted, .end = state_.flight.posted + packets};
  if (failed_) {
    complete(work, Status::kFlushed);
    return;
  }
  resumes_ = resumes_ || work_.empty();
  state_.flight.posted += packets;
  work_.push_back(work);
}

bool Requester::can_send(Nanos now) const {
  if (failed_ || held_ || state_.flight.waiting() == 0 || now < rnr_until_) return false;
  if (state_.flight.probe_due) return true;
  const std::uint64_t in_network = state_.flight.in_network();
  if (state_.flight.probing && in_network > 0) return false;
  const double window = state_.control->window();
  if (window >= 1.0) return static_cast<double>(in_network) + 1.0 <= window;
  return in_network == 0 && now >= pace_until_;
}

bool Requester::should_send(Nanos now) const {
  if (!can_send(now)) return false;
  const std::uint64_t in_network = state_.flight.in_network();
  if (in_network == 0 || state_.flight.probe_due) return true;
  const double window = state_.control->window();
  const double room = window - static_cast<double>(in_network);
  return room >=
         std::min(static_cast<double>(state_.flight.waiting()), least_room(window, state_.shared.options.burst));
}

std::uint64_t Requester::sendable(Nanos now) const {
  if (!can_send(now)) return 0;
  if (state_.flight.probing || state_.flight.probe_due) return 1;
  const auto window = static_cast<std::uint64_t>(std::ceil(state_.control->window()));
  return std::min(state_.flight.waiting(), window - state_.flight.in_network());
}

/// Position of the packet that leaves next, and index of the request that holds it. Lost packets leave first.
std::pair<std::uint64_t, std::size_t> Requester::upcoming() const {
  if (state_.flight.board.lost() == 0) {
    std::size_t index = cursor_;
    while (state_.flight.next >= work_[index].end) ++index;
    return {state_.flight.next, index};
  }
  const std::uint64_t position = state_.flight.board.first_lost();
  std::size_t index = 0;
  for (std::size_t count = work_.size(); count > 0;) {  // the first request that ends behind the position
    const std::size_t half = count / 2;
    const bool before = work_[index + half].end <= position;
    index += before ? half + 1 : 0;
    count = before ? count - half - 1 : half;
  }
  return {position, index};
}

std::size_t Requester::next_packet_bytes() const {
  const auto [position, index] = upcoming();
  const Work& work = work_[index];
  const bool last = position + 1 == work.end;
  const std::uint64_t offset = (position - work.first) * state_.shared.options.path_mtu;
  const std::size_t payload = last ? work.request.length - offset : state_.shared.options.path_mtu;
  const std::size_t reth = work.request.kind != WorkKind::kSend && position == work.first ? wire::kRethBytes : 0;
  const std::size_t imm = work.request.kind == WorkKind::kWriteImm && last ? wire::kImmBytes : 0;
  return wire::kBthBytes + reth + imm + ((payload + 3) & ~std::size_t{3}) + wire::kIcrcBytes;
}

std::optional<OutgoingPacket> Requester::next_packet(Nanos now) {
  if (!can_send(now)) return std::nullopt;
  const auto [position, index] = upcoming();
  const bool lost = position != state_.flight.next;
  if (!lost) cursor_ = static_cast<std::uint32_t>(index);
  const Work& work = work_[index];
  const WorkRequest& request = work.request;
  const bool first = position == work.first;
  const bool last = position + 1 == work.end;
  const std::uint64_t offset = (position - work.first) * state_.shared.options.path_mtu;
  const std::uint32_t bytes =
      last ? static_cast<std::uint32_t>(request.length - offset) : state_.shared.options.path_mtu;
  const auto pad = static_cast<std::uint8_t>((4 - (bytes & 3)) & 3);

  // Request acknowledgements often enough that the window never stalls, and with the last packet that can be sent.
  const auto window = static_cast<std::uint64_t>(std::max(1.0, state_.control->window()));
  ++state_.flight.since_ack_request;
  const bool ack_request = state_.flight.probing || lost || state_.flight.next + 1 == state_.flight.posted ||
                           state_.flight.in_network() + 1 >= window ||
                           state_.flight.since_ack_request >= std::clamp<std::uint64_t>(window / 2, 1, kMaxAckInterval);
  if (ack_request) state_.flight.since_ack_request = 0;
  if (state_.flight.next - state_.flight.unacked >= state_.flight.board.room()) {
    // Grow at once to what will be needed soon, or a QP that was idle would allocate four times per message.
    state_.flight.board.grow(state_.flight.range(),
                             std::min<std::uint64_t>(state_.flight.posted - state_.flight.unacked,
                                                     static_cast<std::uint64_t>(state_.control->window())));
  }
  state_.flight.board.sent(position, now, ack_request, lost);
  state_.flight.probe_due = false;

  OutgoingPacket out;
  out.header =
      wire::data_header(opcode_for(request.kind, first, last), state_.shared.options.remote_qpn, psn_of(position),
                        ack_request, pad, request.remote_address, request.rkey, request.length, request.imm);
  out.payload = {request.data + offset, bytes};
  out.pad = pad;

  ++state_.shared.counters.tx_packets;
  state_.shared.counters.tx_bytes += bytes;
  if (position < state_.flight.highest_sent) ++state_.shared.counters.retransmits;
  if (!lost) ++state_.flight.next;
  state_.flight.highest_sent = std::max(state_.flight.highest_sent, state_.flight.next);
  if (timer_ == kNever && resumes_) {
    resumes_ = false;
    // A packet that waited for its turn is no sign of a sender without work.
    const Nanos idle_since = std::max(state_.flight.last_progress, pace_until_);
    if (now - idle_since > state_.round_trip.timeout(state_.shared.device.min_timeout)) state_.control->resume();
  }
  if (state_.control->window() < 1.0) {
    // Windows count full packets, and a receive advertisement is a small part of one.
    const double part = static_cast<double>(bytes + wire::kMaxOverheadBytes) /
                        static_cast<double>(state_.shared.options.path_mtu + wire::kMaxOverheadBytes);
    pace_until_ = now + static_cast<Nanos>(part * static_cast<double>(state_.control->draw_pacing_interval()));
  }
  if (timer_ == kNever) {
    state_.flight.last_progress = now;
    arm_timer(now);
  }
  return out;
}

Requester::Checkpoint Requester::checkpoint() {
  state_.flight.board.begin_batch();
  return {state_.flight.next, state_.flight.highest_sent, state_.flight.since_ack_request, state_.flight.probe_due,
          state_.shared.counters};
}

void Requester::rewind(const Checkpoint& checkpoint) {
  state_.flight.next = checkpoint.next;
  state_.flight.highest_sent = checkpoint.highest_sent;
  state_.flight.since_ack_request = checkpoint.since_ack_request;
  state_.flight.probe_due = checkpoint.probe_due;
  state_.shared.counters = checkpoint.counters;
  state_.flight.board.take_back();
  cursor_ = 0;
  if (state_.flight.all_acknowledged()) timer_ = kNever;
}

void Requester::release_spare() {
  if (!idle()) return;
  work_.release();
  state_.flight.board.release();
}

// -- acknowledgements -------------------------------------------------------------------------------------------

/// A NAK, or an acknowledgement too short for what both ends have agreed to, has none of it.
AckNews Requester::read(const wire::Packet& acknowledgement, Nanos now, Nanos base_rtt, Nanos age) const {
  AckNews out{.now = now, .base_rtt = base_rtt, .marks = counted_marks_, .host_delay = {}, .bitmap = {}};
  if ((acknowledgement.syndrome & 0xE0) != static_cast<std::uint8_t>(Syndrome::kAck)) return out;
  out.bitmap = acknowledgement.payload;
  if (state_.shared.options.mark_counts && out.bitmap.size() >= wire::kMarkCountBytes) {
    out.marks = wire::get_u32(out.bitmap.data());
    out.bitmap = out.bitmap.subspan(wire::kMarkCountBytes);
  }
  if (state_.shared.options.host_delays && out.bitmap.size() >= wire::kHostDelayBytes) {
    out.host_delay = age + Nanos{wire::get_u32(out.bitmap.data())};
    out.bitmap = out.bitmap.subspan(wire::kHostDelayBytes);
  }
  return out;
}

void Requester::on_acknowledge(const wire::Packet& packet, Nanos now, Nanos base_rtt, Nanos age) {
  if (failed_) return;
  const auto kind = static_cast<std::uint8_t>(packet.syndrome & 0xE0);
  const bool ack = kind == static_cast<std::uint8_t>(Syndrome::kAck);
  // An acknowledgement names the last packet taken. A NAK names the packet that it rejects, and acknowledges all before
  // it (section 9.7.5.2). With selective repeat an acknowledgement may name the packet before the oldest: only its
  // bitmap tells something new.
  const std::uint32_t taken = (packet.psn - psn_of(state_.flight.unacked) + (ack ? 1 : 0)) & wire::kPsnMask;
  const std::uint64_t sent = state_.flight.highest_sent - state_.flight.unacked;
  if (ack ? taken > sent : taken >= sent) {
    ++state_.shared.counters.stale_acks;
    return;
  }
  if (!ack) ++state_.shared.counters.naks;
  const bool news = advance(state_.flight.unacked + taken, read(packet, now, base_rtt, age));
  if (ack) {
    if (!news) ++state_.shared.counters.stale_acks;
    return;
  }
  if (kind == static_cast<std::uint8_t>(Syndrome::kRnrNak)) {
    ++state_.shared.counters.rnr;
    state_.flight.last_progress = now;  // the receiver is alive: RNR retries have no limit (RNR retry 7, 9.7.5.2.8)
    state_.flight.timeouts = 0;
    rnr_until_ = now + wire::rnr_delay_ns(packet.syndrome & 0x1F);
    recovery().receiver_not_ready();
    cursor_ = 0;
    arm_timer(now);
    timer_ = std::max(timer_, rnr_until_);
    return;
  }
  switch (static_cast<Syndrome>(packet.syndrome)) {
    case Syndrome::kNakSequence:
      state_.control->on_gap(now);
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

/// False when the acknowledgement tells nothing new.
bool Requester::advance(std::uint64_t acknowledged_end, const AckNews& news) {
  const auto delivered = recovery().acknowledge(acknowledged_end, news);
  if (!delivered) return false;
  tell_control(*delivered, news);
  retire_acknowledged(acknowledged_end, news.now);
  recovery().find_losses(news.now);
  return true;
}

/// The count of marks is cumulative, so a lost acknowledgement loses no marks. A wrong count affects at most the
/// packets that this acknowledgement covers.
void Requester::tell_control(const LossRecovery::Delivered& delivered, const AckNews& news) {
  const unsigned packets = delivered.packets;
  unsigned marked = notified_ ? packets : 0;
  notified_ = false;
  if (state_.shared.options.mark_counts) {
    const auto more = static_cast<std::int32_t>(news.marks - counted_marks_);
    counted_marks_ = news.marks;
    marked = std::min(static_cast<unsigned>(std::max(0, more)), packets);
    state_.shared.counters.tx_marked += marked;
  }
  state_.control->on_marks(news.now, packets, marked);
  if (delivered.rtt > 0) state_.round_trip.sample(news.now, delivered.rtt);
  state_.control->on_delivery({.now = news.now,
                               .packets = packets,
                               .rtt = delivered.rtt,
                               .base_rtt = news.base_rtt,
                               .limited = delivered.limited && marked == 0,
                               .host_delay = news.host_delay});
}

/// Completes the requests before `acknowledged_end` and starts the timer anew.
void Requester::retire_acknowledged(std::uint64_t acknowledged_end, Nanos now) {
  state_.flight.unacked = acknowledged_end;
  state_.flight.next = std::max(state_.flight.next, state_.flight.unacked);
  while (!work_.empty() && work_.front().end <= state_.flight.unacked) {
    complete(work_.front(), Status::kSuccess);
    if (work_.front().request.kind != WorkKind::kWrite) ++consumed_;
    work_.pop_front();
    if (cursor_ > 0) --cursor_;
  }
  state_.flight.timeouts = 0;
  state_.flight.last_progress = now;
  if (state_.flight.all_acknowledged()) {
    timer_ = kNever;
  } else {
    arm_timer(now);
  }
}

void Requester::on_congestion_notification() {
  if (failed_ || state_.shared.options.mark_counts || all_acknowledged()) return;
  ++state_.shared.counters.tx_marked;
  notified_ = true;
}

void Requester::complete(const Work& work, Status status) {
  state_.shared.device.completions.push_back({.kind = Completion::Kind::kSent,
                                              .status = status,
                                              .qpn = state_.shared.options.qpn,
                                              .cookie = work.request.cookie,
                                              .byte_length = work.request.length,
                                              .imm = work.request.imm});
}

// -- timers -----------------------------------------------------------------------------------------------------

void Requester::arm_timer(Nanos now) {
  const Nanos first = recovery().patience();
  const Nanos most = std::max(first, std::min(kMaxAckTimeout, state_.shared.device.retry_time / kMinTries));
  const Nanos timeout = std::min(first << std::min(recovery().doublings(), kMaxBackoff), most);
  // Back-off and NAK-only peers must not extend the retry time.
  timer_ = std::min(now + timeout, state_.flight.last_progress + state_.shared.device.retry_time);
}

Nanos Requester::deadline() const {
  if (failed_) return kNever;
  Nanos when = std::min(timer_, state_.flight.board.deadline());
  if (!held_ && state_.flight.waiting() > 0 && state_.flight.in_network() == 0) {
    when = std::min(when, std::max(rnr_until_, state_.control->window() < 1.0 ? pace_until_ : 0));
  }
  return when;
}

void Requester::on_timer(Nanos now) {
  if (failed_) return;
  if (now >= state_.flight.board.deadline()) recovery().find_losses(now);
  if (now < timer_) return;
  const Nanos silence = now - state_.flight.last_progress;
  if (silence >= state_.shared.device.retry_time) {
    fail(Status::kRetryExceeded);
    return;
  }
  if (!recovery().expires_early(silence)) {
    state_.flight.lossy = true;
    ++state_.shared.counters.timeouts;
    ++state_.flight.timeouts;
    state_.control->on_timeout(now, state_.flight.timeouts > 1);
  }
  pace_until_ = now;
  recovery().probe(now);
  cursor_ = 0;
  arm_timer(now);
}

void Requester::on_path_changed(Nanos now) {
  if (failed_ || all_acknowledged()) return;
  state_.flight.timeouts = 0;
  recovery().forget_path();
  pace_until_ = now;
  go_back(now);
}

void Requester::go_back(Nanos now) {
  recovery().repeat_all();
  cursor_ = 0;
  arm_timer(now);
}

// -- the end ----------------------------------------------------------------------------------------------------

void Requester::fail(Status status) {
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
  state_.flight.clear();
}

void Requester::stop() {
  failed_ = true;
  timer_ = kNever;
  state_.flight.board.clear();
}

std::vector<WorkRequest> Requester::take_back(std::uint32_t arrived) {
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
  state_.flight.clear();
  return out;
}

}  // namespace paralet
