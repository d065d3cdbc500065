// SPDX-License-Identifier: Apache-2.0
#include "path_client/elephants.hpp"

#include <algorithm>
#include <utility>

namespace paralet::path_client {
namespace {

// A collective pauses between its steps. An elephant that ended in each pause would lose its path to others.
constexpr Nanos kLeastIdle = 500 * kMillisecond;
constexpr Nanos kIdleRoundTrips = 10;
constexpr Nanos kMeasureEvery = 1 * kSecond;
constexpr std::uint64_t kGrowth = 2;  // an elephant is announced again when it has grown by this factor

}  // namespace

void Rhythm::started(Nanos now) {
  std::ranges::copy(starts_.begin() + 1, starts_.end(), starts_.begin());
  starts_.back() = now;
  count_ = std::min(count_ + 1, starts_.size());
}

Nanos Rhythm::period() const {
  if (count_ < starts_.size()) return 0;
  Nanos least = kNever;
  Nanos most = 0;
  for (std::size_t i = 1; i < starts_.size(); ++i) {
    least = std::min(least, starts_[i] - starts_[i - 1]);
    most = std::max(most, starts_[i] - starts_[i - 1]);
  }
  const Nanos mean = (starts_.back() - starts_.front()) / static_cast<Nanos>(starts_.size() - 1);
  return most - least <= mean / 5 ? mean : 0;
}

bool Elephants::emit(const Event& event) {
  const bool sent = emit_(event);
  if (!sent) ++dropped_;
  return sent;
}

bool Elephants::started(PeerName peer, std::uint64_t bytes, Nanos now) {
  Burst& burst = bursts_[peer];
  burst.bytes += bytes;
  burst.active_at = now;
  if (burst.bytes < threshold_) return false;
  const bool fresh = burst.id == 0;
  if (!fresh && burst.bytes / kGrowth < burst.announced) return false;
  return announce(peer, burst, now) && fresh;
}

bool Elephants::announce(PeerName peer, Burst& burst, Nanos now) {
  const bool fresh = burst.id == 0;
  if (!burst.rhythm_noted) {
    burst.rhythm.started(now);
    burst.rhythm_noted = true;
  }
  const std::uint64_t id = fresh ? next_id_ : burst.id;
  if (!emit(Announce{.id = id, .peer = peer, .bytes = burst.bytes, .repeat = burst.rhythm.period()})) return false;
  burst.announced = burst.bytes;
  if (!fresh) return true;
  burst.id = id;
  burst.measured_at = now;
  burst.delivered = 0;
  burst.retransmits = burst.view.retransmits;
  ++next_id_;
  ++open_;
  return true;
}

void Elephants::delivered(PeerName peer, std::uint64_t bytes, Nanos now) {
  const auto found = bursts_.find(peer);
  if (found == bursts_.end()) return;
  found->second.delivered += bytes;
  found->second.active_at = now;
}

void Elephants::observe(PeerName peer, const PeerView& view) {
  const auto found = bursts_.find(peer);
  if (found == bursts_.end()) return;
  // Several devices may have this name. Their traffic takes the same path, so it counts together.
  PeerView& seen = found->second.view;
  if (!std::exchange(found->second.observed, true)) seen = {};
  seen.busy = seen.busy || view.busy;
  seen.rtt = std::max(seen.rtt, view.rtt);
  seen.retransmits += view.retransmits;
}

void Elephants::tick(Nanos now) {
  for (auto entry = bursts_.begin(); entry != bursts_.end();) {
    auto& [peer, burst] = *entry;
    const bool gone = !std::exchange(burst.observed, false);
    if (!gone && burst.view.busy) burst.active_at = now;
    const bool idle = gone || now - burst.active_at >= std::max(kLeastIdle, kIdleRoundTrips * burst.view.rtt);
    if (idle && end(burst) && gone) {
      entry = bursts_.erase(entry);
      continue;
    }
    if (!idle && burst.id == 0 && burst.bytes >= threshold_) {
      announce(peer, burst, now);  // the queue was full when it began
    } else if (burst.id != 0 && now - burst.measured_at >= kMeasureEvery) {
      measure(burst, now);
    }
    ++entry;
  }
}

/// False when the queue has no room for the release.
bool Elephants::end(Burst& burst) {
  if (burst.id != 0) {
    if (!emit(Release{.id = burst.id})) return false;
    burst.id = 0;
    --open_;
  }
  burst.bytes = burst.announced = 0;
  burst.rhythm_noted = false;
  return true;
}

void Elephants::measure(Burst& burst, Nanos now) {
  // New QPs count from 0 again.
  const std::uint64_t before = std::min(burst.retransmits, burst.view.retransmits);
  const bool sent = emit(Measured{.id = burst.id,
                                  .bytes = burst.delivered,
                                  .duration = now - burst.measured_at,
                                  .rtt = burst.view.rtt,
                                  .retransmits = burst.view.retransmits - before});
  if (!sent) return;  // the next measurement covers this second too
  burst.measured_at = now;
  burst.delivered = 0;
  burst.retransmits = burst.view.retransmits;
}

std::uint64_t Elephants::open(PeerName peer) const {
  const auto found = bursts_.find(peer);
  return found == bursts_.end() ? 0 : found->second.id;
}

}  // namespace paralet::path_client
