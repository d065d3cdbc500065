// SPDX-License-Identifier: Apache-2.0
// The work of a block as NCCL 2.23 and later describe it: batches of work structs.
#pragma once

#include "block.hpp"

namespace paralet::cpu_device {

// Runs the batches of block `block`. Returns false where the work was aborted. Throws NotSupported.
bool run_batches(const Launch& launch, unsigned block);

}  // namespace paralet::cpu_device
