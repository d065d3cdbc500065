// SPDX-License-Identifier: Apache-2.0
#include "path_client/asks.hpp"

#include <algorithm>

namespace paralet::path_client {

bool Asks::add(const ProbeAsk& ask, Nanos now) {
  if (open_.contains(ask.ask)) return false;
  Open open{.ask = ask, .until = now + kLongest, .pace = Pacer(ask.rate, 1), .ports = {}, .waiting = {}};
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
    if (open.waiting.empty() || !open.pace.ready(now)) continue;
    Port& port = open.ports[open.waiting.front()];
    open.waiting.pop_front();
    open.pace.spend(1);
    ++port.attempts;
    port.out = true;
    return Due{.ask = number, .peer = open.ask.peer, .ttl = open.ask.ttl, .port = port.answer.port};
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
  port->answer = given;
  if (given.answer == PortAnswer::kNone && port->attempts < kAttempts) {
    open.waiting.push_back(static_cast<std::size_t>(port - open.ports.begin()));
    return;
  }
  port->done = true;
  if (--open.left == 0) answer(found);
}

std::vector<Asks::Due> Asks::expire(Nanos now) {
  std::vector<Due> out;
  for (auto open = open_.begin(); open != open_.end();) {
    const auto next = std::next(open);
    if (now >= open->second.until) {
      for (const Port& port : open->second.ports) {
        if (port.out) out.push_back({open->first, open->second.ask.peer, open->second.ask.ttl, port.answer.port});
      }
      answer(open);
    }
    open = next;
  }
  return out;
}

/// A port without any settled probe has failed.
void Asks::answer(std::map<std::uint64_t, Open>::iterator open) {
  Probed& probed = answered_.emplace_back(Probed{.ask = open->first, .answers = {}});
  for (const Port& port : open->second.ports) probed.answers.push_back(port.answer);
  open_.erase(open);
}

Nanos Asks::deadline() const {
  Nanos soonest = kNever;
  for (const auto& [number, open] : open_) {
    soonest = std::min(soonest, open.until);
    if (!open.waiting.empty()) soonest = std::min(soonest, open.pace.ready_at());
  }
  return soonest;
}

}  // namespace paralet::path_client
