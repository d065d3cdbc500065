// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace paralet {

/// What a policy that asks a path service has done.
struct PathClientCounters {
  bool connected = false;
  Nanos since = 0;  ///< when `connected` changed last
#define PATH_CLIENT_COUNTER(name, meaning) std::uint64_t name = 0;
#include "base/counters.inc"
  std::size_t elephants = 0;  ///< open now
};

}  // namespace paralet
