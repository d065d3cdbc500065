// SPDX-License-Identifier: Apache-2.0
#include "tcp/tcp_backend.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/limits.hpp"
#include "base/random.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr std::size_t kSendBytes = 260 * 1024;     // of a lane in one system call: 256 KiB of messages, with headers
constexpr std::size_t kFlushBytes = 512 * 1024;    // sent between two looks at what has arrived
constexpr std::size_t kReceiveBytes = 512 * 1024;  // of a lane before the next lane
constexpr std::uint64_t kLookAhead = 256 * 1024;   // bytes that may wait before lanes pull more flowlets
constexpr Nanos kAcknowledgeAfter = 50 * kMicrosecond;  // the oldest short message, with all that came after it
constexpr std::size_t kPacedBytes = 16 * 1024;          // with a pacer, lanes alternate by these

double bucket_bytes(double line_rate_bps) { return std::max(4.0 * kPacedBytes, line_rate_bps / 8 * 4e-3); }

Interface interface_with(const IpAddress& address) {
  auto found = interface_of(address);
  if (!found) {
    throw DeviceError("no interface of this machine has the address " + format_address(address) +
                      " (list them with: ip address)");
  }
  return *found;
}

}  // namespace

TcpBackend::TcpBackend(const TcpOptions& options)
    : options_(options),
      interface_(interface_with(options.sockets.address)),
      greeter_(options_.sockets, watcher_),
      pacer_(options.line_rate_bps / 8, bucket_bytes(options.line_rate_bps)),
      faults_(options.faults) {}

std::uint32_t TcpBackend::max_path_mtu() const {
  return wire::largest_path_mtu(interface_.mtu_bytes, !options_.sockets.address.is_ipv4());
}

// -- QPs --------------------------------------------------------------------------------------------------------------

QpIdentity TcpBackend::create_qp() {
  for (;;) {
    const std::uint32_t qpn = random_qpn(options_.qpns);
    if (qpn == 0 || qps_.contains(qpn)) continue;
    const QpIdentity identity{.qpn = qpn, .first_psn = random_u32()};
    qps_.try_emplace(qpn, send_context_, receive_context_, watcher_, identity);
    return identity;
  }
}

Ece TcpBackend::ece(std::uint32_t qpn) const {
  const auto& remote = qps_.at(qpn).remote;
  const std::uint32_t options = remote ? remote->ece.options & tcp::kAnswersPings : tcp::kAnswersPings;
  return {.vendor_id = kTcpVendor, .options = options, .comp_mask = 0};
}

bool TcpBackend::connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) {
  Qp& qp = qps_.at(qpn);
  wake();
  if (const int error = qp.sender.connect(remote, source_port, now_); error != 0) {
    if (tcp::port_taken(error)) return false;
    throw DeviceError("cannot connect to " + format_address(remote.address) + ": " + error_text(error));
  }
  qp.remote = remote;
  if ((remote.ece.options & tcp::kAnswersPings) != 0) qp.receiver.answer_pings();
  activate(qp);
  if (const tcp::Hello* hello = qp.receiver.early()) {
    if (fits(qp, *hello, *qp.receiver.early_address())) {
      receive_on(qp);
    } else {
      ++discards_.wrong_source;
      qp.receiver.drop_early();
    }
  }
  return true;
}

PortChange TcpBackend::set_port(std::uint32_t qpn, std::uint16_t source_port) {
  Qp& qp = qps_.at(qpn);
  wake();
  const PortChange change = qp.sender.set_port(source_port, now_);
  activate(qp);
  return change;
}

void TcpBackend::path_changed(std::uint32_t qpn, Nanos now) {
  Qp& qp = qps_.at(qpn);
  if (!qp.remote) return;
  qp.sender.path_changed(now);
  activate(qp);
}

void TcpBackend::fail_qp(std::uint32_t qpn) { qps_.at(qpn).sender.fail(Status::kFlushed); }

void TcpBackend::stop_qp(std::uint32_t qpn) {
  Qp& qp = qps_.at(qpn);
  qp.sender.stop();
  qp.receiver.stop();
  receive_on(qp);
}

std::vector<WorkRequest> TcpBackend::take_back(std::uint32_t qpn, std::uint32_t arrived) {
  return qps_.at(qpn).sender.take_back(arrived);
}

void TcpBackend::destroy_qp(std::uint32_t qpn) {
  const auto found = qps_.find(qpn);
  if (found == qps_.end()) return;
  std::erase(active_, &found->second);
  std::erase(receiving_, &found->second);
  std::erase(owing_, &found->second);
  qps_.erase(found);
}

void TcpBackend::post(std::uint32_t qpn, const WorkRequest& request) {
  Qp& qp = qps_.at(qpn);
  if (qp.sender.queue().empty()) wake();
  qp.sender.post(request, now_);
  activate(qp);
}

void TcpBackend::activate(Qp& qp) {
  if (std::exchange(qp.active, true)) return;
  active_.push_back(&qp);
}

void TcpBackend::receive_on(Qp& qp) {
  if (std::exchange(qp.receiving, true)) return;
  receiving_.push_back(&qp);
}

// -- receiving --------------------------------------------------------------------------------------------------------

/// What has become ready since the last call.
void TcpBackend::look() {
  std::array<epoll_event, 64> room;
  for (std::size_t count = room.size(); count == room.size();) {
    const auto events = watcher_.ready(room);
    count = events.size();
    for (const epoll_event& event : events) {
      const std::uint64_t watched = event.data.u64;
      const std::uint32_t qpn = tcp::Watcher::qpn_of(watched);
      if (qpn == 0) {
        std::optional<tcp::Greeting> greeting;
        greeter_.on_event(watched, now_, greeting);
        if (greeting) greet(std::move(*greeting));
        continue;
      }
      const auto found = qps_.find(qpn);
      if (found == qps_.end()) continue;
      Qp& qp = found->second;
      if (qp.sender.on_event(watched, event.events, now_)) {
        activate(qp);
      } else if (qp.receiver.owns(watched)) {
        qp.receiver.on_event(watched, event.events);
        if (qp.remote) receive_on(qp);
      }
    }
  }
}

/// Only the peer knows the tokens of both QPs.
bool TcpBackend::fits(const Qp& qp, const tcp::Hello& hello, const IpAddress& from) {
  return from == qp.remote->address && hello.from_qpn == qp.remote->qpn && hello.from_token == qp.remote->first_psn;
}

/// A connection whose hello names no QP of ours, or comes from somebody else, is closed.
void TcpBackend::greet(tcp::Greeting&& greeting) {
  if (faults_.kills(greeting.port, 0)) {
    watcher_.remove(greeting.socket.get());
    unheard_.push_back(std::move(greeting.socket));
    return;
  }
  const auto found = qps_.find(greeting.hello.to_qpn);
  if (found == qps_.end() || found->second.identity.first_psn != greeting.hello.to_token) {
    ++discards_.unknown_qp;
  } else if (found->second.remote && !fits(found->second, greeting.hello, greeting.address)) {
    ++discards_.wrong_source;
  } else if (!found->second.receiver.takes(greeting.hello)) {
    ++discards_.malformed;
  } else {
    found->second.receiver.greet(std::move(greeting));
    if (found->second.remote) receive_on(found->second);
    return;
  }
  watcher_.remove(greeting.socket.get());
  tcp::reset(greeting.socket);
}

/// Receives on every lane that has something, `most` bytes of each. Whether one of them had.
bool TcpBackend::receive(std::size_t most) {
  bool any = false;
  std::erase_if(receiving_, [&](Qp* qp) {
    tcp::Receiver& receiver = qp->receiver;
    any = any || !receiver.stalled() || !buffers_.empty();
    qp->receiving = receiver.receive(scratch_, most) || receiver.stalled();
    if (receiver.owes() && !std::exchange(qp->owing, true)) {
      if (owing_.empty()) owing_since_ = now_;
      owing_.push_back(qp);
    }
    if (receiver.socket() >= 0 && faults_.kills(receiver.port(), receiver.frames_here())) receiver.deafen();
    return !qp->receiving;
  });
  return any;
}

/// Acknowledges the short messages that have been read.
void TcpBackend::acknowledge() {
  for (Qp* qp : owing_) {
    qp->owing = false;
    qp->receiver.acknowledge();
  }
  owing_.clear();
}

bool TcpBackend::hand_over(std::vector<Completion>& completions) {
  if (completions_.empty()) return false;
  completions.insert(completions.end(), completions_.begin(), completions_.end());
  completions_.clear();
  return true;
}

bool TcpBackend::progress(Nanos now, std::vector<Completion>& completions) {
  now_ = now;
  look();
  const bool received = receive(kReceiveBytes);
  if (!owing_.empty() && now - owing_since_ >= kAcknowledgeAfter) acknowledge();
  for (Qp* qp : active_) qp->sender.tick(now);
  std::erase_if(active_, [](Qp* qp) {
    qp->active = !qp->sender.idle();
    return !qp->active;
  });
  if (now >= greeter_.deadline()) greeter_.tick(now);
  return hand_over(completions) || received;
}

bool TcpBackend::take_arrived(Nanos now, std::vector<Completion>& completions) {
  now_ = now;
  look();
  receive(SIZE_MAX);
  hand_over(completions);
  return std::ranges::any_of(receiving_, [](const Qp* qp) { return qp->receiver.stalled(); });
}

void TcpBackend::settle(Nanos now) {
  now_ = now;
  acknowledge();
}

// -- sending ----------------------------------------------------------------------------------------------------------

bool TcpBackend::flush(Nanos now) {
  std::size_t budget = kFlushBytes;
  const std::size_t most = pacer_.unlimited() ? kSendBytes : kPacedBytes;
  bool any = false;
  for (std::size_t in_vain = 0; in_vain < active_.size() && budget > 0 && pacer_.ready(now);) {
    if (next_active_ >= active_.size()) next_active_ = 0;
    Qp& qp = *active_[next_active_++];
    const std::size_t sent = qp.sender.send(most);
    if (sent > 0 && faults_.cuts()) qp.sender.cut(now);
    pacer_.spend(sent);
    budget -= std::min(budget, sent);
    in_vain = sent > 0 ? 0 : in_vain + 1;
    any = any || sent > 0;
  }
  return any;
}

bool TcpBackend::wants_work(Nanos now) const {
  static_cast<void>(now);
  std::uint64_t waiting = 0;
  for (const Qp* qp : active_) {
    waiting += qp->sender.sendable();
    if (waiting >= kLookAhead) return false;
  }
  return true;
}

Nanos TcpBackend::deadline(Nanos now) const {
  Nanos when = greeter_.deadline();
  for (const Qp* qp : receiving_) {
    if (!qp->receiver.stalled()) return now;
  }
  for (const Qp* qp : active_) {
    if (qp->sender.sendable() > 0) when = std::min(when, std::max(now, pacer_.ready_at()));
    when = std::min(when, qp->sender.deadline());
  }
  return when;
}

// -- what is known ----------------------------------------------------------------------------------------------------

PathEstimate TcpBackend::estimate(std::uint32_t qpn) const { return qps_.at(qpn).sender.estimate(now_); }

QpStatistics TcpBackend::statistics(std::uint32_t qpn) const {
  const Qp& qp = qps_.at(qpn);
  QpStatistics out;
  qp.sender.add_to(out, now_);
  const tcp::FrameReader& reader = qp.receiver.reader();
  out.counters.rx_bytes = reader.payload_bytes();
  out.counters.rx_packets =
      reader.payload_bytes() / std::max(1U, qp.remote ? qp.remote->path_mtu : 1) + reader.frames();
  return out;
}

Discards TcpBackend::discards() const {
  Discards out = discards_;
  out.malformed += greeter_.refused();
  out.injected = faults_.injected();
  return out;
}

}  // namespace paralet
