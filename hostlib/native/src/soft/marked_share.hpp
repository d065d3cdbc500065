// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace paralet {

/// The share of a path's packets that switches mark, averaged over round trips: DCTCP's alpha (RFC 8257, section 3.3).
class MarkedShare {
 public:
  static constexpr double kGain = 1.0 / 16;  ///< g, weight of the newest round trip (section 4.2)

  /// `packets` have arrived, `marked` of them with a mark, at most all. `round_trip`: how long to observe before the
  /// average moves.
  void add(Nanos now, Nanos round_trip, std::uint32_t packets, std::uint32_t marked) {
    packets_ += packets;
    marked_ += marked;
    if (now < observed_until_ || packets_ == 0) return;
    share_ += kGain * (static_cast<double>(marked_) / static_cast<double>(packets_) - share_);
    packets_ = marked_ = 0;
    observed_until_ = now + round_trip;
  }
  /// 0 to 1. It starts at 1, so that the first mark halves the window (section 3.3, step 1).
  [[nodiscard]] double value() const { return share_; }

 private:
  double share_ = 1;
  Nanos observed_until_ = 0;
  std::uint32_t packets_ = 0;
  std::uint32_t marked_ = 0;
};

}  // namespace paralet
