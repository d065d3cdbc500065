// SPDX-License-Identifier: Apache-2.0
#include "engine/signs_of_life.hpp"

namespace paralet {

void Signs::agree(bool offered, Ece& remote) {
  agreed = offered && (remote.comp_mask & kSignsOfLife) != 0;
  acknowledges_alone = agreed && remote.vendor_id != kSoftVendor;
  remote.comp_mask &= ~kSignsOfLife;
}

Signs::Due Signs::next(Nanos now, bool awaited) {
  since = now;
  if (!awaited) {
    unanswered = 0;
    return Due::kNothing;
  }
  if (unanswered == kAsks) return Due::kGiveUp;
  ++unanswered;
  return Due::kAsk;
}

}  // namespace paralet
