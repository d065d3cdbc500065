// SPDX-License-Identifier: Apache-2.0
// What the agent knows, as JSON for `paralet pin --check` (paralet_pin/check.py reads it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.hpp"
#include "flows.hpp"

namespace paralet::pin {

struct AgentState {
  std::string job;
  bool asks_service = false;
  std::size_t clients = 0;    ///< of the path service
  std::size_t connected = 0;  ///< of these
  std::uint64_t asked = 0;    ///< ports that programs asked for
  std::uint64_t given = 0;    ///< of these
  Nanos longest_wait = 0;     ///< of a program for its answer
};

std::string report_of(const AgentState& state, const Flows& flows, Nanos now);

}  // namespace paralet::pin
