// SPDX-License-Identifier: Apache-2.0
#include "kernel.hpp"

#include "batches.hpp"
#include "elements.hpp"

namespace paralet::cpu_device {

BlockResult run_block(const Launch& launch, unsigned block) {
  // Its arguments are not those of other kernels.
  if (launch.kernel.find("oneRankReduce") != std::string_view::npos) {
    return {Outcome::not_supported, "The CPU device does not run a pre-multiplied sum of a single rank."};
  }
  try {
    const bool finished = launch.library.layout.generation == Generation::elements ? run_elements(launch, block)
                                                                                   : run_batches(launch, block);
    return {finished ? Outcome::done : Outcome::aborted, {}};
  } catch (const NotSupported& refusal) {
    return {Outcome::not_supported, refusal.reason};
  }
}

}  // namespace paralet::cpu_device
