// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include "base/clock.hpp"

namespace paralet {

/// Decides whether an idle progress thread spins before it sleeps. A wake-up costs the thread, and the sender that
/// causes it, as much time as many packets; within a message the next batch usually arrives sooner. If spinning has
/// found no work lately, as between the packets of a slow link, the thread spins in every kTryEvery-th idle period
/// only.
class AdaptiveSpin {
 public:
  static constexpr Nanos kMaxSpin = 20 * kMicrosecond;
  static constexpr unsigned kTryEvery = 16;  ///< idle periods
  static constexpr int kMostCredit = 8;

  /// Whether a thread that has been idle for `waited` should look for work again before it sleeps.
  bool keeps_spinning(Nanos waited) {
    if (!spinning_) spinning_ = credit_ > 0 || ++sleeps_ % kTryEvery == 0;
    if (!spinning_) return false;
    if (waited < kMaxSpin) return true;
    spinning_ = false;
    credit_ = std::max(0, credit_ - 1);
    return false;
  }
  /// The thread has found work.
  void worked() {
    if (std::exchange(spinning_, false)) credit_ = std::min(kMostCredit, credit_ + 2);
  }

 private:
  bool spinning_ = false;  ///< in this idle period
  int credit_ = 0;         ///< plus two for each idle period whose spinning found work, minus one for each other
  unsigned sleeps_ = 0;    ///< idle periods without spinning
};

}  // namespace paralet
