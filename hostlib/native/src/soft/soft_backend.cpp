// SPDX-License-Identifier: Apache-2.0
#include "soft/soft_backend.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "soft/roce_port.hpp"

namespace paralet {
namespace {

// Batches of one QP before the next QP: enough for a whole message of 256 KiB. Its first packet is longer than the
// others, so one more packet at most joins it; a last packet that immediate data makes longer is a batch of its own.
constexpr int kBatchesPerVisit = 7;
constexpr std::size_t kFlushBytes = 128 * 1024;   // sent between two looks at what has arrived
constexpr std::size_t kEthernetHeaderBytes = 14;  // counted by shapers
// Packets that may wait before lanes pull more flowlets. With a pacer: what its bucket holds. Without one: what leaves
// at once, so that messages leave one after the other while they are in caches.
constexpr std::uint64_t kLookAhead = 1024;
constexpr std::uint64_t kUnpacedLookAhead = 32;
constexpr Nanos kBusyRetry = 100 * kMicrosecond;
// While messages keep coming, their last packets are acknowledged together. A sender that still sends does not wait for
// these acknowledgements.
constexpr Nanos kQuiet = 15 * kMicrosecond;
constexpr Nanos kAcknowledgeDelay = 100 * kMicrosecond;
// A NIC slows down for each congestion notification packet, however many packets came marked (DCQCN, SIGCOMM 2015,
// section 3.1).
constexpr Nanos kNotifyEvery = 50 * kMicrosecond;

/// Size of the pacer's bucket: a thread that wakes up late can still send at the full rate.
double burst_bytes(double line_rate_bps) { return std::max(4.0 * 4200, line_rate_bps / 8 * 4e-3); }

Interface require_interface(const IpAddress& address) {
  auto found = interface_of(address);
  if (!found) {
    throw DeviceError("no interface of this machine has the address " + format_address(address) +
                      " (list them with: ip address)");
  }
  return *found;
}

/// Whether a NIC takes the packets to port 4791 of the address before a socket sees them. Says so once.
bool taken_by_nic(const SoftOptions& options) {
  const auto device = roce_device(options.address, options.rdma_devices);
  if (!device) return false;
  options.log("the RDMA device " + *device + " receives what comes to UDP port 4791 of " +
              format_address(options.address) +
              ", so the back end soft receives on another port, which it tells its peers (back end verbs uses " +
              *device + ")");
  return true;
}

}  // namespace

SoftBackend::SoftBackend(const SoftOptions& options)
    : options_(options),
      interface_(require_interface(options.address)),
      receive_socket_(options.address, !taken_by_nic(options)),
      send_sockets_(options.address),
      faults_(options.faults),
      pacer_(options.line_rate_bps / 8, burst_bytes(options.line_rate_bps)) {}

SoftBackend::~SoftBackend() = default;

std::uint32_t SoftBackend::max_path_mtu() const {
  return wire::largest_path_mtu(interface_.mtu_bytes, !options_.address.is_ipv4());
}

std::uint32_t SoftBackend::path_mtu_to(unsigned /*member*/, const IpAddress& remote) const {
  // The lanes' source ports are not known yet. Should one have a narrower route, outgrows_route finds it.
  const auto mtu = ask_route({.address = options_.address}, {.address = remote, .port = wire::kRocePort});
  return wire::largest_path_mtu(mtu.value_or(interface_.mtu_bytes) - options_.segments.longest_header_bytes(remote),
                                !options_.address.is_ipv4());
}

QpIdentity SoftBackend::create_qp() {
  for (;;) {
    const std::uint32_t qpn = random_qpn(options_.qpns);
    if (qpn < 2 || qps_.contains(qpn)) continue;  // 0 and 1 are the management QPs
    const QpIdentity identity{.qpn = qpn, .first_psn = options_.first_psn.value_or(random_u32()) & wire::kPsnMask};
    qps_.try_emplace(qpn, identity);
    return identity;
  }
}

Ece SoftBackend::ece(std::uint32_t qpn) const {
  const Qp& qp = qps_.at(qpn);
  return soft_ece(qp.machine ? agreed_options(qp.remote.ece) : options_.offers);
}

std::uint32_t SoftBackend::agreed_options(const Ece& remote) const {
  return remote.vendor_id == kSoftVendor ? remote.options & options_.offers : 0;
}

/// ECT(0) tells switches to mark packets instead of dropping them, so it is for peers that report marks: in
/// acknowledgements, or by congestion notification packets, as a NIC does. Its endpoint names the NIC's vendor; that of
/// the kernel's rxe, which reports nothing, names none.
std::uint8_t SoftBackend::traffic_class_to(const Ece& remote) const {
  const std::uint8_t given = options_.traffic_class;
  const bool nic = remote.vendor_id != 0 && remote.vendor_id != kSoftVendor;
  const bool reports = nic || (agreed_options(remote) & kMarkCounts) != 0;
  if (!reports || (given & wire::kEcnMask) != 0) return given;
  return static_cast<std::uint8_t>(given | wire::kEcnEct0);
}

bool SoftBackend::connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) {
  Qp& qp = qps_.at(qpn);
  qp.traffic_class = traffic_class_to(remote.ece);
  qp.remote = remote;
  if (!bind_port(qp, source_port)) return false;
  qp.path = &paths_.try_emplace(remote.address, reassembly_).first->second;
  const std::uint32_t agreed = agreed_options(remote.ece);
  const RcQpOptions options{
      .qpn = qpn,
      .first_psn = qp.identity.first_psn,
      .remote_qpn = remote.qpn,
      .remote_first_psn = remote.first_psn,
      .path_mtu = remote.path_mtu,
      .burst = pacer_.unlimited() ? static_cast<std::uint32_t>(Batch::kMaxBytes / remote.path_mtu) : 1,
      .probe_after = pacer_.unlimited() ? kProbeAfter : kNever,
      .reassembly = (agreed & kSelectiveRepeat) != 0 ? &qp.path->reassembly : nullptr,
      .host_delays = (agreed & kHostDelays) != 0,
      .mark_counts = (agreed & kMarkCounts) != 0};
  qp.machine.emplace(options, context_);
  return true;
}

PortChange SoftBackend::set_port(std::uint32_t qpn, std::uint16_t source_port) {
  try {
    return bind_port(qps_.at(qpn), source_port) ? PortChange::kDone : PortChange::kRefused;
  } catch (const DeviceError&) {
    return PortChange::kRefused;
  }
}

bool SoftBackend::bind_port(Qp& qp, std::uint16_t source_port) {
  if (qp.socket >= 0 && qp.port == source_port) return true;
  const int socket = send_sockets_.acquire(sending_as(qp, source_port));
  if (socket < 0) return false;
  if (qp.socket >= 0) send_sockets_.release(sending_as(qp, qp.port));
  qp.socket = socket;
  qp.port = source_port;
  return true;
}

SendingAs SoftBackend::sending_as(const Qp& qp, std::uint16_t source_port) const {
  return {.port = source_port,
          .traffic_class = qp.traffic_class,
          .segments = options_.segments.of(qp.remote.address, source_port)};
}

void SoftBackend::path_changed(std::uint32_t qpn, Nanos now) {
  Qp& qp = qps_.at(qpn);
  if (qp.machine) qp.machine->requester().on_path_changed(now);
}

void SoftBackend::fail_qp(std::uint32_t qpn) {
  Qp& qp = qps_.at(qpn);
  if (qp.machine) qp.machine->requester().fail(Status::kFlushed);
}

void SoftBackend::stop_qp(std::uint32_t qpn) {
  Qp& qp = qps_.at(qpn);
  const std::uint32_t arrived = qp.machine->stop();
  if (writing_ == &qp) writing_ = nullptr;
  std::erase(acknowledge_, &qp);
  qp.acknowledge = false;
  completions_.push_back({.kind = Completion::Kind::kStopped, .qpn = qpn, .imm = arrived});
}

std::vector<WorkRequest> SoftBackend::take_back(std::uint32_t qpn, std::uint32_t arrived) {
  return qps_.at(qpn).machine->requester().take_back(arrived);
}

void SoftBackend::destroy_qp(std::uint32_t qpn) {
  const auto found = qps_.find(qpn);
  if (found == qps_.end()) return;
  Qp* qp = &found->second;
  std::erase(active_, qp);
  std::erase(acknowledge_, qp);
  spare_memory_.forget(*qp);
  if (writing_ == qp) writing_ = nullptr;
  if (qp->socket >= 0) send_sockets_.release(sending_as(*qp, qp->port));
  if (const ReceiveBuffer* held = qp->machine ? qp->machine->responder().held_buffer() : nullptr)
    receive_queue_.push_back(*held);
  qps_.erase(found);
}

void SoftBackend::activate(Qp& qp) {
  if (qp.active) return;
  qp.active = true;
  active_.push_back(&qp);
}

void SoftBackend::post(std::uint32_t qpn, const WorkRequest& request) {
  Qp& qp = qps_.at(qpn);
  qp.machine->requester().post(request);
  activate(qp);
}

PathEstimate SoftBackend::estimate(std::uint32_t qpn) const { return estimate_of(qps_.at(qpn), now_); }

QpStatistics SoftBackend::statistics(std::uint32_t qpn) const { return statistics_of(qps_.at(qpn)); }

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

UdpFlow SoftBackend::flow_from(const PacketOrigin& origin) const {
  return {.src_address = origin.address,
          .dst_address = options_.address,
          .src_port = origin.port,
          .dst_port = receive_socket_.port()};
}

// -- receiving --------------------------------------------------------------------------------------------------

void SoftBackend::handle(std::span<const std::byte> datagram, const PacketOrigin& origin) {
  wire::Packet packet;
  const auto error = wire::parse(datagram, packet);
  if (error != wire::ParseError::kNone && error != wire::ParseError::kCnp) {
    ++discards_.malformed;
    return;
  }
  const auto found = qps_.find(packet.dest_qpn);
  if (found == qps_.end() || !found->second.machine) {
    ++discards_.unknown_qp;
    return;
  }
  Qp& qp = found->second;
  if (origin.address != qp.remote.address) {
    ++discards_.wrong_source;
    return;
  }
  if (!verifier_.verify(flow_from(origin), datagram, origin.likely_id, qp.remote.max_ip_id)) {
    ++discards_.icrc;
    return;
  }
  if (error == wire::ParseError::kCnp) {
    ++discards_.cnps;
    qp.machine->requester().on_congestion_notification();
    return;
  }
  if (static_cast<wire::Opcode>(packet.opcode) == wire::Opcode::kAcknowledge) {
    qp.machine->requester().on_acknowledge(packet, now_, qp.path->base_rtt, origin.age);
    const RoundTrip& round_trip = qp.machine->requester().round_trip();
    if (round_trip.sampled_at() == now_) qp.path->sample(round_trip.last());
    return;
  }
  take_request(qp, packet, origin);
}

void SoftBackend::take_request(Qp& qp, const wire::Packet& packet, const PacketOrigin& origin) {
  const std::uint64_t duplicates = qp.machine->counters().duplicates;
  qp.machine->responder().on_request(packet, origin.marked, now_ - origin.age);
  if (origin.marked) notify_congestion(qp);
  writing_ = &qp;
  if (qp.acknowledge) return;
  if (qp.machine->counters().duplicates > duplicates && now_ - qp.acknowledged_at >= options_.min_timeout) {
    completions_.push_back({.kind = Completion::Kind::kAcksMayBeLost, .qpn = qp.machine->options().qpn});
  }
  qp.acknowledge = true;
  qp.acknowledge_by = now_ + kAcknowledgeDelay;
  acknowledge_.push_back(&qp);
}

/// Hands the packets of a run to their QPs, through the fault injector if `deliver` is set.
void SoftBackend::take(const Arrival& arrival, const FaultInjector::Deliver& deliver) {
  if (arrival.bytes.empty()) ++discards_.malformed;
  PacketOrigin origin = arrival.origin;
  for (std::span<std::byte> rest = arrival.bytes; !rest.empty();) {
    const std::size_t bytes = std::min(arrival.segment_bytes, rest.size());
    if (rest.size() > bytes) __builtin_prefetch(rest.data() + bytes);
    if (deliver) {
      faults_.receive(rest.first(bytes), origin, now_, deliver);
    } else {
      handle(rest.first(bytes), origin);
    }
    rest = rest.subspan(bytes);
    ++origin.likely_id;  // segment i of a batch carries identification i
  }
}

/// Accepts packet `index` of `placement_`. False when it is not a valid packet from the middle of a WRITE.
bool SoftBackend::take_placed(std::size_t index, const PacketOrigin& origin) {
  const auto frame = placement_.frame(index);
  wire::Packet packet;
  if (wire::parse(frame, packet) != wire::ParseError::kNone ||
      static_cast<wire::Opcode>(packet.opcode) != wire::Opcode::kWriteMiddle) {
    return false;
  }
  const auto found = qps_.find(packet.dest_qpn);
  if (found == qps_.end() || !found->second.machine) return false;
  Qp& qp = found->second;
  packet.payload = placement_.payload(index);
  if (origin.address != qp.remote.address ||
      !verifier_.verify(flow_from(origin), frame.first(wire::kBthBytes), packet.payload, frame.last(wire::kIcrcBytes),
                        origin.likely_id, qp.remote.max_ip_id)) {
    return false;
  }
  take_request(qp, packet, origin);
  return true;
}

/// Receives the next run on the assumption that it continues the WRITE of `expected`, whose payloads go to `target`.
/// False when nothing has arrived.
bool SoftBackend::place(const Qp& expected, std::span<std::byte> target) {
  const auto arrival = receive_socket_.receive_into(placement_.prepare(target, expected.remote.path_mtu));
  if (!arrival) return false;
  note_arrival(arrival->bytes > arrival->segment_bytes);
  PacketOrigin origin = arrival->origin;
  std::size_t taken = 0;
  if (arrival->segment_bytes == placement_.packet_bytes()) {
    const std::size_t placed = std::min(placement_.packets(), arrival->bytes / arrival->segment_bytes);
    for (; taken < placed && take_placed(taken, origin); ++taken) ++origin.likely_id;
  }
  // The other packets are handled as if they had been received without direct placement.
  const std::span<std::byte> others = placement_.gather(taken, arrival->bytes);
  if (taken == 0 || !others.empty()) {
    take({.bytes = others, .segment_bytes = arrival->segment_bytes, .origin = origin}, {});
  }
  // Data of one host must not stay in the memory of another host's message: the expected peer may end its message
  // without completing this WRITE.
  if (origin.address != expected.remote.address) {
    std::ranges::fill(target.first(std::min(target.size(), arrival->bytes)), std::byte{0});
  }
  return true;
}

bool SoftBackend::receive() {
  const bool faulty = options_.faults.any();
  FaultInjector::Deliver deliver;
  if (faulty) {
    deliver = [this](std::span<std::byte> packet, const PacketOrigin& origin) { handle(packet, origin); };
  }
  bool any = false;
  for (std::size_t i = 0; i < ReceiveSocket::kBatch; ++i) {
    const bool streaming = streaming_ > 0 && !faulty;
    if (streaming && writing_ != nullptr) {
      if (const auto target = writing_->machine->placement_target(); !target.empty()) {
        if (!place(*writing_, target)) break;
        any = true;
        continue;
      }
    }
    const auto arrivals = receive_socket_.receive(streaming ? 1 : ReceiveSocket::kBatch);
    for (const Arrival& arrival : arrivals) {
      note_arrival(arrival.bytes.size() > arrival.segment_bytes);
      take(arrival, deliver);
    }
    any = any || !arrivals.empty();
    if (!streaming || arrivals.empty()) break;
  }
  if (any) arrived_at_ = now_;
  if (faulty) faults_.release(now_, deliver);
  if (!acknowledge_.empty()) send_acknowledgements(false);
  return any;
}

/// Chooses how to receive. Single packets are received many at a time, runs of packets one run at a time.
void SoftBackend::note_arrival(bool run) {
  constexpr unsigned kSingleArrivals = 16;  // this many arrivals of single packets end the mode for runs
  streaming_ = run ? kSingleArrivals : std::max(streaming_, 1U) - 1;
}

/// Sends the acknowledgements that must not wait, or all of them.
void SoftBackend::send_acknowledgements(bool all) {
  all = all || now_ - arrived_at_ >= kQuiet;
  std::erase_if(acknowledge_, [&](Qp* qp) {
    if (!all && now_ < qp->acknowledge_by && !qp->machine->responder().acknowledgement_urgent()) return false;
    acknowledge(*qp);
    return true;
  });
}

void SoftBackend::acknowledge(Qp& qp) {
  qp.acknowledge = false;
  if (qp.machine->responder().has_unacknowledged()) qp.acknowledged_at = now_;
  const auto answer = qp.machine->responder().take_acknowledgement(now_);
  if (answer) send_control(qp, *answer);
}

/// Tells a peer that does not count marks in acknowledgements, such as a NIC, of a packet that came marked.
void SoftBackend::notify_congestion(Qp& qp) {
  if (qp.machine->options().mark_counts || now_ < qp.notify_from) return;
  qp.notify_from = now_ + kNotifyEvery;
  send_control(qp, {.header = wire::cnp_header(qp.remote.qpn), .payload = {}});
}

/// Sends an acknowledgement or a congestion notification. A full queue may drop it: the requester's timer repairs a
/// lost acknowledgement, and further marks a lost notification.
void SoftBackend::send_control(const Qp& qp, const OutgoingPacket& packet) {
  std::array<std::byte, wire::kMaxHeaderBytes + Reassembly::kWindow / 8 + wire::kIcrcBytes> bytes;
  std::byte* end = std::copy_n(packet.header.bytes.begin(), packet.header.length, bytes.begin());
  end = std::ranges::copy(packet.payload, end).out;
  put_icrc(end, icrc(flow_of(qp), 0, {bytes.begin(), end}, {}));
  end += wire::kIcrcBytes;
  std::array<iovec, 1> pieces{{{.iov_base = bytes.data(), .iov_len = static_cast<std::size_t>(end - bytes.data())}}};
  if (hand_to_kernel(qp.socket, qp.remote.address, qp.remote.udp_port, pieces, 0) != SendResult::kSent) {
    ++discards_.send_errors;
  }
}

void SoftBackend::settle(Nanos now) {
  now_ = now;
  send_acknowledgements(true);
}

// -- sending ----------------------------------------------------------------------------------------------------

/// Sends one batch of packets. Returns its bytes, 0 when nothing could be sent.
std::size_t SoftBackend::transmit_one(Qp& qp, Nanos now) {
  if (!qp.machine->requester().should_send(now)) return 0;
  // With a pacer, lanes alternate packet by packet.
  const std::size_t limit = pacer_.unlimited() && qp.path->batches ? Batch::kMaxPackets : 1;

  qp.path->lossy = qp.path->lossy || qp.machine->requester().lossy();
  if (qp.path->lossy) qp.machine->requester().expect_loss();
  if (pacer_.unlimited()) qp.machine->requester().probe_after(probe_after(qp));
  const Requester::Checkpoint before = qp.machine->requester().checkpoint();
  const std::size_t count = batch_.take(qp.machine->requester(), flow_of(qp), limit, now);
  if (count == 0) return 0;
  switch (hand_to_kernel(qp.socket, qp.remote.address, qp.remote.udp_port, batch_.pieces(), batch_.segment_bytes())) {
    case SendResult::kSent:
      qp.send_error = 0;
      break;
    case SendResult::kBusy:
      qp.machine->requester().rewind(before);
      busy_until_ = now + kBusyRetry;
      return 0;
    case SendResult::kRefused: {
      const int error = errno;
      ++discards_.send_errors;
      if (outgrows_route(qp)) {
        qp.machine->requester().rewind(before);
        return 0;
      }
      if (count == 1) {
        refuse(qp, error);
        return 0;
      }
      options_.log("the kernel refused a batch of packets (UDP_SEGMENT) to " + format_address(qp.remote.address) +
                   ": " + std::strerror(error) +
                   "; packets to it leave one by one from now on, which costs throughput");
      qp.path->batches = false;
      qp.machine->requester().rewind(before);
      return transmit_one(qp, now);
    }
    case SendResult::kFailed:
      qp.send_error = errno;
      ++discards_.send_errors;  // the same as loss in the network: the timer repairs it or fails the QP
      break;
  }
  const std::size_t ipv6_bytes =
      options_.address.is_ipv4() ? 0
                                 : wire::kIpv6ExtraBytes + options_.segments.header_bytes(qp.remote.address, qp.port);
  pacer_.spend(batch_.bytes() + count * (wire::kIpUdpBytes + ipv6_bytes + kEthernetHeaderBytes));
  return batch_.bytes();
}

/// Whether the route takes only shorter packets than this QP's, because it has changed or a router has reported a
/// narrow link. Then the QP sends nothing more, and the engine replaces it by one with a smaller path MTU.
bool SoftBackend::outgrows_route(Qp& qp) {
  const UdpFlow flow = flow_of(qp);
  const auto mtu = ask_route({.address = flow.src_address, .port = flow.src_port},
                             {.address = flow.dst_address, .port = flow.dst_port});
  if (!mtu) return false;
  const std::uint32_t fitting = wire::largest_path_mtu(
      *mtu - options_.segments.header_bytes(qp.remote.address, qp.port), !options_.address.is_ipv4());
  if (fitting >= qp.remote.path_mtu) return false;
  if (fitting < std::exchange(qp.path->logged_path_mtu, std::min(qp.path->logged_path_mtu, fitting))) {
    options_.log("the route to " + format_address(qp.remote.address) + " takes IP packets of at most " +
                 std::to_string(*mtu) + " bytes: lanes go over to path MTU " + std::to_string(fitting) +
                 ", which costs throughput");
  }
  qp.machine->requester().hold();
  completions_.push_back({.kind = Completion::Kind::kPathMtu, .qpn = qp.machine->options().qpn, .imm = fitting});
  return true;
}

/// The kernel will not take this packet however often it is sent: the QP fails.
void SoftBackend::refuse(Qp& qp, int error) {
  completions_.push_back({.kind = Completion::Kind::kQpFailed,
                          .status = Status::kSendRefused,
                          .qpn = qp.machine->options().qpn,
                          .imm = static_cast<std::uint32_t>(error)});
  qp.machine->requester().fail(Status::kFlushed);
}

/// A QP that failed while the kernel refused its packets: the refusal is the reason, before its completions from
/// `from`.
void SoftBackend::tell_send_error(const Qp& qp, std::size_t from) {
  completions_.insert(completions_.begin() + static_cast<std::ptrdiff_t>(from),
                      {.kind = Completion::Kind::kQpFailed,
                       .status = Status::kSendRefused,
                       .qpn = qp.machine->options().qpn,
                       .imm = static_cast<std::uint32_t>(qp.send_error)});
}

bool SoftBackend::flush(Nanos now) {
  if (now < busy_until_) return false;
  bool any = false;
  std::size_t idle_visits = 0;
  std::size_t budget = pacer_.unlimited() ? kFlushBytes : SIZE_MAX;
  // Until no active QP can send.
  while (!active_.empty() && idle_visits < active_.size() && budget > 0 && pacer_.ready(now) && now >= busy_until_) {
    if (next_active_ >= active_.size()) next_active_ = 0;
    Qp& qp = *active_[next_active_++];
    std::size_t sent = transmit_one(qp, now);
    // Several batches of one QP in a row: batches that arrive together are acknowledged together.
    for (int more = 1; more < kBatchesPerVisit && sent > 0 && pacer_.unlimited(); ++more) {
      const std::size_t next = transmit_one(qp, now);
      if (next == 0) break;
      sent += next;
    }
    idle_visits = sent > 0 ? 0 : idle_visits + 1;
    budget -= std::min(budget, sent);
    any = any || sent > 0;
  }
  return any;
}

bool SoftBackend::wants_work(Nanos now) const {
  const std::uint64_t enough = pacer_.unlimited() ? kUnpacedLookAhead : kLookAhead;
  std::uint64_t sendable = 0;
  for (const Qp* qp : active_) {
    sendable += qp->machine->requester().sendable(now);
    if (sendable >= enough) return false;
  }
  return true;
}

/// A last packet that immediate data makes longer than the others cannot join their batch. A short SEND can, as the
/// last packet of the batch.
bool SoftBackend::ends_separately(std::uint64_t bytes, std::uint32_t path_mtu) const {
  if (!pacer_.unlimited() || bytes <= std::uint64_t{2} * path_mtu) return false;
  return (bytes - 1) % path_mtu + 1 + wire::kImmBytes > path_mtu;
}

bool SoftBackend::progress(Nanos now, std::vector<Completion>& completions) {
  now_ = now;
  bool any = receive();
  for (Qp* qp : active_) {
    const std::size_t finished = completions_.size();
    qp->machine->requester().on_timer(now);
    if (qp->machine->requester().failed() && qp->send_error != 0 && completions_.size() > finished)
      tell_send_error(*qp, finished);
  }
  std::erase_if(active_, [this](Qp* qp) {
    if (!qp->machine->requester().idle()) return false;
    qp->active = false;
    spare_memory_.rest(*qp, now_);
    return true;
  });
  spare_memory_.release(now);
  if (!completions_.empty()) {
    completions.insert(completions.end(), completions_.begin(), completions_.end());
    completions_.clear();
    any = true;
  }
  return any;
}

Nanos SoftBackend::deadline(Nanos now) const {
  if (!acknowledge_.empty()) return now;
  Nanos when = options_.faults.any() ? faults_.deadline() : kNever;
  for (const Qp* qp : active_) {
    if (qp->machine->requester().should_send(now)) {
      when = std::min(when, std::max(busy_until_, pacer_.ready_at()));
    }
    const Nanos timer = qp->machine->requester().deadline();
    if (timer > now || !qp->machine->requester().should_send(now)) when = std::min(when, timer);
  }
  return when;
}

}  // namespace paralet
