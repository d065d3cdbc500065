// SPDX-License-Identifier: Apache-2.0
#include "prober/prober.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/errors.hpp"
#include "base/limits.hpp"
#include "prober/probe_socket.hpp"

namespace paralet::prober {
namespace {

constexpr std::size_t kSendsPerTurn = 16;  // before answers are looked at, whose times would be wrong else
constexpr int kEvents = 64;
constexpr int kMostErrors = 64;  // of one socket at a time: a flood of forged ones costs it its answer, and no more

bool no_room(int error) { return error == ENOBUFS || error == EAGAIN || error == ENOMEM || error == EMFILE; }

std::uint64_t random_u64() { return (std::uint64_t{random_u32()} << 32) | random_u32(); }

}  // namespace

Prober::Prober(const Limits& limits)
    : schedule_(limits), sent_(limits.window), epoll_(::epoll_create1(EPOLL_CLOEXEC)), nonces_(random_u64()) {
  if (!epoll_.valid()) throw DeviceError("cannot open an epoll set for probes: " + error_text(errno));
}

std::size_t Prober::add(const Target& target) {
  targets_.push_back(target);
  return targets_.size() - 1;
}

Nanos Prober::poll(Nanos now) {
  receive();
  for (const std::size_t slot : schedule_.expire(now)) sent_[slot].socket.reset();
  for (std::size_t i = 0; i < kSendsPerTurn; ++i) {
    const auto departure = schedule_.next(now);
    if (!departure) break;
    send(*departure, now);
  }
  return schedule_.deadline();
}

bool Prober::run(Nanos until) {
  for (Nanos t = now(); !idle() && t < until; t = now()) {
    const Nanos rest = std::min(poll(t), until) - now();
    if (rest <= 0 || idle()) continue;
    // Not epoll_wait: it would take the events from `receive`.
    pollfd waited{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    const timespec timeout{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
    ::ppoll(&waited, 1, &timeout, nullptr);
  }
  return idle();
}

ProberCounters Prober::counters() const {
  ProberCounters out = counters_;
  out.limited = schedule_.limited();
  return out;
}

void Prober::send(const Schedule::Departure& departure, Nanos now) {
  const Target& target = targets_[departure.probe.target];
  Sent& sent = sent_[departure.slot];
  const bool udp = target.protocol == Protocol::kUdp;
  if (udp) sent.payload = payload_of(target, departure.probe, nonces_.next());
  SentProbe out = udp ? send_udp(target, departure.probe, sent.payload) : send_syn(target, departure.probe);
  if (out.error == 0) {
    // Edge-triggered: an error that is none of the probe's leaves the socket ready.
    epoll_event events{.events = EPOLLET | (udp ? 0U : static_cast<std::uint32_t>(EPOLLOUT)),
                       .data = {.u64 = departure.slot}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, out.socket.get(), &events) != 0) out.error = errno;
  }
  if (out.error == 0) {
    sent.socket = std::move(out.socket);
    schedule_.left(departure.slot, out.sent_at);
    ++counters_.sent;
  } else if (no_room(out.error)) {
    schedule_.postpone(departure.slot, now);
  } else {
    schedule_.failed(departure.slot, out.error, std::nullopt);
  }
}

void Prober::receive() {
  std::array<epoll_event, kEvents> events;
  for (int count = kEvents; count == kEvents;) {
    count = ::epoll_wait(epoll_.get(), events.data(), kEvents, 0);
    for (int i = 0; i < count; ++i) on_event(events[static_cast<std::size_t>(i)].data.u64, now());
  }
}

void Prober::on_event(std::size_t slot, Nanos now) {
  if (!schedule_.under_way(slot)) return;
  const Probe probe = schedule_.probe(slot);
  const Target& target = targets_[probe.target];
  const Sent& sent = sent_[slot];
  for (int i = 0; i < kMostErrors; ++i) {
    const auto next = next_error(sent.socket.get(), target, probe, sent.payload);
    if (!next) break;
    const ErrorKind kind = next->error.kind;
    if (kind == ErrorKind::kLocal || (next->of_probe && kind != ErrorKind::kOther)) {
      on_answer(slot, next->error, now);
      return;
    }
    ++counters_.mismatched;
  }
  if (target.protocol == Protocol::kTcp && destination_answered(sent.socket.get())) {
    on_answer(slot, {.kind = ErrorKind::kUnreachable, .number = 0, .sender = target.to}, now);
  }
}

void Prober::on_answer(std::size_t slot, const QueuedError& error, Nanos now) {
  const IpAddress& to = targets_[schedule_.probe(slot).target].to;
  if (error.kind == ErrorKind::kLocal) {
    schedule_.failed(slot, error.number, std::nullopt);
  } else if (error.kind == ErrorKind::kTimeExceeded || error.sender == to) {
    ++counters_.answered;
    const bool hop = error.kind == ErrorKind::kTimeExceeded;
    schedule_.answered(slot, hop ? Answer::kHop : Answer::kDestination, error.sender, now);
  } else {
    schedule_.failed(slot, error.number, error.sender);
  }
  sent_[slot].socket.reset();
}

}  // namespace paralet::prober
