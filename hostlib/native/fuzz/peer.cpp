// SPDX-License-Identifier: Apache-2.0
// Fuzzes a whole device through a malicious peer that has the device's handle, or whose handle the device has. The peer
// knows all QPNs, PSNs and rkeys. It sends arbitrary frames over TCP, and arbitrary advertisements, flowlets and
// acknowledgements in valid packets. Meanwhile the application receives, sends and closes.
//
// Invariants:
// - memory is written only while a receive into it is open (AddressSanitizer; other memory is poisoned)
// - a receive never reports more bytes than its length
// - every request ends when the peer is gone
// - afterwards a message between the device and another peer arrives
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/socket_address.hpp"
#include "engine/channel.hpp"
#include "engine/device.hpp"
#include "engine/handshake.hpp"
#include "guarded.hpp"
#include "loopback.hpp"
#include "script.hpp"
#include "soft/soft_backend.hpp"
#include "udp_endpoint.hpp"

namespace paralet::fuzz {
namespace {

using handshake::Frame;
using wire::Opcode;
using State = Request::State;

constexpr std::uint32_t kVictimAddress = 0x7F5A0101;  // 127.90.1.1
constexpr std::uint32_t kHonestAddress = 0x7F5A0102;
constexpr std::uint32_t kHostileAddress = 0x7F5A0103;
constexpr std::uint32_t kPathMtu = 1024;
constexpr std::size_t kLanes = 2;
constexpr unsigned kMaxSteps = 48;
constexpr unsigned kHonestEvery = 32;
constexpr Nanos kTimeout = 50 * kSecond;

DeviceOptions device_options(std::uint32_t address) {
  DeviceOptions out;
  out.address = address;
  out.policy.lanes = kLanes;
  out.path_mtu = kPathMtu;
  out.idle_peer = 10 * kMillisecond;
  return out;
}

/// A TCP connection of the attacker. It ends with a reset.
class Tcp {
 public:
  explicit Tcp(FileDescriptor connected) : socket_(std::move(connected)) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  void send(std::span<const std::byte> bytes) const {
    ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void send(const Frame& frame) const { send(handshake::encode(frame)); }
  std::vector<Frame> receive() {
    std::array<std::byte, 4096> chunk;
    for (;;) {
      const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
      if (got <= 0) break;
      in_.insert(in_.end(), chunk.begin(), chunk.begin() + got);
    }
    std::vector<Frame> out;
    while (in_.size() >= 4 && in_.size() - 4 >= wire::get_u32(in_.data())) {
      const std::size_t length = wire::get_u32(in_.data());
      const auto frame = handshake::decode({in_.data() + 4, length});
      require(frame.has_value());
      out.push_back(*frame);
      in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(4 + length));
    }
    return out;
  }

 private:
  FileDescriptor socket_;
  std::vector<std::byte> in_;
};

/// A QP of the attacker and the QP of the victim that it is connected to.
struct Lane {
  std::uint32_t qpn = 0;
  QpIdentity victim;
  std::uint32_t psn = 0;  ///< of the next request
};

class Stage {
 public:
  Stage()
      : victim_(device_options(kVictimAddress)),
        honest_(device_options(kHonestAddress)),
        listener_(victim_.listen()),
        handle_(*handshake::decode_handle(listener_->handle)),
        listening_(listen_tcp(kHostileAddress, listen_port_)) {
    to_ = honest_.connect(listener_->handle);
    require(eventually([&] { return (back_ = listener_->accept()) != nullptr; }));
    require(eventually([&] { return to_->state == Connection::State::kOpen; }));
    exchange();
  }

  void play(Script script) {
    begin(script);
    for (unsigned step = 0; step < kMaxSteps && !script.done(); ++step) act(script);
    end();
    if (++plays_ % kHonestEvery == 0) exchange();
  }

 private:
  // -- the honest side ------------------------------------------------------------------------------------------

  template <typename Condition>
  bool eventually(Condition condition) {
    for (const Nanos start = now(); now() - start < kTimeout;) {
      if (condition()) return true;
      victim_.poll();
      honest_.poll();
      std::this_thread::yield();  // a progress thread may hold the progress lock
    }
    return false;
  }

  /// Polls until the victim has handled what was sent: it reads its channels at least every 64 rounds.
  void sync(int rounds = 70) {
    for (int i = 0; i < rounds; ++i) victim_.poll();
    if (tcp_) listen_to(tcp_->receive());
    for (auto datagram = udp_.receive(); !datagram.empty(); datagram = udp_.receive()) hear(datagram);
    settle();
  }

  static std::shared_ptr<Request> request(const std::shared_ptr<Connection>& connection, Request::Kind kind,
                                          std::span<std::byte> memory, std::uint32_t tag = 0) {
    auto out = std::make_shared<Request>();
    out->kind = kind;
    out->connection = connection;
    out->data = memory.data();
    out->length = memory.size();
    out->tag = tag;
    return out;
  }

  /// One message from the honest peer to the victim.
  void exchange() {
    std::vector<std::byte> message(3000, static_cast<std::byte>(plays_));
    std::vector<std::byte> memory(message.size());
    const auto receive = request(back_, Request::Kind::kReceive, memory);
    const auto send = request(to_, Request::Kind::kSend, message);
    victim_.submit(receive);
    honest_.submit(send);
    require(eventually([&] { return receive->state != State::kPending && send->state != State::kPending; }));
    require(receive->state == State::kDone && receive->bytes == message.size() && memory == message);
  }

  // -- the application ------------------------------------------------------------------------------------------

  struct Receive {
    std::shared_ptr<Request> request;
    std::size_t offset;
  };

  void start_receive(Script& script) {
    const std::uint8_t size = script.u8();
    const std::uint8_t tag = script.u8();
    if (connections_.empty() || receives_.size() == kSlots) return;
    std::size_t offset = 0;
    while (std::ranges::any_of(receives_, [&](const Receive& r) { return r.offset == offset; })) offset += kSlotStride;
    const std::span memory(memory_.open(offset, size), size);
    receives_.push_back({request(pick(tag), Request::Kind::kReceive, memory, tag % 3U), offset});
    victim_.submit(receives_.back().request);
  }

  void start_send(Script& script) {
    const std::size_t size = script.u16() % source_.size();
    const std::uint8_t tag = script.u8();
    if (connections_.empty()) return;
    sends_.push_back(request(pick(tag), Request::Kind::kSend, {source_.data(), size}, tag % 3U));
    victim_.submit(sends_.back());
  }

  const std::shared_ptr<Connection>& pick(std::uint8_t by) const { return connections_[by / 3 % connections_.size()]; }

  /// Frees finished sends, as an application may, and closes the memory of finished receives.
  void settle() {
    std::erase_if(sends_, [](const auto& send) { return send->state != State::kPending; });
    std::erase_if(receives_, [&](const Receive& receive) {
      const State state = receive.request->state;
      if (state == State::kPending) return false;
      if (state == State::kDone) require(receive.request->bytes <= receive.request->length);
      memory_.close(receive.offset, receive.request->length);
      return true;
    });
  }

  // -- the attacker ---------------------------------------------------------------------------------------------

  handshake::Endpoint endpoint() const {
    handshake::Endpoint out{
        .device = guid_, .address = kHostileAddress, .udp_port = udp_.port(), .path_mtu = kPathMtu, .qps = {}};
    for (const Lane& lane : lanes_) out.qps.push_back({.qpn = lane.qpn, .first_psn = lane.psn});
    out.ece = soft_ece(offers_);
    return out;
  }

  void begin(Script& script) {
    restart_system();
    const std::uint8_t how = script.u8();
    calls_ = (how & 1) == 0;
    polite_ = (how & 2) == 0;
    answers_ = (how & 4) == 0;
    offers_ = ((how & 8) == 0 ? kSelectiveRepeat : 0) | ((how & 16) == 0 ? kMarkCounts : 0) |
              ((how & 32) == 0 ? kHostDelays : 0);
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes_[i] = {.qpn = 0x300 + static_cast<std::uint32_t>(i), .victim = {}, .psn = 0xFFFFFE};
    }
    wire::put_u64(guid_.data(), ++names_);
    if (calls_) {
      FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const SocketAddress from(kHostileAddress, 0);
      const SocketAddress to(kVictimAddress, handle_.tcp_port);
      require(::bind(fd.get(), from.get(), from.length()) == 0);
      require(::connect(fd.get(), to.get(), to.length()) == 0);
      tcp_.emplace(std::move(fd));
      if (polite_) {
        tcp_->send(handshake::Hello{.listener = handle_.listener, .token = handle_.token, .endpoint = endpoint()});
        tcp_->send(connect(1));
      }
    } else {
      const handshake::Handle ours{
          .address = kHostileAddress, .tcp_port = listen_port_, .device = guid_, .listener = 1, .token = {}};
      connections_.push_back(victim_.connect(handshake::encode(ours)));
      victim_.poll();
      FileDescriptor fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (fd.valid()) tcp_.emplace(std::move(fd));
    }
    sync();
    while (auto connection = listener_->accept()) connections_.push_back(connection);
  }

  handshake::Connect connect(std::uint32_t name) const {
    return {.connection = name, .listener = handle_.listener, .token = handle_.token};
  }

  void listen_to(const std::vector<Frame>& frames) {
    for (const Frame& frame : frames) {
      if (const auto* hello = std::get_if<handshake::Hello>(&frame)) {
        learn(hello->endpoint);
        if (polite_) tcp_->send(handshake::Welcome{endpoint()});
      } else if (const auto* welcome = std::get_if<handshake::Welcome>(&frame)) {
        learn(welcome->endpoint);
      } else if (const auto* asked = std::get_if<handshake::Connect>(&frame)) {
        names_known_.push_back(asked->connection);
        if (polite_) tcp_->send(handshake::Accept{.connection = asked->connection, .peer_connection = 1});
      } else if (const auto* accept = std::get_if<handshake::Accept>(&frame)) {
        names_known_.push_back(accept->peer_connection);
      }
    }
  }

  void learn(const handshake::Endpoint& victim) {
    victim_port_ = victim.udp_port;
    for (std::size_t i = 0; i < std::min(kLanes, victim.qps.size()); ++i) lanes_[i].victim = victim.qps[i];
  }

  void hear(std::span<const std::byte> datagram) {
    wire::Packet packet;
    require(wire::parse(datagram, packet) == wire::ParseError::kNone);
    const auto lane = std::ranges::find(lanes_, packet.dest_qpn, &Lane::qpn);
    if (lane == lanes_.end() || static_cast<Opcode>(packet.opcode) == Opcode::kAcknowledge) return;
    last_request_ = packet.psn;
    if (answers_) answer(*lane, packet.psn, wire::kAckNoCredits);
    if (packet.kind.write) return;
    for (auto rest = packet.payload; rest.size() >= handshake::kAdvertisementBytes;
         rest = rest.subspan(handshake::kAdvertisementBytes)) {
      const auto advertisement = handshake::decode_advertisement(rest.first(handshake::kAdvertisementBytes));
      require(advertisement.has_value());
      advertisements_.push_back(*advertisement);
    }
  }

  void answer(const Lane& lane, std::uint32_t psn, std::uint8_t syndrome, std::span<const std::byte> bitmap = {}) {
    send(wire::ack_header(lane.victim.qpn, psn, syndrome, 0), bitmap);
  }

  void send(const wire::Header& header, std::span<const std::byte> payload) {
    packet_.assign(header.bytes.begin(), header.bytes.begin() + header.length);
    packet_.insert(packet_.end(), payload.begin(), payload.end());
    packet_.resize(packet_.size() + (4 - payload.size() % 4) % 4 + wire::kIcrcBytes);
    udp_.seal(packet_, kVictimAddress, victim_port_);
    udp_.send(kVictimAddress, victim_port_, packet_);
  }

  void request(Lane& lane, Opcode opcode, std::span<const std::byte> payload, std::uint64_t address = 0,
               std::uint32_t rkey = 0, std::uint32_t imm = 0) {
    const auto pad = static_cast<std::uint8_t>((4 - payload.size() % 4) % 4);
    const auto length = static_cast<std::uint32_t>(payload.size());
    send(wire::data_header(opcode, lane.victim.qpn, lane.psn, true, pad, address, rkey, length, imm), payload);
    lane.psn = (lane.psn + 1) & wire::kPsnMask;
  }

  /// A connection name that the victim may or may not know.
  std::uint32_t name(Script& script) const {
    const std::uint8_t which = script.u8();
    if (names_known_.empty() || which >= 0xC0) return which;
    return names_known_[which % names_known_.size()];
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
    const bool apart = (how & 32) != 0;
    if ((how & 128) != 0) lane.psn = (lane.psn + script.u8() % 8 - 3) & wire::kPsnMask;  // a gap, or the past
    request(lane, apart || (how & 16) != 0 ? Opcode::kWriteOnly : Opcode::kWriteOnlyImm, payload,
            advertisement.address + offset, advertisement.rkeys[0], handshake::immediate(advertisement.slot, count));
    if (!apart) return;
    const std::uint32_t claimed = (how & 64) != 0 ? script.u8() * 64U : static_cast<std::uint32_t>(payload.size());
    const auto end = handshake::encode(handshake::FlowletEnd{
        .slot = advertisement.slot, .count = static_cast<std::uint16_t>(count), .bytes = claimed});
    request(lane, Opcode::kSendOnly, end);
  }

  void send_advertisements(Script& script) {
    const std::uint8_t how = script.u8();
    std::vector<std::byte> payload;
    const std::uint32_t connection = name(script);
    for (unsigned i = 0; i <= (how >> 1) % 14U; ++i) {
      const std::uint8_t sequence = script.u8();
      const auto advertisement =
          handshake::encode(handshake::Advertisement{.connection = connection,
                                                     .sequence = (how & 0x40) != 0 ? sequence : sequence_++,
                                                     .tag = sequence % 3U,
                                                     .slot = sequence,
                                                     .rkeys = {1},
                                                     .address = script.u8(),
                                                     .length = (how & 0x80) != 0 ? script.u64() : source_.size()},
                            false);
      payload.insert(payload.end(), advertisement.begin(), advertisement.begin() + handshake::kAdvertisementBytes);
    }
    request(lanes_[how & 1], Opcode::kSendOnly, payload);
  }

  void send_frame(Script& script) {
    switch (script.u8() % 13) {
      case 0:
        return tcp_->send(connect(script.u8()));
      case 1:
        return tcp_->send(handshake::Accept{.connection = name(script), .peer_connection = script.u8()});
      case 2:
        return tcp_->send(handshake::Reject{.connection = name(script), .reason = "because"});
      case 3:
        return tcp_->send(handshake::Close{name(script)});
      case 4:
        return tcp_->send(handshake::Closed{name(script)});
      case 5:
        return tcp_->send(
            handshake::Overrun{.connection = name(script), .slot = script.u8(), .message_bytes = script.u64()});
      case 6:
        return tcp_->send(handshake::Welcome{endpoint()});
      case 7:
        return tcp_->send(
            handshake::Hello{.listener = handle_.listener, .token = handle_.token, .endpoint = endpoint()});
      case 8: {
        std::vector<std::byte> frame(4);
        const auto body = script.bytes(script.u8());
        wire::put_u32(frame.data(), static_cast<std::uint32_t>(body.size()));
        frame.insert(frame.end(), body.begin(), body.end());
        return tcp_->send(frame);
      }
      case 9:
        return tcp_->send(handshake::NewQp{.lane = script.u8(), .qp = {.qpn = script.u8(), .first_psn = 0}, .ece = {}});
      case 10:
        return tcp_->send(handshake::QpReady{script.u8()});
      case 11:
        return (script.u8() & 1) != 0 ? tcp_->send(handshake::QpDrained{script.u8()})
                                      : tcp_->send(handshake::QpStopped{.lane = script.u8(), .arrived = script.u8()});
      default:
        return tcp_->send(script.bytes(script.u8()));
    }
  }

  void act(Script& script) {
    switch (script.u8() % 10) {
      case 0:
      case 1:
        if (tcp_) send_frame(script);
        break;
      case 2:
      case 3:
        send_flowlet(script);
        break;
      case 4:
        send_advertisements(script);
        break;
      case 5:
        start_receive(script);
        break;
      case 6:
        start_send(script);
        break;
      case 7: {
        const std::uint8_t which = script.u8();
        if (!connections_.empty()) victim_.close_connection(pick(which));
        break;
      }
      case 8: {
        const std::uint8_t how = script.u8();
        const std::uint8_t syndrome = script.u8();
        const auto bitmap = script.bytes((how & 64) != 0 ? script.u8() % 140 : 0);
        answer(lanes_[how & 1], (last_request_ + (how >> 1) % 4 - 2) & wire::kPsnMask, syndrome, bitmap);
        break;
      }
      default:
        sync(script.u8() % 128);
        while (auto connection = listener_->accept()) connections_.push_back(connection);
        break;
    }
    sync(2);
  }

  void end() {
    for (const auto& connection : connections_) victim_.close_connection(connection);
    tcp_.reset();
    for (;;) {  // the victim may try to connect again
      FileDescriptor fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.valid()) break;
      const Tcp ended(std::move(fd));
    }
    require(eventually([&] {
      while (auto connection = listener_->accept()) victim_.close_connection(connection);
      return std::ranges::all_of(connections_, [](const auto& c) { return c->state == Connection::State::kClosed; });
    }));
    settle();
    require(sends_.empty() && receives_.empty());
    connections_.clear();
    advertisements_.clear();
    names_known_.clear();
    sequence_ = 0;
    victim_port_ = 0;
    while (!udp_.receive().empty()) continue;
  }

  static constexpr std::size_t kSlots = 16;
  static constexpr std::size_t kSlotStride = 512;

  Guarded memory_{(kSlots + 1) * kSlotStride};
  std::vector<std::byte> source_ = std::vector<std::byte>(5000, std::byte{0x77});
  Device victim_;
  Device honest_;
  std::shared_ptr<Listener> listener_;
  handshake::Handle handle_;
  std::shared_ptr<Connection> to_;
  std::shared_ptr<Connection> back_;
  unsigned plays_ = 0;

  UdpEndpoint udp_{kHostileAddress};
  std::uint16_t listen_port_ = 0;
  FileDescriptor listening_;
  std::optional<Tcp> tcp_;
  handshake::Guid guid_{};
  std::uint64_t names_ = 0;
  bool calls_ = true;   ///< the attacker connects; otherwise the victim does
  bool polite_ = true;  ///< completes the handshake
  std::uint32_t offers_ = 0;
  bool answers_ = true;  ///< acknowledges what the victim sends
  std::array<Lane, kLanes> lanes_;
  std::uint16_t victim_port_ = 0;
  std::uint32_t last_request_ = 0;
  std::uint32_t sequence_ = 0;
  std::vector<handshake::Advertisement> advertisements_;
  std::vector<std::uint32_t> names_known_;
  std::vector<std::byte> packet_;

  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<Receive> receives_;
  std::vector<std::shared_ptr<Request>> sends_;
};

}  // namespace
}  // namespace paralet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto& stage = *new paralet::fuzz::Stage;  // never destroyed: its threads outlive static destructors
  stage.play({data, size});
  return 0;
}
