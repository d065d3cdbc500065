// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>

#include "backend/faults.hpp"
#include "base/random.hpp"

namespace paralet::tcp {

/// The faults that lanes over TCP can have: a connection that is cut, and a path that dies.
class LaneFaults {
 public:
  explicit LaneFaults(const Faults& faults) : faults_(faults), random_(faults.seed) {}

  /// Whether a connection that has just sent is cut.
  bool cuts() {
    const bool cut = faults_.cut > 0 && random_.uniform() < faults_.cut;
    injected_ += cut ? 1 : 0;
    return cut;
  }
  /// Whether the path of this source port is dead, once `frames` of a connection from it have arrived.
  bool kills(std::uint16_t port, std::uint64_t frames) {
    if (faults_.dead <= 0) return false;
    if (dead_.contains(port)) return true;
    if (frames < faults_.dead_after || SplitMix64(faults_.seed ^ port).uniform() >= faults_.dead) return false;
    dead_.insert(port);
    ++injected_;
    return true;
  }
  [[nodiscard]] std::uint64_t injected() const { return injected_; }

 private:
  Faults faults_;
  SplitMix64 random_;
  std::set<std::uint16_t> dead_;
  std::uint64_t injected_ = 0;
};

}  // namespace paralet::tcp
