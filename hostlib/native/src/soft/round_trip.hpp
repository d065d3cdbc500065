// SPDX-License-Identifier: Apache-2.0
// The round trips of one QP: what every law of congestion control and every loss recovery needs to know of its path.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "base/clock.hpp"

namespace paralet {

/// Smoothed as in RFC 6298, without its floor of one second.
class RoundTrip {
 public:
  /// A valid sample: of a packet that was sent only once, or whose answer names the copy (Karn's algorithm).
  void sample(Nanos now, Nanos rtt) {
    sampled_at_ = now;
    last_ = rtt;
    smallest_ = std::min(smallest_, rtt);
    if (smoothed_ == 0) {
      smoothed_ = rtt;
      variation_ = rtt / 2;
    } else {
      variation_ += (std::abs(smoothed_ - rtt) - variation_) / 4;
      smoothed_ += (rtt - smoothed_) / 8;
    }
  }

  /// 0 before the first sample.
  [[nodiscard]] Nanos smoothed() const { return smoothed_; }
  /// kNever before the first sample.
  [[nodiscard]] Nanos smallest() const { return smallest_; }
  /// kNever before the first sample.
  [[nodiscard]] Nanos last() const { return last_; }
  /// When the last sample came, 0 before the first.
  [[nodiscard]] Nanos sampled_at() const { return sampled_at_; }
  /// The retransmission timeout, at least `floor`.
  [[nodiscard]] Nanos timeout(Nanos floor) const {
    return std::max(floor, smoothed_ == 0 ? kFirstTimeout : smoothed_ + 4 * variation_);
  }

 private:
  static constexpr Nanos kFirstTimeout = 400 * kMillisecond;  // before the first sample: a deep queue is no loss

  Nanos smoothed_ = 0;
  Nanos variation_ = 0;
  Nanos smallest_ = kNever;
  Nanos last_ = kNever;
  Nanos sampled_at_ = 0;
};

}  // namespace paralet
