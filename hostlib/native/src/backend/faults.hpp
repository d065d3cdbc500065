// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace paralet {

/// Faults that a back end injects into the packets it receives, for tests. Only `soft` can. Probabilities per packet,
/// each in [0, 1].
struct Faults {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  ///< held back until 1 to `reorder_packets` later packets have passed
  double corrupt = 0;  ///< one bit flipped
  unsigned reorder_packets = 8;
  std::uint64_t seed = 0;

  [[nodiscard]] bool any() const { return drop > 0 || duplicate > 0 || reorder > 0 || corrupt > 0; }
};

}  // namespace paralet
