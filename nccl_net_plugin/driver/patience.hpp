// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "net.hpp"

namespace paralet::driver {

/// What a polling loop does when nothing has moved.
enum class Idle {
  kSpin,   ///< looks again
  kYield,  ///< gives the processor away, as NCCL's proxy does
  kNap     ///< sleeps for a while: where many ranks share few processors with a fabric
};

/// What a polling loop calls after each look at the network.
class Patience {
 public:
  /// From now on.
  Patience(double limit_s, Idle idle) : limit_s_(limit_s), deadline_(now() + from_seconds(limit_s)), idle_(idle) {}

  /// Throws NetError once the time is up; `awaited()` says for what it was not enough.
  template <typename Text>
  void after(bool moved, Text awaited) {
    if (!moved && idle_ == Idle::kYield) ::sched_yield();
    if (!moved && idle_ == Idle::kNap) std::this_thread::sleep_for(kNap);
    if (++looks_ % kLooksPerCheck == 0 && now() > deadline_) give_up(awaited());
  }

 private:
  static constexpr auto kNap = std::chrono::milliseconds(1);
  static constexpr std::uint64_t kLooksPerCheck = 256;

  [[noreturn]] void give_up(const std::string& awaited) const {
    std::ostringstream text;
    text << "still waited for " << awaited << " after " << limit_s_ << " s";
    throw NetError(text.str());
  }

  double limit_s_;
  Nanos deadline_;
  Idle idle_;
  std::uint64_t looks_ = 0;
};

}  // namespace paralet::driver
