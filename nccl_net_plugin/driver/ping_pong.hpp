// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "links.hpp"

namespace paralet::driver {

struct PingPong {
  Nanos half_round_trip = 0;  ///< median; on rank 1, which only answers, 0
  std::uint64_t wrong_bytes = 0;
};

/// `round_trips` messages of `bytes` from rank 0 to rank 1 and back, each way with several receives posted ahead; sends
/// are taken back when there is time. An eighth of them more, first, are not measured.
PingPong ping_pong(Links& links, unsigned rank, std::size_t bytes, unsigned round_trips, Patience patience);

}  // namespace paralet::driver
