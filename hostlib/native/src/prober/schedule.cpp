// SPDX-License-Identifier: Apache-2.0
#include "prober/schedule.hpp"

#include <algorithm>
#include <utility>

namespace paralet::prober {
namespace {

constexpr double kLateProbes = 8;  // that leave at once when the caller was late
constexpr Nanos kPause = kMillisecond;

}  // namespace

Schedule::Schedule(const Limits& limits)
    : limits_(limits),
      pace_(limits.rate, kLateProbes),
      routers_(limits.router_rate, limits.router_burst),
      slots_(limits.window) {
  for (std::size_t slot = slots_.size(); slot-- > 0;) free_.push_back(slot);
}

void Schedule::add(const Probe& probe) {
  const auto [found, fresh] = numbers_.try_emplace({probe.target, probe.ttl}, places_.size());
  if (fresh) places_.push_back({.ttl = probe.ttl, .waiting = {}, .routers = {}});
  wait(places_[found->second], {.probe = probe});
}

/// Behind those that leave as soon.
void Schedule::wait(Place& place, const Waiting& waiting) {
  const auto others = [](const Waiting& one) { return !one.probe.first; };
  const auto at = waiting.probe.first ? std::ranges::find_if(place.waiting, others) : place.waiting.end();
  place.waiting.insert(at, waiting);
  ++waiting_;
}

std::size_t Schedule::drop_waiting() {
  for (Place& place : places_) place.waiting.clear();
  return std::exchange(waiting_, 0);
}

void Schedule::drop_waiting(const Probe& probe) {
  const auto number = numbers_.find({probe.target, probe.ttl});
  if (number == numbers_.end()) return;
  std::deque<Waiting>& waiting = places_[number->second].waiting;
  const auto found = std::ranges::find(waiting, probe, &Waiting::probe);
  if (found == waiting.end()) return;
  waiting.erase(found);
  --waiting_;
}

/// The first of a place's probes whose source port has none under way.
std::optional<std::size_t> Schedule::sendable(const Place& place) const {
  const std::size_t looked = std::min(kLook, place.waiting.size());
  for (std::size_t i = 0; i < looked; ++i) {
    if (!busy_[place.waiting[i].probe.source_port]) return i;
  }
  return std::nullopt;
}

/// The routers that may answer. On a Clos the way up has the same routers for every target, so until one has answered a
/// target's probes, as many of these leave as one router answers at once.
std::span<const std::size_t> Schedule::routers_of(const Place& place, const Probe& probe) const {
  const RouterLimits::Routers& others = by_ttl_[place.ttl];
  if (probe.once && !others.empty()) return others;
  if (!place.routers.empty()) return place.routers;
  const bool borrows = !others.empty() && place.unanswered + 1 <= limits_.router_burst;
  return borrows ? std::span<const std::size_t>(others) : RouterLimits::unknown(place.ttl);
}

Nanos Schedule::ready_at(const Place& place, const Probe& probe) const {
  const std::span<const std::size_t> routers = routers_of(place, probe);
  return probe.once ? routers_.any_ready_at(routers) : routers_.ready_at(routers);
}

std::optional<Schedule::Departure> Schedule::next(Nanos now) {
  if (waiting_ == 0 || free_.empty() || now < paused_until_ || !pace_.ready(now)) return std::nullopt;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const std::size_t number = (turn_ + i) % places_.size();
    Place& place = places_[number];
    const auto chosen = sendable(place);
    if (!chosen) continue;
    if (ready_at(place, place.waiting[*chosen].probe) > now) {
      if (!std::exchange(place.waiting[*chosen].limited, true)) ++limited_;
      continue;
    }
    const auto at = place.waiting.begin() + static_cast<std::ptrdiff_t>(*chosen);
    const Waiting waiting = *at;
    place.waiting.erase(at);
    --waiting_;
    turn_ = number + 1;
    pace_.spend(1);
    const std::span<const std::size_t> charged = routers_of(place, waiting.probe);
    routers_.charge(charged, now);
    RouterLimits::Routers own(charged.begin(), charged.end());
    if (place.routers.empty()) ++place.unanswered;
    busy_.set(waiting.probe.source_port);
    const std::size_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = {.used = true,
                    .probe = waiting.probe,
                    .attempts = waiting.attempts + 1,
                    .place = number,
                    .charged = std::move(own),
                    .sent_at = now,
                    .turn = ++departures_};
    const bool once = waiting.probe.once;
    const Nanos timeout = once ? limits_.once_timeout : limits_.timeout;
    expiries_[once ? 1 : 0].push_back({.slot = slot, .turn = departures_, .at = now + timeout});
    return Departure{.slot = slot, .probe = waiting.probe};
  }
  return std::nullopt;
}

void Schedule::release(std::size_t slot) {
  slots_[slot].used = false;
  busy_.reset(slots_[slot].probe.source_port);
  free_.push_back(slot);
}

void Schedule::postpone(std::size_t slot, Nanos now) {
  const Slot& sent = slots_[slot];
  places_[sent.place].waiting.push_front({.probe = sent.probe, .attempts = sent.attempts - 1});
  ++waiting_;
  release(slot);
  paused_until_ = now + kPause;
}

void Schedule::answered(std::size_t slot, Answer answer, const IpAddress& router, Nanos now) {
  const Slot& sent = slots_[slot];
  Place& place = places_[sent.place];
  routers_.answered(place.routers, router, now, sent.charged);
  if (answer == Answer::kHop) routers_.answered(by_ttl_[place.ttl], router, now);
  observations_.push_back(
      {.probe = sent.probe, .answer = answer, .router = router, .sent_at = sent.sent_at, .answered_at = now});
  release(slot);
}

void Schedule::failed(std::size_t slot, int error, std::optional<IpAddress> router) {
  failures_.push_back({.probe = slots_[slot].probe, .error = error, .router = router});
  release(slot);
}

void Schedule::unanswered(std::size_t slot, Nanos now) {
  const Slot& sent = slots_[slot];
  observations_.push_back({.probe = sent.probe,
                           .answer = Answer::kNone,
                           .router = std::nullopt,
                           .sent_at = sent.sent_at,
                           .answered_at = now});
  if (sent.probe.once) {
    routers_.refund(sent.charged, now);
  } else if (sent.attempts < limits_.attempts) {
    wait(places_[sent.place], {.probe = sent.probe, .attempts = sent.attempts});
  }
  release(slot);
}

std::vector<std::size_t> Schedule::expire(Nanos now) {
  std::vector<std::size_t> out;
  for (auto& expiries : expiries_) {
    for (; !expiries.empty() && expiries.front().at <= now; expiries.pop_front()) {
      const Expiry& expiry = expiries.front();
      if (slots_[expiry.slot].used && slots_[expiry.slot].turn == expiry.turn) {
        unanswered(expiry.slot, now);
        out.push_back(expiry.slot);
      }
    }
  }
  return out;
}

Nanos Schedule::deadline() const {
  if (idle()) return kNever;  // what is left of `expiries_` has been settled
  Nanos soonest = kNever;
  for (const auto& expiries : expiries_) {
    if (!expiries.empty()) soonest = std::min(soonest, expiries.front().at);
  }
  if (waiting_ == 0 || free_.empty()) return soonest;
  for (const Place& place : places_) {
    const auto chosen = sendable(place);
    if (!chosen) continue;
    const Nanos answerable = ready_at(place, place.waiting[*chosen].probe);
    soonest = std::min(soonest, std::max({paused_until_, pace_.ready_at(), answerable}));
  }
  return soonest;
}

}  // namespace paralet::prober
