// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace paralet {

/// Nanoseconds on the monotonic clock.
using Nanos = std::int64_t;

inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr Nanos kNever = INT64_MAX;

inline Nanos now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double to_seconds(Nanos t) { return static_cast<double>(t) * 1e-9; }
/// kNever for times that Nanos cannot hold.
inline Nanos from_seconds(double s) { return s < 9e9 ? static_cast<Nanos>(s * 1e9) : kNever; }

}  // namespace paralet
