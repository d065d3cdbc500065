// SPDX-License-Identifier: Apache-2.0
#include "selective_repeat.hpp"

#include <algorithm>

namespace paralet::packet {

namespace {

constexpr Time kNano = kSecond / 1'000'000'000;

Nanos nanos(Time time) { return time / kNano; }

}  // namespace

void SelectiveRepeat::sent(Range flight, std::uint64_t number, Time now, bool again) {
  if (!again && flight.end - flight.unacked >= board_.room()) board_.grow(flight, 0);
  board_.begin_batch();
  board_.sent(number, nanos(now), false, again);
  probe_due_ = false;
}

unsigned SelectiveRepeat::acknowledge(Range flight, std::uint64_t expected, std::uint64_t number, Time now) {
  // Acknowledgements do not get lost, so each tells of its own packet only: one bit.
  const std::uint64_t to = std::max(expected, flight.unacked);
  const std::uint64_t behind = number > to ? number - to : 0;
  bitmap_.assign((behind + 7) / 8, std::byte{0});
  if (behind > 0) bitmap_.back() = std::byte{0x80} >> ((behind - 1) % 8);
  const auto delivered = board_.acknowledge(flight, to, bitmap_, nanos(now), round_trip_.smallest());
  if (delivered.packets == 0) return 0;
  if (delivered.first) round_trip_.sample(nanos(now), delivered.rtt);
  probes_ = 0;
  probe_due_ = false;
  return delivered.packets;
}

void SelectiveRepeat::detect_losses(Range flight, Time now) {
  board_.detect_losses(flight, nanos(now), round_trip_.smoothed());
}

Time SelectiveRepeat::deadline() const { return board_.deadline() == kNever ? kNeverTime : board_.deadline() * kNano; }

void SelectiveRepeat::probe(Range flight) {
  if (probes_++ == 0) board_.mark_lost(flight.end - 1, true);
  if (!any_lost()) board_.mark_lost(flight.unacked, true);
  probe_due_ = true;
}

}  // namespace paralet::packet
