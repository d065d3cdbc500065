// SPDX-License-Identifier: Apache-2.0
#include "planned_ports.hpp"

namespace paralet::pin {

PlannedPorts* planned_ports() { return nullptr; }

}  // namespace paralet::pin
