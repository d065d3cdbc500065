// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "links.hpp"

namespace paralet::driver {

struct PingPong {
  Nanos half_round_trip = 0;  ///< median; 0 on rank 1, which only answers
  std::uint64_t wrong_bytes = 0;
};

/// Sends `round_trips` messages of `bytes` from rank 0 to rank 1 and back, with several receives posted ahead on each
/// side. Another eighth of them runs before as a warm-up. Throws NetError.
PingPong ping_pong(Links& links, unsigned rank, std::size_t bytes, unsigned round_trips, PollDeadline deadline);

}  // namespace paralet::driver
