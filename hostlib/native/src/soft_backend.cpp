// SPDX-License-Identifier: Apache-2.0
#include "soft_backend.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "errors.hpp"
#include "random.hpp"

namespace paralet {
namespace {

constexpr std::size_t kMaxSegments = 60;        // of a UDP_SEGMENT batch; the kernel takes 64
constexpr std::size_t kMaxBatchBytes = 65'000;  // a batch is one IP packet to the kernel
constexpr std::uint16_t kMaxIpId = 63;          // what a sender's batch can number
constexpr std::size_t kEthernetBytes = 14;      // counted by shapers
constexpr std::uint64_t kLookAhead = 4;         // packets that wait for the pacer, as many as its bucket holds
constexpr Nanos kBusyRetry = 100 * kMicrosecond;
constexpr Nanos kFresh = 500 * kMillisecond;  // a path's round trip is believed for so long
constexpr int kReceiveRounds = 4;

/// Packets worth of tokens that may be saved up, so that a sleep that ends late costs no rate.
double burst_bytes(double line_rate_bps) { return std::max(4.0 * 4200, line_rate_bps / 8 * 4e-3); }

}  // namespace

const char* to_string(PortMethod method) {
  switch (method) {
    case PortMethod::kSocket:
      return "socket";
    case PortMethod::kFlowLabel:
      return "flow_label";
    case PortMethod::kModifyQp:
      return "modify_qp";
  }
  return "unknown";
}

namespace {
Interface require_interface(std::uint32_t address) {
  auto found = interface_of(address);
  if (!found) {
    throw DeviceError("no interface of this machine has the address " + format_ipv4(address) +
                      " (list them with: ip -4 address)");
  }
  return *found;
}
}  // namespace

SoftBackend::SoftBackend(const SoftOptions& options)
    : options_(options),
      interface_(require_interface(options.address)),
      receive_socket_(options.address),
      send_sockets_(options.address),
      faults_(options.faults),
      pacer_(options.line_rate_bps / 8, burst_bytes(options.line_rate_bps)) {}

SoftBackend::~SoftBackend() = default;

std::uint32_t SoftBackend::max_path_mtu() const {
  if (interface_.mtu_bytes < 256 + wire::kMaxOverheadBytes) return 256;
  const auto room = interface_.mtu_bytes - static_cast<std::uint32_t>(wire::kMaxOverheadBytes);
  return std::min(4096U, std::bit_floor(room));
}

QpIdentity SoftBackend::create_qp() {
  for (;;) {
    const std::uint32_t qpn = random_u32() & 0xFFFFFF;
    if (qpn < 2 || qps_.contains(qpn)) continue;  // 0 and 1 are the management QPs
    const QpIdentity identity{.qpn = qpn, .first_psn = random_u32() & wire::kPsnMask};
    qps_.emplace(qpn, std::make_unique<Qp>(identity));
    return identity;
  }
}

bool SoftBackend::connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) {
  Qp& qp = *qps_.at(qpn);
  if (!set_port(qpn, source_port)) return false;
  qp.remote = remote;
  qp.base_rtt = &base_rtts_.try_emplace(remote.address, kNever).first->second;
  const RcQpOptions options{.qpn = qpn,
                            .first_psn = qp.identity.first_psn,
                            .remote_qpn = remote.qpn,
                            .remote_first_psn = remote.first_psn,
                            .path_mtu = remote.path_mtu,
                            .min_timeout = options_.min_timeout,
                            .retry_time = options_.retry_time,
                            .control = options_.control};
  qp.machine = std::make_unique<RcQp>(options, memory_, receive_queue_, completions_);
  return true;
}

bool SoftBackend::set_port(std::uint32_t qpn, std::uint16_t source_port) {
  Qp& qp = *qps_.at(qpn);
  if (qp.socket >= 0 && qp.port == source_port) return true;
  const int socket = send_sockets_.acquire(source_port);
  if (socket < 0) return false;
  if (qp.socket >= 0) send_sockets_.release(qp.port);
  qp.socket = socket;
  qp.port = source_port;
  return true;
}

void SoftBackend::fail_qp(std::uint32_t qpn) {
  Qp& qp = *qps_.at(qpn);
  if (qp.machine) qp.machine->fail(Status::kFlushed);
}

void SoftBackend::destroy_qp(std::uint32_t qpn) {
  const auto found = qps_.find(qpn);
  if (found == qps_.end()) return;
  Qp* qp = found->second.get();
  std::erase(active_, qp);
  std::erase(acknowledge_, qp);
  if (qp->socket >= 0) send_sockets_.release(qp->port);
  qps_.erase(found);
}

void SoftBackend::activate(Qp& qp) {
  if (qp.active) return;
  qp.active = true;
  active_.push_back(&qp);
}

void SoftBackend::post(std::uint32_t qpn, const WorkRequest& request) {
  Qp& qp = *qps_.at(qpn);
  qp.machine->post(request);
  activate(qp);
}

PathEstimate SoftBackend::estimate(std::uint32_t qpn) const {
  const Qp& qp = *qps_.at(qpn);
  if (!qp.machine) return {};
  const DelayControl& control = qp.machine->control();
  // What was bad a while ago may be good by now: an idle lane without news counts as unknown and is tried again. One
  // that waits for an answer is at least as slow as it has waited.
  const bool unknown = qp.machine->all_acknowledged() && now_ - control.sampled_at() > kFresh;
  return {.smoothed_rtt = unknown ? 0 : std::max(control.smoothed_rtt(), qp.machine->silence(now_)),
          .window = control.window(),
          .hungry = qp.machine->hungry()};
}

QpStatistics SoftBackend::statistics(std::uint32_t qpn) const {
  const Qp& qp = *qps_.at(qpn);
  QpStatistics out{.port = qp.port};
  if (qp.machine) {
    const DelayControl& control = qp.machine->control();
    out.counters = qp.machine->counters();
    out.smoothed_rtt = control.smoothed_rtt();
    out.min_rtt = control.min_rtt() == kNever ? 0 : control.min_rtt();
    out.window = control.window();
    out.all_acknowledged = qp.machine->all_acknowledged();
  }
  return out;
}

Discards SoftBackend::discards() const {
  Discards out = discards_;
  out.injected = faults_.injected();
  return out;
}

UdpFlow SoftBackend::flow_of(const Qp& qp) const {
  return {.src_address = options_.address,
          .dst_address = qp.remote.address,
          .src_port = qp.port,
          .dst_port = qp.remote.udp_port};
}

// -- receiving --------------------------------------------------------------------------------------------------

void SoftBackend::handle(std::span<const std::byte> datagram, const PacketOrigin& origin) {
  wire::Packet packet;
  if (wire::parse(datagram, packet) != wire::ParseError::kNone) {
    ++discards_.malformed;
    return;
  }
  const auto found = qps_.find(packet.dest_qpn);
  if (found == qps_.end() || !found->second->machine) {
    ++discards_.unknown_qp;
    return;
  }
  Qp& qp = *found->second;
  if (origin.address != qp.remote.address) {
    ++discards_.wrong_source;
    return;
  }
  const UdpFlow flow{.src_address = origin.address,
                     .dst_address = options_.address,
                     .src_port = origin.port,
                     .dst_port = receive_socket_.port()};
  if (!verifier_.verify(flow, datagram, origin.likely_id, kMaxIpId)) {
    ++discards_.icrc;
    return;
  }
  if (static_cast<wire::Opcode>(packet.opcode) == wire::Opcode::kAcknowledge) {
    qp.machine->on_acknowledge(packet, now_, *qp.base_rtt);
    *qp.base_rtt = std::min(*qp.base_rtt, qp.machine->control().min_rtt());
    return;
  }
  qp.machine->on_request(packet);
  if (!qp.acknowledge) {
    qp.acknowledge = true;
    acknowledge_.push_back(&qp);
  }
}

bool SoftBackend::receive() {
  const FaultInjector::Deliver deliver = [this](std::span<std::byte> packet, const PacketOrigin& origin) {
    handle(packet, origin);
  };
  const FaultInjector::Deliver inject = [this, &deliver](std::span<std::byte> packet, const PacketOrigin& origin) {
    faults_.receive(packet, origin, now_, deliver);
  };
  const bool faulty = options_.faults.any();
  bool any = false;
  for (int round = 0; round < kReceiveRounds; ++round) {
    if (receive_socket_.receive(faulty ? inject : deliver) == 0) break;
    any = true;
    send_acknowledgements();
  }
  if (faulty) {
    faults_.release(now_, deliver);
    send_acknowledgements();
  }
  return any;
}

void SoftBackend::send_acknowledgements() {
  for (Qp* qp : acknowledge_) {
    qp->acknowledge = false;
    const auto header = qp->machine->take_acknowledgement();
    if (!header) continue;
    const std::span<const std::byte> bytes(header->bytes.data(), header->length);
    std::array<std::byte, wire::kIcrcBytes> crc;
    put_icrc(crc.data(), icrc(flow_of(*qp), 0, bytes, {}));
    std::array<iovec, 2> pieces{{{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()},
                                 {.iov_base = crc.data(), .iov_len = crc.size()}}};
    // A lost acknowledgement is repaired by the requester's timer, so a full queue may drop it.
    if (send_batch(qp->socket, qp->remote.address, qp->remote.udp_port, pieces, 0) != SendResult::kSent) {
      ++discards_.send_errors;
    }
  }
  acknowledge_.clear();
}

// -- sending ----------------------------------------------------------------------------------------------------

bool SoftBackend::transmit_one(Qp& qp, Nanos now) {
  struct Tail {
    std::array<std::byte, 8> bytes;  // padding, then ICRC
  };
  std::array<OutgoingPacket, kMaxSegments> packets;
  std::array<Tail, kMaxSegments> tails;
  std::array<iovec, 3 * kMaxSegments> pieces;
  const UdpFlow flow = flow_of(qp);
  const std::size_t limit = pacer_.unlimited() ? kMaxSegments : 1;  // paced lanes take turns packet by packet

  const RcQp::Checkpoint before = qp.machine->checkpoint();
  RcQp::Checkpoint last_fit = before;
  std::size_t count = 0;
  std::size_t used = 0;
  std::size_t segment = 0;
  std::size_t total = 0;
  while (count < limit) {
    last_fit = qp.machine->checkpoint();
    auto packet = qp.machine->next_packet(now);
    if (!packet) break;
    const std::size_t size = packet->header.length + packet->payload.size() + packet->pad + wire::kIcrcBytes;
    // All segments of a batch but the last have one size; an odd one out starts the next batch.
    if (count > 0 && (size > segment || total + size > kMaxBatchBytes)) {
      qp.machine->rewind(last_fit);
      break;
    }
    packets[count] = *packet;
    const OutgoingPacket& kept = packets[count];
    Tail& tail = tails[count];
    const std::span<const std::byte> header(kept.header.bytes.data(), kept.header.length);
    std::memset(tail.bytes.data(), 0, kept.pad);
    put_icrc(tail.bytes.data() + kept.pad,
             icrc(flow, static_cast<std::uint16_t>(count), header, kept.payload, kept.pad));
    pieces[used++] = {.iov_base = const_cast<std::byte*>(header.data()), .iov_len = header.size()};
    if (!kept.payload.empty()) {
      pieces[used++] = {.iov_base = const_cast<std::byte*>(kept.payload.data()), .iov_len = kept.payload.size()};
    }
    pieces[used++] = {.iov_base = tail.bytes.data(), .iov_len = kept.pad + wire::kIcrcBytes};
    if (count == 0) segment = size;
    total += size;
    ++count;
    if (size < segment) break;
  }
  if (count == 0) return false;

  const auto segment_bytes = static_cast<std::uint16_t>(count > 1 ? segment : 0);
  const std::span<iovec> all(pieces.data(), used);
  switch (send_batch(qp.socket, qp.remote.address, qp.remote.udp_port, all, segment_bytes)) {
    case SendResult::kSent:
      break;
    case SendResult::kBusy:
      qp.machine->rewind(before);
      busy_until_ = now + kBusyRetry;
      return false;
    case SendResult::kFailed:
      ++discards_.send_errors;  // as good as lost on the way: the timer repairs it or gives up
      break;
  }
  pacer_.spend(total + count * (wire::kIpUdpBytes + kEthernetBytes));
  return true;
}

bool SoftBackend::transmit(Nanos now) {
  if (now < busy_until_) return false;
  bool any = false;
  std::size_t idle_turns = 0;
  // One round: every active QP had its turn without being able to send.
  while (!active_.empty() && idle_turns < active_.size() && pacer_.ready(now) && now >= busy_until_) {
    turn_ %= active_.size();
    Qp& qp = *active_[turn_];
    if (transmit_one(qp, now)) {
      any = true;
      idle_turns = 0;
      if (pacer_.unlimited()) {
        ++turn_;
        if (turn_ >= active_.size()) break;  // look at what arrived between rounds
        continue;
      }
    } else {
      ++idle_turns;
    }
    ++turn_;
  }
  return any;
}

bool SoftBackend::wants_work(Nanos now) const {
  if (pacer_.unlimited()) return true;
  std::uint64_t sendable = 0;
  for (const Qp* qp : active_) {
    sendable += qp->machine->sendable(now);
    if (sendable >= kLookAhead) return false;
  }
  return true;
}

bool SoftBackend::progress(Nanos now, std::vector<Completion>& completions) {
  now_ = now;
  bool any = receive();
  for (Qp* qp : active_) qp->machine->on_timer(now);
  any = transmit(now) || any;
  std::erase_if(active_, [](Qp* qp) {
    qp->active = !qp->machine->idle();
    return !qp->active;
  });
  if (!completions_.empty()) {
    completions.insert(completions.end(), completions_.begin(), completions_.end());
    completions_.clear();
    any = true;
  }
  return any;
}

Nanos SoftBackend::deadline(Nanos now) const {
  Nanos when = options_.faults.any() ? faults_.deadline() : kNever;
  for (const Qp* qp : active_) {
    if (qp->machine->can_send(now)) {
      when = std::min(when, std::max(busy_until_, pacer_.ready_at()));
    }
    const Nanos timer = qp->machine->deadline();
    if (timer > now || !qp->machine->can_send(now)) when = std::min(when, timer);
  }
  return when;
}

}  // namespace paralet
