// SPDX-License-Identifier: Apache-2.0
// Fuzzes the handling of packets: a real `soft` back end, on a loopback in memory (sockets, parser, QP lookup, source,
// ICRC, the QP's state machine, memory), against a script of packets, work and time. Most packets carry the right QPN,
// a PSN near the expected one and a correct ICRC, because others are discarded early. The script may corrupt each of
// these.
//
// Invariants:
// - nothing outside registered windows and posted buffers is written (poisoned memory around them, AddressSanitizer)
// - every datagram is counted: as discarded, or by its QP
// - a responder answers a duplicate with the PSN that this model expects: no QP is stuck
// - with selective repeat and mark counts (lane 1), its answers list exactly the packets that this model keeps, and
//   count exactly those that it has sent with a mark and seen arrive
// - every posted request completes exactly once, and every receive buffer serves one message
// - packets without a valid QPN, source address or ICRC change nothing, and a message arrives after them
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "guarded.hpp"
#include "loopback.hpp"
#include "script.hpp"
#include "soft/soft_backend.hpp"
#include "udp_endpoint.hpp"
#include "wire/wire.hpp"

namespace paralet::fuzz {
namespace {

using wire::Opcode;

constexpr std::uint32_t kVictimAddress = 0x7F5A0001;  // 127.90.0.1
constexpr std::uint32_t kPeerAddress = 0x7F5A0002;
constexpr std::uint32_t kStrangerAddress = 0x7F5A0003;
constexpr std::uint16_t kFirstPort = 0xC000;
constexpr std::uint32_t kPathMtu = 256;
constexpr std::size_t kLanes = 2;
constexpr std::size_t kSelectiveLane = 1;
constexpr unsigned kMaxSteps = 64;
constexpr auto kNakSequence = static_cast<std::uint8_t>(wire::Syndrome::kNakSequence);

struct Region {
  std::size_t offset;
  std::size_t bytes;
  std::uint32_t rkey = 0;
};

/// One QP of the victim, with the model of its state.
struct Lane {
  QpIdentity id;
  std::uint32_t remote_qpn = 0;
  std::uint32_t expected = 0;  ///< PSN that the victim's responder expects
  std::uint32_t last_request =
      0;  ///< PSN of the victim's newest request; before the first request, one less than the first PSN
  std::uint64_t posted = 0;
  std::uint64_t completed = 0;
  bool answered = false;  ///< since the last check
  bool refused = false;
  bool failed = false;  ///< as a requester
  bool holds = false;   ///< a receive buffer, in the middle of a SEND
  bool selective = false;
  std::map<std::uint32_t, wire::OpcodeTraits> kept = {};  ///< with selective repeat: early packets by PSN
  std::uint32_t marked = 0;                               ///< packets that have arrived with a congestion mark
};

/// Whether PSN a comes after b.
bool after(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t distance = (a - b) & wire::kPsnMask;
  return distance != 0 && distance < 0x800000;
}

/// The fields that are valid in a packet of the attacker.
struct Guise {
  std::size_t lane = 0;
  bool right_qpn = true;
  bool right_icrc = true;
  bool right_source = true;
  bool ack_request = true;
  bool raw_flags = false;
  bool marked = false;
  std::size_t junk_before = 0;  ///< segments before it in the same batch
};

Guise read_guise(Script& script) {
  const std::uint8_t bits = script.u8();
  return {.lane = bits & 1U,
          .right_qpn = (bits & 2) == 0,
          .right_icrc = (bits & 4) == 0,
          .right_source = (bits & 8) == 0,
          .ack_request = (bits & 16) != 0,
          .raw_flags = (bits & 32) != 0,
          .marked = (bits & 64) != 0,
          .junk_before = std::size_t{bits} >> 7};
}

class Stage {
 public:
  Stage() : victim_({.address = kVictimAddress, .congestion = {.max_window = 64}}) {}

  void play(Script script) {
    begin();
    for (unsigned step = 0; step < kMaxSteps && !script.done(); ++step) {
      now_ += kMicrosecond;
      switch (script.u8() % 9) {
        case 0:
        case 1:
          send_request(script);
          break;
        case 2:
          send_acknowledgement(script);
          break;
        case 3:
          send_raw(script);
          break;
        case 4:
          post_work(script);
          break;
        case 5:
          now_ += Nanos{1} << (script.u8() % 35);
          pump();
          break;
        case 8:
          send_run(script);
          break;
        case 6:
          change_memory(script.u8());
          break;
        default:
          post_receives(script.u8() % 4);
          break;
      }
    }
    check_outsiders();
    check_answers();
    end();
  }

 private:
  // -- the victim -----------------------------------------------------------------------------------------------

  void begin() {
    restart_system();
    now_ += kSecond;
    touched_ = false;
    for (std::size_t i = 0; i < kLanes; ++i) {
      Lane& lane = lanes_[i];
      lane = {.id = victim_.create_qp(), .remote_qpn = 0x100 + static_cast<std::uint32_t>(i)};
      lane.expected = i == 0 ? 0xFFFFFE : 0xFFFFF0;  // both wrap soon
      lane.last_request = (lane.id.first_psn - 1) & wire::kPsnMask;
      const RemoteQp remote{.address = kPeerAddress,
                            .udp_port = peer_.port(),
                            .qpn = lane.remote_qpn,
                            .first_psn = lane.expected,
                            .path_mtu = kPathMtu,
                            .ece = i == kSelectiveLane ? victim_.ece(lane.id.qpn) : Ece{}};
      lane.selective = i == kSelectiveLane;
      while (!victim_.connect_qp(lane.id.qpn, remote, port_)) ++port_;
    }
    for (Region* region : {&window_, &other_}) {
      std::memset(memory_.open(region->offset, region->bytes), 0, region->bytes);
      region->rkey = victim_.register_memory(memory_.at(region->offset), region->bytes);
    }
    gone_ = 0;
    if (receives_ < 4) post_receives(4);
  }

  void end() {
    for (const Lane& lane : lanes_) victim_.fail_qp(lane.id.qpn);
    pump();
    for (const Lane& lane : lanes_) {
      require(lane.completed == lane.posted);
      victim_.destroy_qp(lane.id.qpn);
      if (lane.holds) ++receives_;
    }
    require(receives_ == next_buffer_ - messages_);
    for (const Region& region : {window_, other_}) victim_.deregister_memory(region.rkey);
    memory_.close(window_.offset, window_.bytes);
    memory_.close(other_.offset, other_.bytes);
  }

  void post_receives(unsigned count) {
    for (; count > 0 && receives_ < 64; --count, ++receives_, ++next_buffer_) {
      const std::size_t slot = next_buffer_ % kBuffers;
      victim_.post_receive({.data = buffers_.open(slot * kBufferStride, kBufferBytes),
                            .length = static_cast<std::uint32_t>(kBufferBytes),
                            .cookie = slot});
    }
  }

  void post_work(Script& script) {
    const std::uint8_t kind = script.u8();
    Lane& lane = lanes_[kind & 1];
    ++lane.posted;
    victim_.post(lane.id.qpn, {.kind = static_cast<WorkKind>(((kind >> 1) & 3) % 3),
                               .cookie = lane.posted,
                               .data = source_.data(),
                               .length = script.u16() % static_cast<std::uint32_t>(source_.size()),
                               .remote_address = script.u8(),
                               .rkey = 1,
                               .imm = 2});
    pump();
  }

  void change_memory(std::uint8_t how) {
    if (other_.rkey == gone_) return;
    memory_.close(other_.offset, other_.bytes);  // returned to the caller
    if (how % 2 == 0) {
      victim_.retire_memory(other_.rkey);
    } else {
      victim_.deregister_memory(other_.rkey);
      gone_ = other_.rkey;
    }
  }

  /// Lets the victim work and reads what it sends.
  void pump() {
    victim_.progress(now_, completions_);
    for (const Completion& done : completions_) {
      const auto lane = std::ranges::find(lanes_, done.qpn, [](const Lane& l) { return l.id.qpn; });
      require(lane != lanes_.end());
      if (done.kind == Completion::Kind::kSent) {
        ++lane->completed;
        lane->failed = lane->failed || done.status != Status::kSuccess;
        require(done.cookie == lane->completed);  // in order
      } else if (done.kind == Completion::Kind::kReceivedSend || done.kind == Completion::Kind::kReceivedWriteImm) {
        ++messages_;
        require(done.cookie < kBuffers);
        require(done.byte_length <= (done.kind == Completion::Kind::kReceivedSend ? kBufferBytes : window_.bytes));
      }
    }
    completions_.clear();
    victim_.flush(now_);
    victim_.settle(now_);
    for (auto datagram = peer_.receive(); !datagram.empty(); datagram = peer_.receive()) hear(datagram);
  }

  void hear(std::span<const std::byte> datagram) {
    wire::Packet packet;
    const wire::ParseError error = wire::parse(datagram, packet);
    const auto lane = std::ranges::find(lanes_, packet.dest_qpn, &Lane::remote_qpn);
    require(lane != lanes_.end());
    if (error == wire::ParseError::kCnp) {
      require(!lane->selective);
      return;
    }
    require(error == wire::ParseError::kNone);
    if (static_cast<Opcode>(packet.opcode) == Opcode::kAcknowledge) {
      lane->answered = true;
      lane->refused = (packet.syndrome & 0xE0) != 0;
      answer_psn_ = packet.psn;
      syndrome_ = packet.syndrome;
      bitmap_.assign(packet.payload.begin(), packet.payload.end());
      if (!lane->selective || lane->refused) return;
      constexpr std::size_t kReportBytes = wire::kMarkCountBytes + wire::kHostDelayBytes;
      require(bitmap_.size() >= kReportBytes);
      mark_count_ = wire::get_u32(bitmap_.data());
      bitmap_.erase(bitmap_.begin(), bitmap_.begin() + kReportBytes);
    } else if (after(packet.psn, lane->last_request)) {
      lane->last_request = packet.psn;
    }
  }

  // -- the attacker ---------------------------------------------------------------------------------------------

  std::uint32_t psn_near(Script& script, std::uint32_t base) {
    const auto offset = static_cast<std::int8_t>(script.u8());
    if (offset == INT8_MIN) return script.u32() & wire::kPsnMask;
    return (base + static_cast<std::uint32_t>(std::int32_t{offset})) & wire::kPsnMask;
  }

  std::uint32_t qpn_of(const Guise& guise, Script& script) {
    return guise.right_qpn ? lanes_[guise.lane].id.qpn : script.u32() & 0xFFFFFF;
  }

  static std::size_t payload_bytes(Script& script) {
    const std::uint8_t size = script.u8();
    if (size == 0) return kPathMtu;
    if (size == 255) return script.u16() % 5000U;
    return size - 1U;
  }

  void send_request(Script& script) {
    const Guise guise = read_guise(script);
    const std::uint8_t opcode = script.u8() % 0x40;
    const std::uint32_t qpn = qpn_of(guise, script);
    const std::uint32_t psn = psn_near(script, lanes_[guise.lane].expected);
    const std::size_t bytes = payload_bytes(script);
    auto pad = static_cast<std::uint8_t>((4 - bytes % 4) % 4);
    const auto kind = wire::traits(opcode);
    std::uint64_t address = 0;
    std::uint32_t rkey = 0;
    auto length = static_cast<std::uint32_t>(bytes);
    if (kind && kind->write && kind->first) {
      const std::uint8_t how = script.u8();
      const Region& region = (how & 1) == 0 ? window_ : other_;
      rkey = (how & 2) == 0 ? region.rkey : script.u32();
      if ((how & 4) != 0) length = (how & 8) != 0 ? script.u16() : script.u32();
      address = script.u8();
      if ((how & 16) != 0) address = script.u64();
      if ((how & 32) != 0) address += region.bytes - length - 128;  // near the end of the region
    }
    const bool known = kind && !kind->refused && static_cast<Opcode>(opcode) != Opcode::kAcknowledge;
    const wire::Header header = wire::data_header(known ? static_cast<Opcode>(opcode) : Opcode::kSendOnly, qpn, psn,
                                                  guise.ack_request, pad, address, rkey, length, opcode);
    packet_.assign(header.bytes.begin(), header.bytes.begin() + header.length);
    packet_[0] = static_cast<std::byte>(opcode);
    packet_.resize(packet_.size() + bytes, std::byte{0xA5});
    packet_.resize(packet_.size() + pad + wire::kIcrcBytes);
    if (guise.raw_flags) {
      packet_[1] = static_cast<std::byte>(script.u8());
      packet_[3] ^= static_cast<std::byte>(script.u8() & 1);
      packet_.resize(std::max<std::size_t>(packet_.size() - std::min<std::size_t>(packet_.size(), script.u8()), 1));
    }
    launch(guise, script);
  }

  void send_acknowledgement(Script& script) {
    const Guise guise = read_guise(script);
    const std::uint32_t qpn = qpn_of(guise, script);
    const std::uint32_t psn = psn_near(script, lanes_[guise.lane].last_request);
    const std::uint8_t syndrome = script.u8();
    const wire::Header header = wire::ack_header(qpn, psn, syndrome, guise.raw_flags ? script.u32() : 0);
    packet_.assign(header.bytes.begin(), header.bytes.begin() + header.length);
    if (guise.raw_flags) {
      const auto bitmap = script.bytes(script.u8() % 140);
      packet_.insert(packet_.end(), bitmap.begin(), bitmap.end());
    }
    packet_.resize(packet_.size() + wire::kIcrcBytes);
    launch(guise, script);
  }

  void send_raw(Script& script) {
    const Guise guise = read_guise(script);
    const auto bytes = script.bytes(script.u8());
    packet_.assign(bytes.begin(), bytes.end());
    packet_.resize(packet_.size() + wire::kIcrcBytes);
    if (guise.right_qpn && packet_.size() >= wire::kBthBytes) {
      wire::put_u32(packet_.data() + 4, lanes_[guise.lane].id.qpn);
    }
    launch(guise, script);
  }

  /// The start of a long WRITE and packets from its middle in one batch, as in large messages: direct placement
  /// receives their payloads, if the batch is valid. The script may corrupt any of them. While packets wait at the
  /// responder, the packets are sent one by one: if one that waited is refused, another of its PSN may be taken in the
  /// same batch, and the one answer to the batch would not show which was taken.
  void send_run(Script& script) {
    Lane& lane = lanes_[script.u8() & 1];
    const std::uint8_t packets = script.u8() % 12;
    const auto length = static_cast<std::uint32_t>(packets * kPathMtu + script.u8() - 64);
    const std::vector<std::byte> payload(kPathMtu, std::byte{0x5A});
    honest(lane, Opcode::kWriteFirst, lane.expected, payload, length);
    const QpCounters before = counters(lane);
    const Discards dropped_before = victim_.discards();
    const std::uint32_t first = lane.expected;
    const bool one_by_one = !lane.kept.empty();
    batch_.clear();
    std::vector<wire::Packet> valid;
    for (std::uint8_t i = 0; i < packets; ++i) {
      const std::uint8_t spoil = script.u8();
      const Opcode opcode = spoil == 1 ? Opcode::kSendMiddle : Opcode::kWriteMiddle;
      const std::uint32_t psn = (first + i + (spoil == 2 ? 100 : 0)) & wire::kPsnMask;
      const std::uint32_t qpn = spoil == 3 ? lane.id.qpn ^ 1 : lane.id.qpn;
      const wire::Header header = wire::data_header(opcode, qpn, psn, true, 0, 0, 0, 0, 0);
      packet_.assign(header.bytes.begin(), header.bytes.begin() + header.length);
      packet_.insert(packet_.end(), payload.begin(), payload.end());
      packet_.resize(packet_.size() + wire::kIcrcBytes);
      if (one_by_one) {
        launch({.right_icrc = spoil != 4}, script);
        continue;
      }
      peer_.seal(packet_, kVictimAddress, victim_.udp_port(), i);
      if (spoil == 4) packet_.back() ^= std::byte{1};
      if (spoil == 5 && i + 1 == packets) packet_.resize(packet_.size() - 1U - script.u8());
      wire::Packet parsed;
      const bool whole = wire::parse(packet_, parsed) == wire::ParseError::kNone;
      const bool spoiled = spoil == 4 || (spoil == 5 && i + 1 == packets);
      if (whole && !spoiled && parsed.dest_qpn == lane.id.qpn) valid.push_back(parsed);
      batch_.insert(batch_.end(), packet_.begin(), packet_.end());
    }
    if (one_by_one || batch_.empty()) return;
    lane.answered = lane.refused = false;
    peer_.send(kVictimAddress, victim_.udp_port(), batch_,
               packets > 1 ? kPathMtu + wire::kBthBytes + wire::kIcrcBytes : 0);
    pump();
    touched_ = true;
    const QpCounters taken = counters(lane);
    const std::uint64_t received = taken.rx_packets - before.rx_packets;
    require(received + discarded(victim_.discards()) - discarded(dropped_before) == packets);
    if (lane.selective) {
      for (const wire::Packet& packet : valid) model_selective(lane, packet.psn, packet.kind, kPathMtu);
      check_answer(lane);
      return;
    }
    // At most one is rejected: the packets behind it are then out of sequence.
    const std::uint64_t late = taken.out_of_order - before.out_of_order + taken.duplicates - before.duplicates;
    const bool one_refused = lane.refused && (syndrome_ != kNakSequence);
    const auto in_order = static_cast<std::uint32_t>(received - late - (one_refused ? 1 : 0));
    lane.expected = (lane.expected + in_order) & wire::kPsnMask;
    check_answer(lane);
  }

  static std::uint64_t discarded(const Discards& d) {
    return d.malformed + d.cnps + d.icrc + d.unknown_qp + d.wrong_source;
  }

  /// Sends packet_ and checks which counter it increased.
  void launch(const Guise& guise, Script& script) {
    const UdpEndpoint& from = !guise.right_source ? stranger_ : guise.marked ? marking_ : peer_;
    const std::uint16_t to = victim_.udp_port();
    const std::size_t segments = packet_.size() <= 512 ? guise.junk_before + 1 : 1;
    from.seal(packet_, kVictimAddress, to, static_cast<std::uint16_t>(segments - 1));
    if (!guise.right_icrc) packet_.back() ^= static_cast<std::byte>(script.u8() | 1U);

    wire::Packet parsed;
    const bool whole = wire::parse(packet_, parsed) == wire::ParseError::kNone;
    const auto target = std::ranges::find(lanes_, parsed.dest_qpn, [](const Lane& l) { return l.id.qpn; });
    Lane* lane = whole && target != lanes_.end() ? &*target : nullptr;
    const bool acknowledge = whole && static_cast<Opcode>(parsed.opcode) == Opcode::kAcknowledge;

    const Discards before = victim_.discards();
    const bool answers_nothing =
        acknowledge && lane != nullptr && !lane->failed && after(parsed.psn, lane->last_request);
    const QpCounters taken_before = lane != nullptr ? counters(*lane) : QpCounters{};
    for (Lane& each : lanes_) each.answered = each.refused = false;
    batch_.assign((segments - 1) * packet_.size(), std::byte{0});
    batch_.insert(batch_.end(), packet_.begin(), packet_.end());
    from.send(kVictimAddress, to, batch_, segments > 1 ? packet_.size() : 0);
    pump();
    const Discards discards = victim_.discards();
    const QpCounters taken = lane != nullptr ? counters(*lane) : QpCounters{};
    const std::uint64_t dropped = discarded(discards) - discarded(before);
    const std::uint64_t received = taken.rx_packets - taken_before.rx_packets;
    require(received <= 1);
    require(dropped + received == segments || (acknowledge && dropped + 1 == segments));
    if (discards.icrc > before.icrc) require(!guise.right_icrc);
    if (discards.wrong_source > before.wrong_source) require(!guise.right_source);
    const bool taken_in = dropped < segments;
    require(!taken_in || (guise.right_source && lane != nullptr));
    touched_ = touched_ || taken_in;
    if (taken_in && answers_nothing) require(taken.stale_acks == taken_before.stale_acks + 1);
    require(taken.rx_marked - taken_before.rx_marked == (guise.marked ? received : 0));
    if (received == 1) {
      if (guise.marked) ++lane->marked;
      model_request(*lane, parsed, taken_before, taken);
    }
  }

  /// Updates the model for a packet that the responder accepted.
  void model_request(Lane& lane, const wire::Packet& packet, const QpCounters& before, const QpCounters& now) {
    const bool in_order = now.duplicates == before.duplicates && now.out_of_order == before.out_of_order;
    require(in_order == (packet.psn == lane.expected));
    if (lane.selective) {
      model_selective(lane, packet.psn, packet.kind, packet.payload.size());
    } else if (in_order && !lane.refused) {
      consume(lane, packet.kind);
    }
    check_answer(lane);
  }

  /// The responder takes the expected packet.
  void consume(Lane& lane, const wire::OpcodeTraits& kind) {
    lane.expected = (lane.expected + 1) & wire::kPsnMask;
    if (kind.write ? kind.imm : kind.first) {
      require(receives_ > 0);
      --receives_;
    }
    lane.holds = !kind.write && !kind.last;
  }

  /// With selective repeat: keeps an early packet, or takes the expected one and those that waited for it, up to one
  /// that the answer refuses.
  void model_selective(Lane& lane, std::uint32_t psn, const wire::OpcodeTraits& kind, std::size_t bytes) {
    const std::uint32_t distance = (psn - lane.expected) & wire::kPsnMask;
    if (distance != 0) {
      if (distance < Reassembly::kWindow && !kind.refused && bytes <= kPathMtu) lane.kept.try_emplace(psn, kind);
      return;
    }
    const auto refuses = [&] { return lane.refused && answer_psn_ == lane.expected; };
    if (refuses()) return;
    consume(lane, kind);
    for (auto next = lane.kept.find(lane.expected); next != lane.kept.end(); next = lane.kept.find(lane.expected)) {
      const wire::OpcodeTraits waited = next->second;
      lane.kept.erase(next);
      if (refuses()) return;
      consume(lane, waited);
    }
  }

  void check_answer(const Lane& lane) const {
    if (!lane.answered) return;
    require(answer_psn_ == ((lane.expected - (lane.refused ? 0 : 1)) & wire::kPsnMask));
    if (lane.refused) return;
    std::size_t listed = 0;
    for (std::size_t i = 0; i < bitmap_.size() * 8; ++i) {
      if ((bitmap_[i / 8] & (std::byte{0x80} >> (i % 8))) == std::byte{0}) continue;
      ++listed;
      require(lane.kept.contains((lane.expected + 1 + static_cast<std::uint32_t>(i)) & wire::kPsnMask));
    }
    require(listed == lane.kept.size());
    if (lane.selective) require(mark_count_ == lane.marked);
  }

  QpCounters counters(const Lane& lane) const { return victim_.statistics(lane.id.qpn).counters; }

  // -- invariants -----------------------------------------------------------------------------------------------

  /// A request of the honest peer, with the expected PSN.
  void honest(Lane& lane, Opcode opcode, std::uint32_t psn, std::span<const std::byte> payload, std::uint32_t length) {
    const wire::Header header =
        wire::data_header(opcode, lane.id.qpn, psn, true, 0, 0, window_.rkey, length, 0x00010001);
    packet_.assign(header.bytes.begin(), header.bytes.begin() + header.length);
    packet_.insert(packet_.end(), payload.begin(), payload.end());
    packet_.resize(packet_.size() + wire::kIcrcBytes);
    Script nothing(nullptr, 0);
    launch({}, nothing);
  }

  /// Packets without a valid QPN, address or ICRC have changed nothing.
  void check_outsiders() {
    if (touched_) return;
    const std::byte* window = memory_.at(window_.offset);
    require(std::all_of(window, window + window_.bytes, [](std::byte b) { return b == std::byte{0}; }));
    Lane& lane = lanes_[0];
    require(counters(lane).rx_packets == 0);
    if (receives_ == 0) post_receives(1);
    const std::vector<std::byte> message(2 * kPathMtu, std::byte{0x3C});
    const std::span<const std::byte> all(message);
    const std::uint32_t first = lane.expected;
    honest(lane, Opcode::kWriteFirst, first, all.first(kPathMtu), 2 * kPathMtu);
    require(lane.answered && !lane.refused);
    honest(lane, Opcode::kWriteLastImm, (first + 1) & wire::kPsnMask, all.last(kPathMtu), 0);
    require(lane.answered && !lane.refused);
    require(std::equal(message.begin(), message.end(), window));
  }

  /// No responder is stuck: it acknowledges a duplicate.
  void check_answers() {
    for (Lane& lane : lanes_) {
      const std::uint64_t duplicates = counters(lane).duplicates;
      honest(lane, Opcode::kSendOnly, (lane.expected - 1) & wire::kPsnMask, {}, 0);
      require(counters(lane).duplicates == duplicates + 1);
      require(lane.answered);
    }
  }

  static constexpr std::size_t kBuffers = 16;
  static constexpr std::size_t kBufferBytes = 480;
  static constexpr std::size_t kBufferStride = 1024;

  UdpEndpoint peer_{kPeerAddress};
  UdpEndpoint marking_{kPeerAddress, wire::kEcnCe};
  UdpEndpoint stranger_{kStrangerAddress};
  Guarded memory_{65536};
  Guarded buffers_{(kBuffers + 1) * kBufferStride};
  Region window_{.offset = 16384, .bytes = 3000};
  Region other_{.offset = 49152, .bytes = 700};
  std::uint32_t gone_ = 0;
  std::vector<std::byte> source_ = std::vector<std::byte>(2000, std::byte{0x77});
  SoftBackend victim_;
  std::uint16_t port_ = kFirstPort;
  std::array<Lane, kLanes> lanes_;
  std::size_t receives_ = 0;
  std::size_t next_buffer_ = 0;  ///< receive buffers posted so far
  std::size_t messages_ = 0;     ///< completed receives: each took one buffer for good
  std::vector<Completion> completions_;
  std::vector<std::byte> packet_;
  std::vector<std::byte> batch_;
  std::uint32_t answer_psn_ = 0;
  std::uint8_t syndrome_ = 0;
  std::uint32_t mark_count_ = 0;
  std::vector<std::byte> bitmap_;
  bool touched_ = false;  ///< a QP has received a packet
  Nanos now_ = kSecond;
};

}  // namespace
}  // namespace paralet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static paralet::fuzz::Stage stage;
  stage.play({data, size});
  return 0;
}
