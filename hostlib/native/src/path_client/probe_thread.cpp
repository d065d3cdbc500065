// SPDX-License-Identifier: Apache-2.0
#include "path_client/probe_thread.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include "base/errors.hpp"
#include "base/limits.hpp"

namespace paralet::path_client {
namespace {

ProbedPort answer_of(const prober::Observation& seen) {
  ProbedPort out{.port = seen.probe.source_port, .answer = PortAnswer::kNone};
  if (seen.answer == prober::Answer::kNone) return out;
  out.answer = seen.answer == prober::Answer::kHop ? PortAnswer::kHop : PortAnswer::kDestination;
  out.router = seen.router;
  out.round_trip = seen.answered_at - seen.sent_at;
  return out;
}

/// A router that refuses a packet is no answer of the path's.
ProbedPort answer_of(const prober::Failure& failure) {
  return {.port = failure.probe.source_port, .answer = failure.router ? PortAnswer::kNone : PortAnswer::kFailed};
}

}  // namespace

ProbeThread::ProbeThread(const Options& options, ProbeTotals& totals, std::function<void()> answered)
    : options_(options),
      totals_(totals),
      answered_(std::move(answered)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      prober_(options.limits) {
  if (!wake_.valid()) throw DeviceError("cannot open an eventfd for probes: " + error_text(errno));
  thread_ = start_thread([this] { run(); });
}

ProbeThread::~ProbeThread() {
  stop_ = true;
  wake();
  thread_.join();
}

void ProbeThread::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void ProbeThread::order(ProbeOrder order) {
  {
    const MutexLock lock(mutex_);
    orders_.push_back(std::move(order));
  }
  wake();
}

std::string ProbeThread::take_lines() {
  const MutexLock lock(mutex_);
  return std::exchange(lines_, {});
}

void ProbeThread::run() {
  while (!stop_) {
    const Nanos t = now();
    take_orders(t);
    for (const Asks::Due& due : asks_.expire(t)) take_back({.ask = due.ask, .peer = due.peer}, due.port, due.ttl);
    while (const auto due = asks_.next(t)) {
      hand_over({.ask = due->ask, .peer = due->peer, .once = due->once, .since = due->since}, due->port, due->ttl);
    }
    while (const auto due = watches_.next(t)) {
      hand_over({.ask = std::nullopt, .peer = due->peer, .since = t}, due->port, due->ttl);
    }
    const Nanos next = prober_.poll(t);
    take_answers();
    count();
    publish();
    wait(std::min({next, asks_.deadline(), watches_.deadline()}));
  }
}

void ProbeThread::wait(Nanos until) {
  std::array<pollfd, 2> waited{
      {{.fd = wake_.get(), .events = POLLIN, .revents = 0}, {.fd = prober_.fd(), .events = POLLIN, .revents = 0}}};
  const Nanos rest = std::clamp<Nanos>(until - now(), 0, kSecond);
  const timespec timeout{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
  ::ppoll(waited.data(), waited.size(), until == kNever ? nullptr : &timeout, nullptr);
  if (waited[0].revents == 0) return;
  std::uint64_t ignored = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof ignored);
}

// -- orders -------------------------------------------------------------------------------------------------------

void ProbeThread::take_orders(Nanos now) {
  std::vector<ProbeOrder> orders;
  {
    const MutexLock lock(mutex_);
    orders.swap(orders_);
  }
  for (const ProbeOrder& order : orders) take(order, now);
}

void ProbeThread::take(const ProbeOrder& order, Nanos now) {
  if (const auto* lanes = std::get_if<PeerLanes>(&order)) {
    lanes_[lanes->peer] = *lanes;
    return;
  }
  bool taken = false;
  if (const auto* ask = std::get_if<ProbeAsk>(&order)) {
    aim(ask->peer);
    taken = asks_.add(*ask, now);
  } else {
    const Watch& watch = std::get<Watch>(order);
    aim(watch.peer);
    const auto ended = watches_.set(watch, now);
    taken = ended.has_value();
    if (taken) {
      for (const Watches::Due& due : *ended) take_back({.ask = std::nullopt, .peer = due.peer}, due.port, due.ttl);
    }
  }
  if (!taken) totals_.refused.fetch_add(1, std::memory_order_relaxed);
}

/// Makes the peer a target.
void ProbeThread::aim(PeerName peer) {
  const bool possible = targets_.size() < kMostPeers && peer.address.is_ipv4() == options_.from.is_ipv4();
  if (!possible || targets_.contains(peer)) return;
  targets_.emplace(
      peer, prober_.add(prober::Target{.from = options_.from,
                                       .to = peer.address,
                                       .destination_port = peer.port,
                                       .protocol = options_.tcp ? prober::Protocol::kTcp : prober::Protocol::kUdp}));
}

// -- probes -------------------------------------------------------------------------------------------------------

void ProbeThread::hand_over(Owner owner, std::uint16_t port, std::uint8_t ttl) {
  const auto target = targets_.find(owner.peer);
  if (target == targets_.end()) {
    settle(owner, ttl, {.port = port, .answer = PortAnswer::kFailed});
    return;
  }
  const PeerLanes& lanes = lanes_[owner.peer];
  owner.qpn = lanes.qpn_of(port);
  owner.first = owner.ask && lanes.has(port);  // data may be on another path than the service thinks
  prober_.add(owners_.add(owner, target->second, port, ttl));
}

/// Forgets a probe. It may have left; its answer then concerns whoever else wants the same, or nobody.
void ProbeThread::take_back(const Owner& owner, std::uint16_t port, std::uint8_t ttl) {
  const auto target = targets_.find(owner.peer);
  if (target == targets_.end()) return;
  if (const auto probe = owners_.remove(owner.ask, target->second, port, ttl)) prober_.drop_waiting(*probe);
}

void ProbeThread::take_answers() {
  for (const prober::Observation& seen : prober_.take_observations()) settle(seen.probe, answer_of(seen), seen.sent_at);
  for (const prober::Failure& failure : prober_.take_failures()) {
    if (const auto owner = owners_.settled(failure.probe)) settle(*owner, failure.probe.ttl, answer_of(failure));
  }
}

/// Routers give few answers: one is for all who wanted it when the probe left.
void ProbeThread::settle(const prober::Probe& probe, const ProbedPort& answer, Nanos sent_at) {
  if (const auto owner = owners_.settled(probe)) settle(*owner, probe.ttl, answer);
  if (answer.answer == PortAnswer::kNone) return;
  for (const auto& [waiting, owner] : owners_.served(probe, sent_at)) {
    prober_.drop_waiting(waiting);
    settle(owner, probe.ttl, answer);
  }
}

void ProbeThread::settle(const Owner& owner, std::uint8_t ttl, const ProbedPort& answer) {
  const Watches::Due probe{.peer = owner.peer, .ttl = ttl, .port = answer.port};
  if (!owner.ask) {
    watches_.settled(probe, answer);
    return;
  }
  asks_.settled(*owner.ask, answer);
  if (answer.answer == PortAnswer::kHop) watches_.put_off(probe, now());
}

void ProbeThread::count() {
  const prober::ProberCounters now = prober_.counters();
  const auto add = [](std::atomic<std::uint64_t>& total, std::uint64_t more) {
    if (more > 0) total.fetch_add(more, std::memory_order_relaxed);
  };
  add(totals_.sent, now.sent - counted_.sent);
  add(totals_.answered, now.answered - counted_.answered);
  add(totals_.limited, now.limited - counted_.limited);
  add(totals_.mismatched, now.mismatched - counted_.mismatched);
  counted_ = now;
}

void ProbeThread::publish() {
  std::string lines;
  for (const Probed& probed : asks_.take_answered()) lines += encode(probed);
  for (const Moved& moved : watches_.take_moved()) {
    lines += encode(moved);
    totals_.moved.fetch_add(moved.answers.size(), std::memory_order_relaxed);
  }
  if (lines.empty()) return;
  {
    const MutexLock lock(mutex_);
    lines_ += lines;
  }
  answered_();
}

}  // namespace paralet::path_client
