// SPDX-License-Identifier: Apache-2.0
// Waits for a condition by polling, as NCCL does, until a time limit that only a failing test reaches.
#pragma once

#include <chrono>

namespace paralet::plugin {

template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
  }
  return true;
}

}  // namespace paralet::plugin
