// SPDX-License-Identifier: Apache-2.0
#include "path_client/asks.hpp"

#include <algorithm>

namespace paralet::path_client {

bool Asks::add(const ProbeAsk& ask, Nanos now) {
  if (open_.contains(ask.ask)) return false;
  Open open{.ask = ask, .since = now, .until = now + kLongest, .pace = Pacer(ask.rate, 1), .ports = {}, .waiting = {}};
  for (const std::uint16_t port : ask.ports) {
    open.waiting.push_back(open.ports.size());
    open.ports.push_back({.answer = {.port = port, .answer = PortAnswer::kFailed}});
  }
  open.left = open.ports.size();
  const auto added = open_.emplace(ask.ask, std::move(open)).first;
  if (open_.size() > kMostOpen) answer(added);
  return true;
}

std::optional<Asks::Due> Asks::next(Nanos now) {
  for (auto& [number, open] : open_) {
    if (!open.has_next() || !open.pace.ready(now)) continue;
    Port& port = open.ports[open.waiting.front()];
    open.waiting.pop_front();
    open.pace.spend(1);
    ++port.attempts;
    port.out = true;
    ++open.out;
    return Due{.ask = number,
               .peer = open.ask.peer,
               .ttl = open.ask.ttl,
               .port = port.answer.port,
               .once = open.ask.once,
               .since = open.since};
  }
  return std::nullopt;
}

void Asks::settled(std::uint64_t ask, const ProbedPort& given) {
  const auto found = open_.find(ask);
  if (found == open_.end()) return;
  Open& open = found->second;
  const auto port =
      std::ranges::find_if(open.ports, [&given](const Port& one) { return one.answer.port == given.port; });
  if (port == open.ports.end() || !port->out) return;
  port->out = false;
  --open.out;
  port->answer = given;
  if (given.answer == PortAnswer::kNone && port->attempts < (open.ask.once ? 1 : kAttempts)) {
    open.waiting.push_back(static_cast<std::size_t>(port - open.ports.begin()));
    return;
  }
  port->done = true;
  const bool sought = std::ranges::any_of(open.ask.until, [&](const IpAddress& one) { return one == given.router; });
  if (--open.left == 0 || sought) answer(found);
}

std::vector<Asks::Due> Asks::expire(Nanos now) {
  std::vector<Due> out;
  for (auto open = open_.begin(); open != open_.end();) {
    const auto next = std::next(open);
    if (now >= open->second.until) {
      for (const Port& port : open->second.ports) {
        const ProbeAsk& ask = open->second.ask;
        if (port.out) {
          out.push_back(
              {.ask = open->first, .peer = ask.peer, .ttl = ask.ttl, .port = port.answer.port, .once = ask.once});
        }
      }
      answer(open);
    }
    open = next;
  }
  return out;
}

/// A port without any settled probe has failed. Of an ask with `until`, such ports are left out.
void Asks::answer(std::map<std::uint64_t, Open>::iterator open) {
  Probed& probed = answered_.emplace_back(Probed{.ask = open->first, .answers = {}});
  const bool all = open->second.ask.until.empty();
  for (const Port& port : open->second.ports) {
    if (all || port.done) probed.answers.push_back(port.answer);
  }
  open_.erase(open);
}

Nanos Asks::deadline() const {
  Nanos soonest = kNever;
  for (const auto& [number, open] : open_) {
    soonest = std::min(soonest, open.until);
    if (open.has_next()) soonest = std::min(soonest, open.pace.ready_at());
  }
  return soonest;
}

}  // namespace paralet::path_client
