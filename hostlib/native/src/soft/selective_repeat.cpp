// SPDX-License-Identifier: Apache-2.0
#include "soft/selective_repeat.hpp"

#include <algorithm>

namespace paralet {

std::optional<LossRecovery::Delivered> SelectiveRepeat::acknowledge(std::uint64_t end, const AckNews& news) {
  Flight& flight = in_.flight;
  const Nanos now = news.now;
  const Nanos smallest = in_.round_trip.smallest();
  const bool limited = held_back(flight, in_.control->window(), in_.shared.options.burst);
  const auto delivered = flight.board.acknowledge(flight.range(), end, news.bitmap, now, smallest);
  if (delivered.packets == 0) return std::nullopt;
  // A packet from before the timeout has arrived only now: the peer was slow.
  if (flight.timeouts > 0 && delivered.first) in_.control->undo_timeout();
  // The acknowledgement may answer a probe, because earlier ones were lost. Counted from the first copy, the round trip
  // would then include the silence before the probe, and the next silence would be longer still.
  const Nanos since_probe = now - probed_at_;
  const bool answers_probe = probes_ > 0 && since_probe >= smallest;
  probes_ = 0;
  flight.probe_due = false;
  return Delivered{.packets = delivered.packets,
                   .rtt = answers_probe ? std::min(delivered.rtt, since_probe) : delivered.rtt,
                   .limited = limited};
}

void SelectiveRepeat::find_losses(Nanos now) {
  const std::uint64_t lost = in_.flight.board.detect_losses(in_.flight.range(), now, in_.round_trip.smoothed());
  if (lost == 0) return;
  in_.flight.lossy = true;
  in_.control->on_losses(now, lost);
}

void SelectiveRepeat::repeat_all() {
  in_.flight.board.mark_all_lost(in_.flight.range());
  in_.flight.since_ack_request = 0;
}

void SelectiveRepeat::receiver_not_ready() {
  probes_ = 0;
  in_.flight.board.mark_lost(in_.flight.unacked);  // the packets behind it wait at the responder
}

Nanos SelectiveRepeat::patience() const {
  const Nanos rtt = in_.round_trip.smoothed();
  const Nanos least = in_.shared.options.probe_after;
  // Before the first sample a timeout is long. A probe of a slow peer costs one packet.
  const Nanos silence = rtt == 0           ? least
                        : in_.flight.lossy ? std::max(least, rtt + rtt / 4)
                                           : in_.round_trip.timeout(least);
  return std::min(silence, in_.round_trip.timeout(in_.shared.device.min_timeout));
}

bool SelectiveRepeat::expires_early(Nanos silence) {
  return silence < in_.round_trip.timeout(in_.shared.device.min_timeout);
}

void SelectiveRepeat::probe(Nanos now) {
  Flight& flight = in_.flight;
  if (probes_++ == 0) flight.board.mark_lost(flight.highest_sent - 1, true);
  if (flight.board.lost() == 0) flight.board.mark_lost(flight.unacked, true);
  flight.probe_due = true;
  probed_at_ = now;
}

}  // namespace paralet
