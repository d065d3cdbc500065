// SPDX-License-Identifier: Apache-2.0
// Times of a reliable connection that both back ends and the engine share, in nanoseconds.
#pragma once

#include "base/clock.hpp"

namespace paralet {

/// Silence that counts as a timeout, at least: local ACK timeout 14, 4.096 us * 2^14 (IBTA volume 1, 9.9.2.1.1), the
/// usual setting of RNICs.
inline constexpr Nanos kMinAckTimeout = 67 * kMillisecond;

// Bounds of a timeout that backs off. They leave enough attempts within the retry time on a lossy path, and they find
// soon that a dead path works again.
inline constexpr Nanos kMaxAckTimeout = 1 * kSecond;
inline constexpr Nanos kMinTries = 16;  ///< within the retry time

}  // namespace paralet
