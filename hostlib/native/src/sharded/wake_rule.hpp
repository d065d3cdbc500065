// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace paralet {

/// Who runs a shard whose thread sleeps: the caller that found it so, or the thread, which has to be woken. A caller
/// runs short work itself, because a wake-up takes longer. With long work a second core pays. A thread that is awake
/// needs neither: it looks for work before it sleeps.
class WakeRule {
 public:
  static constexpr std::uint64_t kShortBytes = 64 * 1024;
  static constexpr unsigned kLongRun = 8;  ///< rounds

  /// Whether the caller carries out itself what it has posted since the last call, of `bytes` in all.
  [[nodiscard]] static bool runs_posted(std::uint64_t bytes) { return bytes <= kShortBytes; }
  /// The caller has looked for arrivals in the thread's place. True when it found some so often in a row that the
  /// thread shall take over.
  bool looked(bool found) {
    run_ = found ? run_ + 1 : 0;
    if (run_ < kLongRun) return false;
    run_ = 0;
    return true;
  }

 private:
  unsigned run_ = 0;  ///< rounds in a row that found something
};

}  // namespace paralet
