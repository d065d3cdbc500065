// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "paths/ecmp.hpp"

namespace paralet {

/// Random ports that leave bad paths and return to good ones. A lane that times out, or whose round trip stays above
/// kBadRatio times the best lane's, takes a port that performed well before (REPS recycles entropies the same way),
/// else a new random port.
class Adaptive final : public Ecmp {
 public:
  using Ecmp::Ecmp;
  [[nodiscard]] bool takes_other(PeerName /*peer*/, unsigned /*lane*/, std::uint16_t /*port*/) const override {
    return true;
  }
  [[nodiscard]] bool watches_lanes() const override { return true; }
  std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) override;

 private:
  static constexpr Nanos kBadRatio = 2;        // to the smallest round trip of the peer's lanes
  static constexpr unsigned kBadFlowlets = 3;  // in a row, before a slow lane moves
  static constexpr Nanos kSettle = 8;          // round trips between moves: the smoothed round trip has to follow
  struct State {
    unsigned bad_flowlets = 0;
    Nanos moved_at = 0;
    std::array<std::uint16_t, 4> recycled{};
    std::size_t next_recycled = 0;
  };
  std::map<std::pair<PeerName, unsigned>, State> states_;
};

}  // namespace paralet
