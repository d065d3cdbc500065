// SPDX-License-Identifier: Apache-2.0
// Where the agent runs while a program connects many times in a row.
#pragma once

#include <sched.h>

#include "base/clock.hpp"

namespace paralet::pin {

/// A program waits for its reply, so its processor is free meanwhile. To wake the agent on another one, and then the
/// program, takes longer than all else that a request takes. So the agent stays on the processor from which two
/// requests in a row have come, until one comes from another processor, or none for `kPause`.
class Processor {
 public:
  static constexpr Nanos kPause = 10 * kMillisecond;

  /// A request has come from processor `from`; -1: an unknown one.
  void asked(int from, Nanos now);
  /// When `leave` is due.
  [[nodiscard]] Nanos due() const { return at_ < 0 ? kNever : asked_at_ + kPause; }
  /// Lets the kernel choose the processor again, once that is due.
  void leave(Nanos now);

 private:
  void leave();

  cpu_set_t allowed_{};  ///< where the kernel let the agent run before
  int at_ = -1;          ///< where it has to run now; -1: where the kernel likes
  int from_ = -1;        ///< of the last request
  Nanos asked_at_ = -kPause;
};

}  // namespace paralet::pin
