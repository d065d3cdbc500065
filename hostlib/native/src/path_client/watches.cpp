// SPDX-License-Identifier: Apache-2.0
#include "path_client/watches.hpp"

#include <algorithm>

namespace paralet::path_client {

std::optional<std::vector<Watches::Due>> Watches::set(const Watch& watch, Nanos now) {
  const Group group{watch.peer, watch.ttl};
  const auto first = ports_.lower_bound({group, 0});
  auto end = first;
  std::map<Key, Port> before;
  for (; end != ports_.end() && end->first.first == group; ++end) before.insert(*end);
  if (ports_.size() - before.size() + watch.ports.size() > kMostPorts) return std::nullopt;
  std::erase_if(due_, [&group](const auto& entry) { return entry.second.first == group; });
  ports_.erase(first, end);
  for (std::size_t i = 0; i < watch.ports.size(); ++i) {
    const Watch::Port& given = watch.ports[i];
    const Key key{group, given.port};
    // Spread over the period, so that routers are not asked for all at once. The service has just measured them.
    const Nanos share = watch.period / static_cast<Nanos>(watch.ports.size()) * static_cast<Nanos>(i + 1);
    Port port{.period = watch.period, .due_at = now + share, .router = given.router};
    if (const auto known = before.find(key); known != before.end()) {
      // A watch that is sent again must not put probes off, nor forget what it has seen.
      port.due_at = std::min(known->second.due_at, now + watch.period);
      port.out = known->second.out;
      if (known->second.router == port.router) port.unanswered = known->second.unanswered;
      before.erase(known);
    }
    if (!port.out) due_.emplace(port.due_at, key);
    ports_.emplace(key, port);
  }
  std::vector<Due> dropped;
  for (const auto& [key, port] : before) {
    if (port.out) dropped.push_back({.peer = watch.peer, .ttl = watch.ttl, .port = key.second});
  }
  return dropped;
}

std::optional<Watches::Due> Watches::next(Nanos now) {
  if (due_.empty() || due_.begin()->first > now) return std::nullopt;
  const Key key = due_.begin()->second;
  due_.erase(due_.begin());
  Port& port = ports_.at(key);
  port.out = true;
  port.due_at += port.period;
  if (port.due_at <= now) port.due_at = now + port.period;  // a late probe is not made up for
  return Due{.peer = key.first.first, .ttl = key.first.second, .port = key.second};
}

void Watches::settled(const Due& probe, const ProbedPort& answer) {
  const Key key{{probe.peer, probe.ttl}, probe.port};
  const auto found = ports_.find(key);
  if (found == ports_.end() || !found->second.out) return;
  Port& port = found->second;
  port.out = false;
  due_.emplace(port.due_at, key);
  if (answer.answer == PortAnswer::kFailed) return;
  const bool answered = answer.answer != PortAnswer::kNone;
  port.unanswered = answered ? 0 : std::min(port.unanswered + 1, kSilent);
  if (answered ? port.router == answer.router : !port.router || port.unanswered < kSilent) return;
  port.router = answer.router;
  moved_.emplace_back(key.first, answer);
}

void Watches::put_off(const Due& probe, Nanos now) {
  const Key key{{probe.peer, probe.ttl}, probe.port};
  const auto found = ports_.find(key);
  if (found == ports_.end() || found->second.out) return;
  Port& port = found->second;
  const auto [first, end] = due_.equal_range(port.due_at);
  due_.erase(std::find_if(first, end, [&key](const auto& entry) { return entry.second == key; }));
  port.due_at = now + port.period;
  port.unanswered = 0;
  due_.emplace(port.due_at, key);
}

std::vector<Moved> Watches::take_moved() {
  std::vector<Moved> out;
  std::ranges::stable_sort(moved_, {}, &std::pair<Group, ProbedPort>::first);
  for (const auto& [group, answer] : moved_) {
    const auto& [peer, ttl] = group;
    const bool same = !out.empty() && out.back().peer == peer && out.back().ttl == ttl;
    if (!same || out.back().answers.size() == kMaxProbedPorts) {
      out.push_back({.peer = peer, .ttl = ttl, .answers = {}});
    }
    out.back().answers.push_back(answer);
  }
  moved_.clear();
  return out;
}

}  // namespace paralet::path_client
