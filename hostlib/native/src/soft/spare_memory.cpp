// SPDX-License-Identifier: Apache-2.0
#include "soft/spare_memory.hpp"

namespace paralet {
namespace {

constexpr Nanos kReleaseAfter = 1 * kSecond;

}  // namespace

void SpareMemory::rest(SoftQp& qp, Nanos now) {
  qp.idle_since = now;
  if (qp.idle) return;
  qp.idle = true;
  idle_.push_back(&qp);
}

void SpareMemory::release(Nanos now) {
  if (now < next_release_) return;
  next_release_ = now + kReleaseAfter;
  std::erase_if(idle_, [now](SoftQp* qp) {
    if (now - qp->idle_since < kReleaseAfter) return false;
    qp->machine->requester().release_spare();
    qp->idle = false;
    return true;
  });
}

}  // namespace paralet
