// SPDX-License-Identifier: Apache-2.0
#include "processor.hpp"

#include <utility>

namespace paralet::pin {

void Processor::asked(int from, Nanos now) {
  const bool soon = now < std::exchange(asked_at_, now) + kPause;
  const bool again = std::exchange(from_, from) == from && soon;
  if (from != at_) leave();
  if (!again || from < 0 || from >= CPU_SETSIZE || from == at_) return;
  if (::sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) return;
  if (!CPU_ISSET(from, &allowed_)) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(from, &one);
  if (::sched_setaffinity(0, sizeof one, &one) == 0) at_ = from;
}

void Processor::leave(Nanos now) {
  if (now >= due()) leave();
}

void Processor::leave() {
  if (at_ < 0) return;
  ::sched_setaffinity(0, sizeof allowed_, &allowed_);
  at_ = -1;
}

}  // namespace paralet::pin
