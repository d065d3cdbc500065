// SPDX-License-Identifier: Apache-2.0
// The table of counters (base/counters.inc) at run time: names, meanings, and how to read each.
#pragma once

#include <cstdint>
#include <span>

#include "engine/counters.hpp"

namespace paralet {

template <typename Counters>
struct Counter {
  const char* name;
  const char* meaning;
  std::uint64_t (*get)(const Counters& counters);
};

std::span<const Counter<LaneCounters>> lane_counters();  ///< the lane's own, then those of its QPs
std::span<const Counter<MessageCounters>> message_counters();
std::span<const Counter<Discards>> discard_counters();
std::span<const Counter<PathClientCounters>> path_client_counters();

}  // namespace paralet
