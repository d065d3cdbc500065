// SPDX-License-Identifier: Apache-2.0
// Compares the lanes of a peer for the path policy.
#pragma once

#include <algorithm>

#include "backend/backend.hpp"

namespace paralet {

/// The time of a lane and the least of its peer's lanes. Where a back end measures long requests apart, lanes compare
/// by the time of kComparedBytes, with those that are busy now: an earlier measurement had another share of the link.
/// Elsewhere they compare by their round trips.
class LaneTimes {
 public:
  explicit LaneTimes(const QpStatistics& lane)
      : by_bytes_(lane.byte_time > 0), own_(by_bytes_ ? bytes_time(lane) : round_trip(lane)), best_(own_) {}

  /// Takes another lane of the peer into account.
  void compare(const QpStatistics& other) {
    const Nanos time = by_bytes_ ? (other.busy ? bytes_time(other) : 0) : round_trip(other);
    if (time > 0) best_ = std::min(best_, time);
  }
  /// 0: not known.
  [[nodiscard]] Nanos own() const { return own_; }
  [[nodiscard]] Nanos best() const { return best_; }

 private:
  static constexpr double kComparedBytes = 65536;
  static Nanos bytes_time(const QpStatistics& lane) { return static_cast<Nanos>(kComparedBytes * lane.byte_time); }
  static Nanos round_trip(const QpStatistics& lane) { return lane.path_rtt.value_or(lane.smoothed_rtt); }

  bool by_bytes_;
  Nanos own_;
  Nanos best_;
};

}  // namespace paralet
