// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "base/clock.hpp"

namespace paralet {

/// A token bucket. Rate 0 means unlimited.
class Pacer {
 public:
  /// Up to `burst_bytes` may leave at once after an idle period, or after a late wake-up.
  Pacer(double bytes_per_second, double burst_bytes)
      : rate_(bytes_per_second * 1e-9), burst_(burst_bytes), tokens_(burst_bytes) {}

  [[nodiscard]] bool unlimited() const { return rate_ == 0; }
  bool ready(Nanos now) {
    if (unlimited()) return true;
    tokens_ = std::min(burst_, tokens_ + static_cast<double>(now - last_) * rate_);
    last_ = now;
    return tokens_ > 0;
  }
  /// May overdraw by one packet: ready() is false until the debt is paid.
  void spend(std::size_t bytes) {
    if (!unlimited()) tokens_ -= static_cast<double>(bytes);
  }
  [[nodiscard]] Nanos ready_at() const {
    if (unlimited() || tokens_ > 0) return last_;
    const double wait = (-tokens_ + 1) / rate_;
    return wait < static_cast<double>(kNever - last_) / 2 ? last_ + static_cast<Nanos>(wait) : kNever;
  }

 private:
  double rate_;
  double burst_;
  double tokens_;
  Nanos last_ = 0;
};

}  // namespace paralet
