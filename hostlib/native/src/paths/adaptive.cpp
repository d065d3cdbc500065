// SPDX-License-Identifier: Apache-2.0
#include "paths/adaptive.hpp"

#include <algorithm>
#include <utility>

namespace paralet {

std::optional<std::uint16_t> Adaptive::after_flowlet(const LaneView& lane, Nanos now) {
  State& state = states_[{lane.peer, lane.lane}];
  const bool timed_out = lane.timeouts > 0;
  const bool slow = lane.peer_rtt > 0 && lane.smoothed_rtt > kBadRatio * lane.peer_rtt;
  if (!slow && !timed_out) {
    state.bad_flowlets = 0;
    if (std::ranges::find(state.recycled, lane.port) == state.recycled.end()) {
      state.recycled[state.next_recycled++ % state.recycled.size()] = lane.port;
    }
    return std::nullopt;
  }
  // A port that timed out is not used again. One that is only congested may perform well later.
  if (timed_out) std::ranges::replace(state.recycled, lane.port, std::uint16_t{0});
  ++state.bad_flowlets;
  if (!timed_out && (state.bad_flowlets < kBadFlowlets || now - state.moved_at < kSettle * lane.smoothed_rtt)) {
    return std::nullopt;
  }
  state.bad_flowlets = 0;
  state.moved_at = now;
  for (std::uint16_t& good : state.recycled) {
    if (good != 0 && good != lane.port) return std::exchange(good, 0);
  }
  return draw();
}

}  // namespace paralet
