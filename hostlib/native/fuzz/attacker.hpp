// SPDX-License-Identifier: Apache-2.0
// The attacker: a peer of the victim that knows all QPNs, PSNs and rkeys.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "attacker_nic.hpp"
#include "base/socket_address.hpp"
#include "engine/fusion.hpp"
#include "engine/handshake.hpp"
#include "engine/send_payloads.hpp"
#include "engine/signs_of_life.hpp"
#include "hosts.hpp"
#include "script.hpp"
#include "soft/soft_backend.hpp"

namespace paralet::fuzz {

inline constexpr std::uint32_t kQpnsOfPlay = 1024;
inline constexpr std::uint32_t kPlays =
    (wire::kPsnMask + 1) / kQpnsOfPlay;  // that have QPNs of their own; QPNs have 24 bits too

/// A QP of the attacker and the QP of the victim that it is connected to. Both QPNs name the member.
struct Lane {
  std::uint32_t qpn = 0;
  QpIdentity victim;
  std::uint32_t psn = 0;  ///< of the next request
  bool asked = false;     ///< the attacker has asked for a fresh QP
};

class Attacker {
  using Frame = handshake::Frame;
  using Opcode = wire::Opcode;

 public:
  /// `victim`: the handle of a listener of the victim. `members`: NICs of each device.
  Attacker(const handshake::Handle& victim, unsigned members) : members_(members), handle_(victim) {
    for (unsigned i = 0; i < members; ++i) nics_.emplace_back(address_of(kHostile, members, i));
  }

  // -- the beginning and the end of a play ----------------------------------------------------------------------

  void begin(Script& script) {
    const std::uint8_t how = script.u8();
    calls_ = (how & 1) == 0;
    polite_ = (how & 2) == 0;
    answers_ = (how & 4) == 0;
    offers_ = ((how & 8) == 0 ? kSelectiveRepeat : 0) | ((how & 16) == 0 ? kMarkCounts : 0) |
              ((how & 32) == 0 ? kHostDelays : 0) | ((how & 64) == 0 ? kEagerMessages | kCreditWaits : 0);
    fused_ = members_ > 1 && (how & 128) == 0;
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes_[i] = {.qpn = first_qpn() + static_cast<std::uint32_t>(i), .victim = {}, .psn = 0xFFFFFE};
    }
    start_ = 0;
    if (fused_ && calls_) {
      // With a lane on each member, or all on the one whose channel opens first.
      const std::uint8_t start = script.u8();
      start_ = (start >> 1) % members_;
      for (unsigned i = 0; i < kLanes; ++i) {
        put_on(lanes_[i], (start & 1) == 0 ? i % members_ : start_);
      }
    }
    wire::put_u64(guid_.data(), ++names_);
    wire::put_u64(join_.data(), names_);
  }
  [[nodiscard]] bool calls() const { return calls_; }
  [[nodiscard]] bool fused() const { return fused_; }
  [[nodiscard]] bool polite() const { return polite_; }

  /// The attacker connects.
  void call() { call(start_); }
  void greet() { tell(handshake::Hello{.listener = handle_.listener, .token = handle_.token, .endpoint = endpoint()}); }
  void connect() { tell(connect(1)); }

  /// What the victim connects to.
  [[nodiscard]] handshake::Handle handle() const {
    handshake::Handle ours{
        .address = hostile(), .tcp_port = nics_.front().listen_port, .device = guid_, .listener = 1, .token = {}};
    for (unsigned i = 1; fused_ && i < members_; ++i) {
      ours.further.push_back({.address = hostile(i), .tcp_port = nics_[i].listen_port});
    }
    return ours;
  }

  /// Opens a channel of a fused peer again, whose paths may all be down: it would live on for the retry time.
  void rejoin() {
    join_.back() ^= std::byte{1};  // change_paths may have changed it before the hello
    call(0);
    nics_.front().tcp->send(handshake::Join{.token = join_, .member = 0});
  }

  /// Takes the connections that the victim has opened. The last one to a NIC counts. Those before end without a reset:
  /// another peer of the victim may wait for a path that a reset has ended.
  void take_calls() {
    for (Nic& nic : nics_) {
      for (FileDescriptor fd = accept_from(nic); fd.valid(); fd = accept_from(nic)) {
        if (nic.tcp) {
          nic.tcp->finish();
          nic.finished.push_back(std::move(*nic.tcp));
        }
        nic.tcp.emplace(std::move(fd));
      }
    }
  }

  void hang_up() {
    for (Nic& nic : nics_) {
      if (!nic.tcp) continue;
      if (members_ == 1) {
        nic.tcp.reset();
      } else {
        nic.tcp->finish();
        nic.tcp->receive();  // closing a socket with unread bytes would send a reset
        for (Tcp& each : nic.finished) each.receive();
      }
    }
  }

  /// After the play.
  void forget() {
    advertisements_.clear();
    names_known_.clear();
    sequence_ = 0;
    eager_number_ = 0;
    numbers_.reset();
    reset_ = false;
    for (Nic& nic : nics_) {
      nic.tcp.reset();
      nic.finished.clear();
      nic.victim_udp_port = 0;
      while (!nic.udp.receive().empty()) continue;
    }
    ++plays_;
  }

  // -- during a play --------------------------------------------------------------------------------------------

  /// Takes what the victim has sent.
  void listen() {
    if (!calls_) take_calls();
    for (Nic& nic : nics_) {
      if (nic.tcp) listen_to(nic.tcp->receive());
      for (auto datagram = nic.udp.receive(); !datagram.empty(); datagram = nic.udp.receive()) hear(datagram);
    }
  }

  void send_flowlet(Script& script) {
    const std::uint8_t how = script.u8();
    const std::size_t size = script.u8() * std::size_t{4};
    Lane& lane = lanes_[how & 1];
    handshake::Advertisement advertisement{.slot = script.u8()};
    if (!advertisements_.empty()) advertisement = advertisements_[advertisement.slot % advertisements_.size()];
    if ((how & 2) != 0) advertisement.slot = script.u8();
    const std::uint32_t count = (how & 4) != 0 ? script.u8() : 1;
    const std::uint64_t offset = (how & 8) != 0 ? script.u8() : 0;
    const std::span<const std::byte> payload(source_.data(), std::min({size, source_.size(), std::size_t{kPathMtu}}));
    const bool end_follows = (how & 32) != 0;
    if ((how & 128) != 0) lane.psn = (lane.psn + script.u8() % 8 - 3) & wire::kPsnMask;  // a gap, or the past
    request(lane, end_follows || (how & 16) != 0 ? Opcode::kWriteOnly : Opcode::kWriteOnlyImm, payload,
            advertisement.address + offset, advertisement.rkeys[member_of(lane.qpn)],
            handshake::immediate(advertisement.slot, count));
    if (!end_follows) return;
    const std::uint32_t claimed = (how & 64) != 0 ? script.u8() * 64U : static_cast<std::uint32_t>(payload.size());
    const auto end = handshake::encode(handshake::FlowletEnd{
        .slot = advertisement.slot, .count = static_cast<std::uint16_t>(count), .bytes = claimed});
    request(lane, Opcode::kSendOnly, end);
  }

  void send_advertisements(Script& script) {
    const std::uint8_t how = script.u8();
    std::vector<std::byte> payload;
    const std::uint32_t connection = name(script);
    if ((how & 0x30) == 0x30) return send_eagerly(script, lanes_[how & 1], connection);
    for (unsigned i = 0; i <= (how >> 1) % 14U; ++i) {
      const std::uint8_t sequence = script.u8();
      const auto advertisement =
          handshake::encode(handshake::Advertisement{.connection = connection,
                                                     .sequence = (how & 0x40) != 0 ? sequence : sequence_++,
                                                     .tag = sequence % 3U,
                                                     .slot = sequence,
                                                     .rkeys = {1, 1},
                                                     .address = script.u8(),
                                                     .length = (how & 0x80) != 0 ? script.u64() : source_.size()},
                            fused_);
      payload.insert(payload.end(), advertisement.begin(),
                     advertisement.begin() + static_cast<std::ptrdiff_t>(handshake::advertisement_bytes(fused_)));
    }
    request(lanes_[how & 1], Opcode::kSendOnly, payload);
  }

  /// An eager message, or asks and credits. Their numbers go on where they were, mostly.
  void send_eagerly(Script& script, Lane& lane, std::uint32_t connection) {
    const std::uint8_t how = script.u8();
    std::vector<std::byte> payload;
    const auto add = [&payload](const auto& item) {
      const auto bytes = handshake::encode(item);
      payload.insert(payload.end(), bytes.begin(), bytes.end());
    };
    const auto number = [&] { return (how & 0x40) != 0 ? script.u8() : eager_number_++; };
    for (unsigned i = 0; (how & 1) != 0 && i <= (how >> 1) % 4U; ++i) {
      if (((how >> 3) + i) % 2 == 0) {
        add(handshake::Ask{.connection = connection, .number = number()});
      } else {
        const std::uint32_t done = script.u8();
        add(handshake::EagerCredit{.connection = connection, .taken = done, .done = done, .advertised = script.u8()});
      }
    }
    if ((how & 1) == 0) {
      add(handshake::EagerMessage{
          .connection = connection, .number = number(), .advertised = script.u8() % 8U, .tag = (how >> 1) % 3U});
      const std::size_t size = script.u8() * std::size_t{4};
      payload.insert(payload.end(), source_.begin(),
                     source_.begin() + static_cast<std::ptrdiff_t>(std::min({size, source_.size(), std::size_t{200}})));
    }
    request(lane, Opcode::kSendOnly, payload);
  }

  void send_something(Script& script) {
    const auto sent = something(script);
    if (const auto* frame = std::get_if<Frame>(&sent)) {
      tell(*frame);
    } else if (Nic& nic = nics_.front(); nic.tcp) {
      nic.tcp->send(std::get<std::vector<std::byte>>(sent));
    }
  }

  /// What only fused devices do with their paths, and what breaks their rules.
  void change_paths(Script& script) {
    const std::uint8_t how = script.u8();
    const unsigned member = (how >> 3) % members_;
    Nic& nic = nics_[member];
    switch (how % 8) {
      case 0:
        return tell(handshake::MemberDown{static_cast<std::uint8_t>(member)});
      case 1:  // a reset: the path is down. A victim that connected waits for a second after the next one.
        if (calls_ || !std::exchange(reset_, true)) nic.tcp.reset();
        return;
      case 2:  // the end of the stream: the peer is gone
        if (nic.tcp) nic.tcp->finish();
        return;
      case 3:
        if (calls_ && numbers_.has_value()) join(member);
        return;
      case 4:  // with a token or member that may be wrong
        if (!calls_) return;
        call(member);
        join_.back() = static_cast<std::byte>(script.u8() % 2);
        return nic.tcp->send(handshake::Join{.token = join_, .member = script.u8()});
      case 5:  // with any number
        if (nic.tcp) {
          const std::uint8_t number = script.u8();
          const std::uint8_t acknowledged = script.u8();
          const auto sent = something(script);
          const auto* frame = std::get_if<Frame>(&sent);
          nic.tcp->send(handshake::Numbered{.number = number,
                                            .acknowledged = acknowledged,
                                            .body = frame != nullptr ? body_of(*frame) : std::vector<std::byte>{}});
        }
        return;
      case 6:  // without a number
        if (nic.tcp) {
          const auto sent = something(script);
          if (const auto* frame = std::get_if<Frame>(&sent)) nic.tcp->send(*frame);
        }
        return;
      default: {
        const std::uint8_t lane = script.u8() % kLanes;
        lanes_[lane].asked = true;
        renumber(lanes_[lane]);
        return tell(handshake::NewQp{.lane = lane,
                                     .qp = {.qpn = (lanes_[lane].qpn & wire::kPsnMask) | member << 24, .first_psn = 0},
                                     .ece = {},
                                     .path_mtu = {}});
      }
    }
  }

  /// Acknowledges a packet that may never have been sent.
  void acknowledge_something(Script& script) {
    const std::uint8_t how = script.u8();
    const std::uint8_t syndrome = script.u8();
    const auto bitmap = script.bytes((how & 64) != 0 ? script.u8() % 140 : 0);
    answer(lanes_[how & 1], (last_request_ + (how >> 1) % 4 - 2) & wire::kPsnMask, syndrome, bitmap);
  }

 private:
  [[nodiscard]] std::uint32_t hostile(unsigned member = 0) const { return address_of(kHostile, members_, member); }

  handshake::Endpoint endpoint() const {
    handshake::Endpoint out{
        .device = guid_, .address = hostile(), .udp_port = nics_.front().udp.port(), .path_mtu = kPathMtu, .qps = {}};
    for (const Lane& lane : lanes_) out.qps.push_back({.qpn = lane.qpn, .first_psn = lane.psn});
    out.ece = soft_ece(offers_);
    offer_signs(out.ece, (offers_ & kEagerMessages) == 0);  // with no other offer it looks like a NIC
    if (!fused_) return out;
    out.join = join_;
    for (unsigned i = 1; i < members_; ++i) {
      out.further.push_back({.address = hostile(i), .udp_port = nics_[i].udp.port(), .ece = out.ece});
    }
    return out;
  }

  /// Plays have QPNs of their own: a fused peer whose paths are all down sends to its QPs for the retry time.
  [[nodiscard]] std::uint32_t first_qpn() const { return (1 + plays_ % (kPlays - 1)) * kQpnsOfPlay; }
  /// Gives the lane another QPN of the play.
  void renumber(Lane& lane) const {
    const std::uint32_t next = (lane.qpn + kLanes) % kQpnsOfPlay;
    lane.qpn = member_of(lane.qpn) << 24 | (first_qpn() + next);
  }
  static void put_on(Lane& lane, unsigned member) { lane.qpn = (lane.qpn & wire::kPsnMask) | member << 24; }

  /// Opens a TCP connection to a member of the victim, from the member of the same index.
  void call(unsigned member) {
    const std::uint16_t port = member == 0 ? handle_.tcp_port : handle_.further[member - 1].tcp_port;
    FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress from(hostile(member), 0);
    const SocketAddress to(address_of(kVictim, members_, member), port);
    require(::bind(fd.get(), from.get(), from.length()) == 0);
    require(::connect(fd.get(), to.get(), to.length()) == 0);
    nics_[member].tcp.emplace(std::move(fd));
  }

  static FileDescriptor accept_from(const Nic& nic) {
    return FileDescriptor(::accept4(nic.listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  /// Sends a frame as an honest peer would: between fused devices with a number, over every channel that is open.
  void tell(const Frame& frame) {
    Frame out = frame;
    if (numbers_.has_value()) out = numbers_->add(frame);
    for (const Nic& nic : nics_) {
      if (nic.tcp) nic.tcp->send(out);
    }
  }

  handshake::Connect connect(std::uint32_t name) const {
    return {.connection = name, .listener = handle_.listener, .token = handle_.token};
  }

  void listen_to(const std::vector<Frame>& frames) {
    for (const Frame& frame : frames) listen_to(frame);
  }

  void listen_to(const Frame& frame) {
    if (const auto* numbered = std::get_if<handshake::Numbered>(&frame)) {
      if (!numbers_.has_value() || numbers_->take(*numbered) != FrameNumbers::Verdict::kNew) return;
      const auto inner = handshake::decode(numbered->body);
      require(inner.has_value() && !std::holds_alternative<handshake::Numbered>(*inner));
      listen_to(*inner);
    } else if (const auto* hello = std::get_if<handshake::Hello>(&frame)) {
      learn(hello->endpoint);
      for (std::size_t i = 0; fused_ && i < std::min(kLanes, hello->endpoint.qps.size()); ++i) {
        put_on(lanes_[i], member_of(hello->endpoint.qps[i].qpn));
      }
      if (polite_) tell(handshake::Welcome{endpoint()});
      if (fused_) numbers_.emplace();
    } else if (const auto* welcome = std::get_if<handshake::Welcome>(&frame)) {
      learn(welcome->endpoint);
      if (!fused_) return;
      numbers_.emplace();
      for (unsigned i = 0; polite_ && i < members_; ++i) {
        if (i != start_) join(i);
      }
    } else if (const auto* asked = std::get_if<handshake::Connect>(&frame)) {
      names_known_.push_back(asked->connection);
      if (polite_) tell(handshake::Accept{.connection = asked->connection, .peer_connection = 1});
    } else if (const auto* accept = std::get_if<handshake::Accept>(&frame)) {
      names_known_.push_back(accept->peer_connection);
    } else if (const auto* fresh = std::get_if<handshake::NewQp>(&frame)) {
      renew(*fresh);
    }
  }

  /// Opens a further channel as an honest peer would.
  void join(unsigned member) {
    call(member);
    nics_[member].tcp->send(handshake::Join{.token = join_, .member = static_cast<std::uint8_t>(member)});
    for (const handshake::Numbered& frame : numbers_->unacknowledged()) nics_[member].tcp->send(frame);
  }

  /// Moves a lane to the victim's fresh QP, and to the member that it names.
  void renew(const handshake::NewQp& fresh) {
    require(fresh.lane < kLanes && member_of(fresh.qp.qpn) < members_);
    if (fresh.qp.qpn == 0) return;  // it refuses
    Lane& lane = lanes_[fresh.lane];
    lane.victim = fresh.qp;
    renumber(lane);
    put_on(lane, member_of(fresh.qp.qpn));
    if (!std::exchange(lane.asked, false) && polite_) {
      tell(handshake::NewQp{
          .lane = fresh.lane, .qp = {.qpn = lane.qpn, .first_psn = lane.psn}, .ece = {}, .path_mtu = {}});
    }
    if (polite_) tell(handshake::QpReady{fresh.lane});
  }

  void learn(const handshake::Endpoint& victim) {
    nics_.front().victim_udp_port = victim.udp_port;
    for (std::size_t i = 1; i < nics_.size() && i <= victim.further.size(); ++i) {
      nics_[i].victim_udp_port = victim.further[i - 1].udp_port;
    }
    for (std::size_t i = 0; i < std::min(kLanes, victim.qps.size()); ++i) lanes_[i].victim = victim.qps[i];
  }

  void hear(std::span<const std::byte> datagram) {
    wire::Packet packet;
    require(wire::parse(datagram, packet) == wire::ParseError::kNone);
    const auto lane = std::ranges::find_if(
        lanes_, [&](const Lane& known) { return (known.qpn & wire::kPsnMask) == packet.dest_qpn; });
    if (lane == lanes_.end() || static_cast<Opcode>(packet.opcode) == Opcode::kAcknowledge) return;
    last_request_ = packet.psn;
    if (answers_) answer(*lane, packet.psn, wire::kAckNoCredits);
    // Control records are of one packet, eager messages may be of several.
    if (static_cast<Opcode>(packet.opcode) != Opcode::kSendOnly) return;
    if (handshake::decode_eager_message(packet.payload) || handshake::decode_flowlet_end(packet.payload)) return;
    const std::size_t each = handshake::advertisement_bytes(fused_);
    for (auto rest = packet.payload; !rest.empty();) {
      const auto first = [&rest](std::size_t length) { return rest.first(std::min(length, rest.size())); };
      std::size_t length = each;
      if (handshake::decode_ask(first(handshake::kAskBytes))) {
        length = handshake::kAskBytes;
      } else if (handshake::decode_eager_credit(first(handshake::kEagerCreditBytes))) {
        length = handshake::kEagerCreditBytes;
      } else {
        const auto advertisement = handshake::decode_advertisement(first(each));
        require(advertisement.has_value());
        advertisements_.push_back(*advertisement);
      }
      rest = rest.subspan(length);
    }
  }

  void answer(const Lane& lane, std::uint32_t psn, std::uint8_t syndrome, std::span<const std::byte> bitmap = {}) {
    send(member_of(lane.qpn), wire::ack_header(lane.victim.qpn & wire::kPsnMask, psn, syndrome, 0), bitmap);
  }

  void send(unsigned member, const wire::Header& header, std::span<const std::byte> payload) {
    packet_.assign(header.bytes.begin(), header.bytes.begin() + header.length);
    packet_.insert(packet_.end(), payload.begin(), payload.end());
    packet_.resize(packet_.size() + (4 - payload.size() % 4) % 4 + wire::kIcrcBytes);
    const Nic& nic = nics_[member % members_];
    const std::uint32_t to = address_of(kVictim, members_, member % members_);
    nic.udp.seal(packet_, to, nic.victim_udp_port);
    nic.udp.send(to, nic.victim_udp_port, packet_);
  }

  void request(Lane& lane, Opcode opcode, std::span<const std::byte> payload, std::uint64_t address = 0,
               std::uint32_t rkey = 0, std::uint32_t imm = 0) {
    const auto pad = static_cast<std::uint8_t>((4 - payload.size() % 4) % 4);
    const auto length = static_cast<std::uint32_t>(payload.size());
    send(member_of(lane.qpn),
         wire::data_header(opcode, lane.victim.qpn & wire::kPsnMask, lane.psn, true, pad, address, rkey, length, imm),
         payload);
    lane.psn = (lane.psn + 1) & wire::kPsnMask;
  }

  /// A connection name that the victim may or may not know.
  std::uint32_t name(Script& script) const {
    const std::uint8_t which = script.u8();
    if (names_known_.empty() || which >= 0xC0) return which;
    return names_known_[which % names_known_.size()];
  }

  /// What the attacker sends over TCP: a frame that decodes, or bytes.
  std::variant<Frame, std::vector<std::byte>> something(Script& script) {
    switch (script.u8() % 14) {
      case 0:
        return connect(script.u8());
      case 1:
        return handshake::Accept{.connection = name(script), .peer_connection = script.u8()};
      case 2:
        return handshake::Reject{.connection = name(script), .reason = "because"};
      case 3:
        return handshake::Close{name(script)};
      case 4:
        return handshake::Closed{name(script)};
      case 5:
        return handshake::Overrun{.connection = name(script), .slot = script.u8(), .message_bytes = script.u64()};
      case 6:
        return handshake::Welcome{endpoint()};
      case 7:
        return handshake::Hello{.listener = handle_.listener, .token = handle_.token, .endpoint = endpoint()};
      case 8: {
        std::vector<std::byte> frame(4);
        const auto body = script.bytes(script.u8());
        wire::put_u32(frame.data(), static_cast<std::uint32_t>(body.size()));
        frame.insert(frame.end(), body.begin(), body.end());
        return frame;
      }
      case 9: {
        const std::uint8_t lane = script.u8();
        lanes_[lane % kLanes].asked = true;
        handshake::NewQp out{
            .lane = lane, .qp = {.qpn = fresh_qpn(script.u8()), .first_psn = 0}, .ece = {}, .path_mtu = {}};
        if ((lane & 0x80) != 0) out.path_mtu = 256U << ((lane >> 4) & 7);  // 8192 and more are malformed
        return out;
      }
      case 10:
        return handshake::QpReady{script.u8()};
      case 11:
        if ((script.u8() & 1) != 0) return handshake::QpDrained{script.u8()};
        return handshake::QpStopped{.lane = script.u8(), .arrived = script.u8()};
      case 12: {
        const std::uint8_t how = script.u8();
        if ((how & 3) == 0) return handshake::Refuse{"because"};
        return handshake::SignOfLife{(how & 1) != 0};
      }
      default: {
        const auto bytes = script.bytes(script.u8());
        return std::vector<std::byte>(bytes.begin(), bytes.end());
      }
    }
  }

  /// With the member in the lower bits of `by`, where devices are fused.
  [[nodiscard]] std::uint32_t fresh_qpn(std::uint8_t by) const {
    return fused_ && by != 0 ? (by % (members_ + 1U)) << 24 | by : by;
  }

  static std::vector<std::byte> body_of(const Frame& frame) {
    const auto encoded = handshake::encode(frame);
    return {encoded.begin() + 4, encoded.end()};
  }

  unsigned members_;
  handshake::Handle handle_;
  std::vector<std::byte> source_ = std::vector<std::byte>(5000, std::byte{0x77});
  unsigned plays_ = 0;
  std::vector<Nic> nics_;  ///< by member
  handshake::Guid guid_{};
  handshake::Token join_{};
  std::uint64_t names_ = 0;
  bool calls_ = true;   ///< the attacker connects; otherwise the victim does
  unsigned start_ = 0;  ///< the member whose channel the attacker opens first
  bool reset_ = false;  ///< the attacker has reset a channel
  bool polite_ = true;  ///< completes the handshake
  std::uint32_t offers_ = 0;
  bool answers_ = true;                  ///< acknowledges what the victim sends
  bool fused_ = false;                   ///< the attacker says that it has several NICs too
  std::optional<FrameNumbers> numbers_;  ///< of frames between fused devices, after the welcome
  std::array<Lane, kLanes> lanes_;
  std::uint32_t last_request_ = 0;
  std::uint32_t sequence_ = 0;
  std::uint32_t eager_number_ = 0;
  std::vector<handshake::Advertisement> advertisements_;
  std::vector<std::uint32_t> names_known_;
  std::vector<std::byte> packet_;
};

}  // namespace paralet::fuzz
