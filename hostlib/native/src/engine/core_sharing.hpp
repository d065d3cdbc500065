// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/clock.hpp"

namespace paralet {

/// Decides when a thread that spins gives its core away (sched_yield): always, while others want the core, as the peer
/// or a progress thread may. A core of its own costs such a call in every kTryEvery-th idle round only. Whether another
/// thread wants the core is seen by the time of the call: it takes longer if another one ran meanwhile.
class CoreSharing {
 public:
  static constexpr unsigned kTryEvery = 256;  ///< idle rounds
  static constexpr Nanos kSwitched = 1500;    ///< a call that switches threads takes longer
  static constexpr unsigned kStays = 16;      ///< calls without another thread until the core is its own

  /// After a round that found no work: whether to yield now.
  bool yields() { return shared_for_ > 0 || ++rounds_ % kTryEvery == 0; }
  /// The thread has yielded.
  void yielded(Nanos took) {
    if (took >= kSwitched) {
      shared_for_ = kStays;
    } else if (shared_for_ > 0) {
      --shared_for_;
    }
  }

 private:
  unsigned shared_for_ = 0;  ///< further calls without another thread
  unsigned rounds_ = 0;
};

}  // namespace paralet
