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

/// A polling loop calls this after a round without progress.
enum class Idle {
  kSpin,   ///< polls again at once
  kYield,  ///< yields the processor, as NCCL's proxy does
  kNap     ///< sleeps for a millisecond: for many ranks that share few processors with an emulated fabric
};

/// Bounds a polling loop. The loop calls `poll` once per round.
class PollDeadline {
 public:
  /// The time starts now.
  PollDeadline(double timeout_s, Idle idle)
      : timeout_s_(timeout_s), deadline_(now() + from_seconds(timeout_s)), idle_(idle) {}

  /// Throws NetError after the deadline; `awaited()` names what the loop waits for. The clock is read after a nap,
  /// which costs far more, and once per kPollsPerCheck rounds.
  template <typename Text>
  void poll(bool progressed, Text awaited) {
    if (!progressed && idle_ == Idle::kYield) ::sched_yield();
    const bool naps = !progressed && idle_ == Idle::kNap;
    if (naps) std::this_thread::sleep_for(kNap);
    if ((++polls_ % kPollsPerCheck == 0 || naps) && now() > deadline_) fail(awaited());
  }

 private:
  static constexpr auto kNap = std::chrono::milliseconds(1);
  static constexpr std::uint64_t kPollsPerCheck = 256;

  [[noreturn]] void fail(const std::string& awaited) const {
    std::ostringstream text;
    text << "timed out after " << timeout_s_ << " s waiting for " << awaited;
    throw NetError(text.str());
  }

  double timeout_s_;
  Nanos deadline_;
  Idle idle_;
  std::uint64_t polls_ = 0;
};

}  // namespace paralet::driver
