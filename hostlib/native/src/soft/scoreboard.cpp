// SPDX-License-Identifier: Apache-2.0
#include "soft/scoreboard.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

namespace paralet {
namespace {

// Acknowledgements, so that a path that stops reordering is noticed within some round trips.
constexpr Nanos kLatenessDecay = 512;
constexpr Nanos kLeastReordering = 4;  // of a round trip (RFC 8985, section 6.2.1)
constexpr Nanos kMostRoundTrips = 2;   // of reordering; longer delays cost a packet that is sent twice

}  // namespace

void Scoreboard::sent(std::uint64_t position, Nanos now, bool ack_requested, bool again) {
  State& state = *state_;
  Sent& packet = state.at(position);
  if (again && packet.lost) {
    --state.lost;
    state.lost_from = position + 1;
    state.batch.push_back(position);
  }
  packet = {.at = static_cast<std::uint64_t>(now) & (~std::uint64_t{0} >> 5),
            .ack_requested = ack_requested,
            .sacked = 0,
            .lost = 0,
            .again = again,
            .guessed = again && packet.guessed};
}

void Scoreboard::grow(Range flight, std::uint64_t packets) {
  if (!state_) state_ = std::make_unique<State>();
  std::vector<Sent> larger(std::max<std::size_t>({8, 2 * room(), std::bit_ceil(packets)}));
  for (std::uint64_t position = flight.unacked; position < flight.end; ++position) {
    larger[position & (larger.size() - 1)] = at(position);
  }
  state_->sent = std::move(larger);
}

std::uint64_t Scoreboard::first_lost() const {
  std::uint64_t position = state_->lost_from;
  while (!at(position).lost) ++position;
  return position;
}

/// RFC 8985, section 6.2, step 2: orders packets by when they were sent, and those of a batch by position.
bool Scoreboard::State::sent_before_newest(const Sent& packet, std::uint64_t position) const {
  const auto when = static_cast<Nanos>(packet.at);
  return when < newest_at || (when == newest_at && position < newest);
}

Scoreboard::Delivered Scoreboard::acknowledge(Range flight, std::uint64_t to, std::span<const std::byte> bitmap,
                                              Nanos now, Nanos min_rtt) {
  Delivered out;
  if (!state_) return out;
  State& state = *state_;
  struct Newest {
    Nanos at = -1;
    std::uint64_t position = 0;
    void see(Nanos when, std::uint64_t where) {
      if (when > at || (when == at && where > position)) *this = {when, where};
    }
  };
  Newest once;
  Newest again;
  bool sent_for_nothing = false;
  state.lateness -= state.lateness / kLatenessDecay;
  const auto arrived = [&](std::uint64_t position) {
    const Sent& packet = state.at(position);
    ++out.packets;
    const auto when = static_cast<Nanos>(packet.at);
    if (!packet.again) {
      once.see(when, position);
      // Measured only against packets of earlier acknowledgements: those of this one arrived together.
      if (state.sent_before_newest(packet, position))
        state.lateness = std::max(state.lateness, 2 * (now - when - state.newest_rtt));
    } else if (!packet.lost && now - when >= min_rtt) {
      again.see(when, position);
    } else if (!packet.guessed) {
      sent_for_nothing = true;
    }
    if (packet.lost) --state.lost;
  };
  for (std::uint64_t position = flight.unacked; position < to; ++position) {
    if (state.at(position).sacked) {
      --state.sacked;
    } else {
      arrived(position);
    }
  }
  for (std::uint64_t i = 0; i < bitmap.size() * 8; ++i) {
    const std::uint64_t position = to + 1 + i;
    if (position >= flight.end) break;
    if ((bitmap[i / 8] & (std::byte{0x80} >> (i % 8))) == std::byte{0} || state.at(position).sacked) continue;
    arrived(position);
    state.at(position).sacked = 1;
    state.at(position).lost = 0;
    ++state.sacked;
  }
  // One step per round trip, as in RFC 8985, section 6.2.1: the acknowledgements of a round trip tell of one mistake.
  if (sent_for_nothing && now >= state.widen_from) {
    const Nanos step = state.newest_rtt / kLeastReordering;
    state.lateness = std::max(state.lateness, step) + step;
    state.widen_from = now + state.newest_rtt;
  }
  state.lost_from = std::max(state.lost_from, to);
  // The responder took the packet at `to` back: it had no receive for it.
  if (to < flight.end && state.at(to).sacked) {
    state.at(to).sacked = 0;
    --state.sacked;
    mark_lost(to);
  }
  // Together with packets that were sent once, one that was sent again may have arrived as its first copy.
  out.first = once.at >= 0;
  const Newest& seen = out.first ? once : again;
  if (out.first) out.rtt = now - once.at;
  if (seen.at > state.newest_at || (seen.at == state.newest_at && seen.position > state.newest)) {
    state.newest_at = seen.at;
    state.newest = seen.position;
    state.newest_rtt = now - seen.at;
    state.newest_sent_once = out.first;
  }
  return out;
}

std::uint64_t Scoreboard::detect_losses(Range flight, Nanos now, Nanos smoothed_rtt) {
  if (!state_) return 0;
  State& state = *state_;
  state.deadline = kNever;
  // Without loss or reordering, all packets in flight left after the newest that has arrived.
  if (state.newest_sent_once && state.newest < flight.unacked) return 0;
  state.lateness = std::min(state.lateness, smoothed_rtt * kMostRoundTrips);
  const std::uint64_t before = state.lost;
  const Nanos allowed = state.newest_rtt + std::max(state.lateness, smoothed_rtt / kLeastReordering);
  for (std::uint64_t position = flight.unacked; position < flight.end; ++position) {
    const Sent& packet = state.at(position);
    if (packet.sacked || packet.lost || !state.sent_before_newest(packet, position)) continue;
    const Nanos lost_at = static_cast<Nanos>(packet.at) + allowed;
    if (lost_at <= now) {
      mark_lost(position);
    } else {
      state.deadline = std::min(state.deadline, lost_at);
    }
  }
  return state.lost - before;
}

void Scoreboard::mark_lost(std::uint64_t position, bool guessed) {
  State& state = *state_;
  Sent& packet = state.at(position);
  if (packet.lost || packet.sacked) return;
  packet.lost = 1;
  packet.guessed = guessed;
  state.lost_from = state.lost == 0 ? position : std::min(state.lost_from, position);
  ++state.lost;
}

void Scoreboard::mark_all_lost(Range flight) {
  for (std::uint64_t position = flight.unacked; position < flight.end; ++position) mark_lost(position, true);
}

void Scoreboard::clear() {
  if (!state_) return;
  state_->sacked = state_->lost = 0;
  state_->deadline = kNever;
  state_->batch.clear();
}

void Scoreboard::take_back() {
  if (!state_) return;
  for (const std::uint64_t position : state_->batch) mark_lost(position, at(position).guessed);
  state_->batch.clear();
}

}  // namespace paralet
