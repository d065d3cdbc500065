// SPDX-License-Identifier: Apache-2.0
#include "soft/spare_memory.hpp"

namespace paralet {
namespace {

constexpr Nanos kReleaseAfter = 1 * kSecond;

}  // namespace

void SpareMemory::rest(SoftQp& qp, Nanos now) {
  qp.rested_at = now;
  if (qp.rested) return;
  qp.rested = true;
  rested_.push_back(&qp);
}

void SpareMemory::release(Nanos now) {
  if (now < next_release_) return;
  next_release_ = now + kReleaseAfter;
  std::erase_if(rested_, [now](SoftQp* qp) {
    if (now - qp->rested_at < kReleaseAfter) return false;
    qp->machine->requester().release_spare();
    qp->rested = false;
    return true;
  });
}

}  // namespace paralet
