// SPDX-License-Identifier: Apache-2.0
#include "flows.hpp"

#include <algorithm>

namespace paralet::pin {
namespace {

/// What is announced of a flow that begins. Its bytes are counted later, where they can be.
std::uint64_t first_announced(const KnownFlow& flow) {
  if (flow.declared != 0) return std::max(flow.declared, Flows::kElephant);
  return flow.course.tcp ? 0 : Flows::kElephant;
}

}  // namespace

std::optional<Slot> Flows::take_slot(const Course& course, std::uint64_t id, Nanos now) {
  Places& places = courses_[course];
  const auto found =
      std::ranges::find_if(places, [&](const Place& place) { return place.flow == 0 && place.rests_until <= now; });
  if (found == places.end()) return std::nullopt;
  found->flow = id;
  return static_cast<Slot>(found - places.begin());
}

void Flows::leave_slot(const KnownFlow& flow, Nanos rests_until) {
  courses_[flow.course][flow.slot] = {.flow = 0, .rests_until = rests_until};
  if (rests_until != 0) resting_.emplace_back(rests_until, flow.course);
}

void Flows::forget_if_empty(const Course& course, Nanos now) {
  const auto found = courses_.find(course);
  if (found == courses_.end()) return;
  for (Place& place : found->second) {
    if (place.rests_until <= now) place.rests_until = 0;  // for `end`, which knows no time
  }
  const auto is_free = [](const Place& place) { return place.flow == 0 && place.rests_until == 0; };
  if (std::ranges::all_of(found->second, is_free)) courses_.erase(found);
}

void Flows::forget_rested(Nanos now) {
  // All rest for the same time, so the first one is the first to have rested.
  while (!resting_.empty() && resting_.front().first <= now) {
    forget_if_empty(resting_.front().second, now);
    resting_.pop_front();
  }
}

KnownFlow* Flows::begin(const Course& course, int pid, std::string what, std::uint64_t declared, Nanos now) {
  forget_rested(now);
  if (flows_.size() >= kMost) return nullptr;
  const auto slot = take_slot(course, next_id_, now);
  if (!slot) return nullptr;
  KnownFlow& flow = flows_[next_id_];
  flow = {.id = next_id_++,
          .course = course,
          .slot = *slot,
          .pid = pid,
          .what = std::move(what),
          .declared = declared,
          .begun = now,
          .active_at = now};
  announce(flow, first_announced(flow));
  return &flow;
}

bool Flows::next_slot(std::uint64_t id, Nanos now) {
  KnownFlow* flow = find(id);
  if (flow == nullptr) return false;
  release(*flow);
  const auto slot = take_slot(flow->course, id, now);
  leave_slot(*flow, now + kTimeWait);
  if (!slot) {
    flows_.erase(id);
    return false;
  }
  flow->slot = *slot;
  flow->port = flow->planned_port = 0;
  flow->path.clear();
  flow->begun = flow->active_at = now;
  flow->tried = flow->came = flow->may_retry = false;
  announce(*flow, first_announced(*flow));
  return true;
}

void Flows::end(std::uint64_t id) {
  const auto found = flows_.find(id);
  if (found == flows_.end()) return;
  KnownFlow& flow = found->second;
  release(flow);
  // A connection of the kernel may outlive its socket; who gives out the port again looks for it.
  leave_slot(flow, 0);
  forget_if_empty(flow.course, 0);
  flows_.erase(found);
}

KnownFlow* Flows::find(std::uint64_t id) {
  const auto found = flows_.find(id);
  return found == flows_.end() ? nullptr : &found->second;
}

KnownFlow* Flows::find(const Course& course, Slot slot) {
  const auto found = courses_.find(course);
  return found == courses_.end() || slot >= kSlots ? nullptr : find(found->second[slot].flow);
}

bool Flows::has_slot(const Course& course, std::size_t slots, Nanos now) const {
  const auto found = courses_.find(course);
  if (found == courses_.end()) return slots > 0;
  const auto first = found->second.begin();
  return std::any_of(first, first + static_cast<std::ptrdiff_t>(std::min<std::size_t>(slots, kSlots)),
                     [&](const Place& place) { return place.flow == 0 && place.rests_until <= now; });
}

std::vector<KnownFlow*> Flows::of(const Course& course) {
  std::vector<KnownFlow*> found;
  if (const auto places = courses_.find(course); places != courses_.end()) {
    for (const Place& place : places->second) {
      if (KnownFlow* flow = find(place.flow)) found.push_back(flow);
    }
  }
  return found;
}

void Flows::tried(std::uint64_t id) {
  if (KnownFlow* flow = find(id)) flow->tried = true;
}

void Flows::counted(std::uint64_t id, std::optional<std::uint64_t> sent_bytes, Nanos now) {
  KnownFlow* flow = find(id);
  if (flow == nullptr) return;
  if (!sent_bytes) {
    if (flow->tried || now >= flow->begun + kConnecting) end(id);
    return;
  }
  flow->tried = true;
  if (*sent_bytes > flow->bytes) sent(id, *sent_bytes - flow->bytes, now);
  if (!flow->announced || flow->declared != 0) return;
  if (!flow->course.tcp) {
    if (now >= flow->active_at + kLasting) release(*flow);
  } else if (*flow->announced == 0) {
    if (flow->bytes != 0 && now >= flow->begun + kLasting) announce(*flow, flow->bytes);
  } else if (*flow->announced >= kElephant && now >= flow->active_at + kElephantIdle) {
    announce(*flow, 1);
  }
}

void Flows::sent(std::uint64_t id, std::uint64_t bytes, Nanos now) {
  KnownFlow* flow = find(id);
  if (flow == nullptr) return;
  flow->bytes += bytes;
  flow->active_at = now;
  if (!flow->announced) {
    announce(*flow, std::max(bytes, kElephant));
  } else if (flow->bytes >= std::max(kElephant, 2 * *flow->announced)) {
    announce(*flow, flow->bytes);
  }
}

void Flows::left(int pid) {
  std::vector<std::uint64_t> gone;
  for (const auto& [id, flow] : flows_) {
    if (flow.pid == pid) gone.push_back(id);
  }
  for (const std::uint64_t id : gone) end(id);
}

void Flows::not_pinned(NotPinned flow) {
  if (not_pinned_.size() == kMostNotPinned) not_pinned_.pop_front();
  not_pinned_.push_back(std::move(flow));
}

void Flows::announce(KnownFlow& flow, std::uint64_t bytes) {
  flow.announced = bytes;
  news_.push_back({.kind = News::Kind::kAnnounce, .flow = flow});
}

void Flows::release(KnownFlow& flow) {
  if (!flow.announced) return;
  flow.announced.reset();
  news_.push_back({.kind = News::Kind::kRelease, .flow = flow});
}

}  // namespace paralet::pin
