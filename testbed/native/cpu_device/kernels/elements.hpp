// SPDX-License-Identifier: Apache-2.0
// The work of a block as NCCL 2.18 to 2.22 describe it: a chain of ncclWork, each with some elements.
#pragma once

#include "block.hpp"

namespace paralet::cpu_device {

// Runs the works of block `block`. Returns false where the work was aborted. Throws NotSupported.
bool run_elements(const Launch& launch, unsigned block);

}  // namespace paralet::cpu_device
