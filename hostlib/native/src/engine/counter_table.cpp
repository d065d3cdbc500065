// SPDX-License-Identifier: Apache-2.0
#include "engine/counter_table.hpp"

#include <array>

namespace paralet {

// NOLINTBEGIN(cppcoreguidelines-macro-usage): the table is a list of macros
std::span<const Counter<LaneCounters>> lane_counters() {
  static constexpr std::array kTable = {
#define LANE_COUNTER(name, meaning) \
  Counter<LaneCounters>{#name, meaning, [](const LaneCounters& lane) { return lane.name; }},
#define QP_COUNTER(name, meaning) \
  Counter<LaneCounters>{#name, meaning, [](const LaneCounters& lane) { return lane.qp.counters.name; }},
#include "base/counters.inc"
  };
  return kTable;
}

std::span<const Counter<MessageCounters>> message_counters() {
  static constexpr std::array kTable = {
#define MESSAGE_COUNTER(name, meaning) \
  Counter<MessageCounters>{#name, meaning, [](const MessageCounters& messages) { return messages.name; }},
#include "base/counters.inc"
  };
  return kTable;
}

std::span<const Counter<Discards>> discard_counters() {
  static constexpr std::array kTable = {
#define DISCARD_COUNTER(name, meaning) \
  Counter<Discards>{#name, meaning, [](const Discards& discards) { return discards.name; }},
#include "base/counters.inc"
  };
  return kTable;
}

std::span<const Counter<PathClientCounters>> path_client_counters() {
  static constexpr std::array kTable = {
#define PATH_CLIENT_COUNTER(name, meaning) \
  Counter<PathClientCounters>{#name, meaning, [](const PathClientCounters& client) { return client.name; }},
#include "base/counters.inc"
  };
  return kTable;
}
// NOLINTEND(cppcoreguidelines-macro-usage)

}  // namespace paralet
