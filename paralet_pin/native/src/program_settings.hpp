// SPDX-License-Identifier: Apache-2.0
// What `paralet pin` tells the library in a program by variables. Where to find the agent is agent_link's.
#pragma once

#include "base/clock.hpp"
#include "networks.hpp"

namespace paralet::pin {

struct ProgramSettings {
  Networks networks;  ///< PARALET_PIN_NETWORKS: of the fabric
  Nanos wait = 0;     ///< PARALET_PIN_WAIT_US: how long a connection waits for its port at most
};

/// As the environment is now. What is missing or wrong has its default.
ProgramSettings program_settings();

}  // namespace paralet::pin
