// SPDX-License-Identifier: Apache-2.0
#include "soft/go_back_n.hpp"

#include <algorithm>
#include <utility>

namespace paralet {

std::optional<LossRecovery::Delivered> GoBackN::acknowledge(std::uint64_t end, const AckNews& news) {
  Flight& flight = in_.flight;
  if (end <= flight.unacked) return std::nullopt;
  const Nanos now = news.now;
  if (flight.probing && ack_requested_before(end)) {
    if (flight.timeouts > 0) in_.control->undo_timeout();
    // A late answer to the probe means that earlier acknowledgements were lost: it gives no round-trip sample.
    const Nanos since_probe = now - flight.board.sent_at(flight.unacked);
    if (since_probe > 2 * in_.round_trip.smoothed()) {
      sent_once_from_ = std::max(sent_once_before_, flight.unacked + 1);
    }
    // Packets that are not acknowledged are still on their way. The packets behind a gap would report it.
    if (flight.highest_sent < flight.posted) flight.next = flight.highest_sent;
  } else if (flight.probing && flight.timeouts == 0 && end < flight.highest_sent) {
    in_.control->on_gap(now);
  }
  flight.probing = false;
  in_.flight.probed_early = false;
  const std::uint64_t newest = end - 1;
  return Delivered{.packets = static_cast<unsigned>(end - flight.unacked),
                   .rtt = newest >= sent_once_from_ ? now - flight.board.sent_at(newest) : 0,
                   .limited = held_back(flight, in_.control->window(), in_.shared.options.burst)};
}

void GoBackN::repeat_all() {
  Flight& flight = in_.flight;
  flight.next = flight.unacked;
  flight.since_ack_request = 0;
  sent_once_from_ = flight.highest_sent;
  flight.probing = false;
}

Nanos GoBackN::patience() const {
  return in_.round_trip.timeout(probes_early() ? in_.shared.options.probe_after : in_.shared.device.min_timeout);
}

bool GoBackN::expires_early(Nanos /*silence*/) {
  if (!probes_early()) return false;
  in_.flight.probed_early = true;
  return true;
}

void GoBackN::probe(Nanos /*now*/) {
  const std::uint64_t sent_once = in_.flight.probing ? sent_once_before_ : sent_once_from_;
  repeat_all();
  in_.flight.probing = true;
  sent_once_before_ = sent_once;
}

/// Whether the next expiry of the timer is an early probe.
bool GoBackN::probes_early() const {
  return !in_.flight.probed_early && in_.flight.timeouts == 0 &&
         in_.round_trip.timeout(in_.shared.options.probe_after) < in_.round_trip.timeout(in_.shared.device.min_timeout);
}

/// Whether any packet behind the oldest and before `end` requested an acknowledgement.
bool GoBackN::ack_requested_before(std::uint64_t end) const {
  for (std::uint64_t position = in_.flight.unacked + 1; position < end; ++position) {
    if (in_.flight.board.ack_requested(position)) return true;
  }
  return false;
}

}  // namespace paralet
