// SPDX-License-Identifier: Apache-2.0
#include "kernel.hpp"

#include "batches.hpp"
#include "elements.hpp"

namespace paralet::cpu_device {

BlockResult run_block(const Launch& launch, unsigned block) {
  try {
    const bool finished = launch.library.layout.generation == Generation::elements ? run_elements(launch, block)
                                                                                   : run_batches(launch, block);
    return {finished ? Outcome::done : Outcome::aborted, {}};
  } catch (const NotSupported& refusal) {
    return {Outcome::not_supported, refusal.reason};
  }
}

}  // namespace paralet::cpu_device
