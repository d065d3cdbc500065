// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace paralet {

/// Faults that a back end injects into what it receives, for tests: `soft` all but `cut`, `tcp` `cut` and `dead`.
/// Probabilities are in [0, 1], and per packet unless noted.
struct Faults {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  ///< held back until 1 to `reorder_packets` later packets have passed
  double corrupt = 0;  ///< one bit flipped
  unsigned reorder_packets = 8;
  double cut = 0;   ///< per system call that sends on a connection: the connection ends in the middle of a message
  double dead = 0;  ///< probability per source port: its path dies, and no later packet from it arrives
  std::uint64_t dead_after = 0;  ///< packets of such a port that arrive before its path dies; of `tcp` work requests
  std::uint64_t seed = 0;

  /// Faults of packets, which TCP would repair.
  [[nodiscard]] bool of_packets() const { return drop > 0 || duplicate > 0 || reorder > 0 || corrupt > 0; }
  [[nodiscard]] bool any() const { return of_packets() || cut > 0 || dead > 0; }
};

}  // namespace paralet
