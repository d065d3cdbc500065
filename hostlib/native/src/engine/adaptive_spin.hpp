// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include "base/clock.hpp"

namespace paralet {

/// Whether a thread without work stays awake for a moment. Being woken costs the thread, and whoever sends to it, as
/// much as many packets do, and the next batch of a message that is under way comes sooner than that. Where staying
/// awake has been in vain, as between packets of a slow line, it is tried now and then only.
class AdaptiveSpin {
 public:
  static constexpr Nanos kMaxSpin = 20 * kMicrosecond;
  static constexpr unsigned kTryEvery = 16;  ///< waits, where it has been in vain
  static constexpr int kMostCredit = 8;

  /// The thread has been without work for so long: whether it should look again before it sleeps.
  bool keeps_spinning(Nanos waited) {
    if (!spinning_) spinning_ = credit_ > 0 || ++sleeps_ % kTryEvery == 0;
    if (!spinning_) return false;
    if (waited < kMaxSpin) return true;
    spinning_ = false;
    credit_ = std::max(0, credit_ - 1);
    return false;
  }
  void worked() {
    if (std::exchange(spinning_, false)) credit_ = std::min(kMostCredit, credit_ + 2);
  }

 private:
  bool spinning_ = false;  ///< now
  int credit_ = 0;         ///< two for each time that work came meanwhile, less one for each in vain
  unsigned sleeps_ = 0;
};

}  // namespace paralet
