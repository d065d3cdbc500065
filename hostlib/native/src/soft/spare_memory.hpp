// SPDX-License-Identifier: Apache-2.0
// The memory that idle QPs keep for their next requests. It is freed after a while, since only few of thousands of QPs
// are busy at a time. QPs that became idle recently keep it, or each message would allocate again.
#pragma once

#include <vector>

#include "base/clock.hpp"
#include "soft/soft_qp.hpp"

namespace paralet {

class SpareMemory {
 public:
  /// The QP has become idle.
  void rest(SoftQp& qp, Nanos now);
  /// Frees what QPs keep that have been idle for a second. Looks once a second.
  void release(Nanos now);
  /// The QP is about to be destroyed.
  void forget(SoftQp& qp) { std::erase(idle_, &qp); }

 private:
  std::vector<SoftQp*> idle_;
  Nanos next_release_ = 0;
};

}  // namespace paralet
