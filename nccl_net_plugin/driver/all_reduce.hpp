// SPDX-License-Identifier: Apache-2.0
// All-reduce of floats over links: every rank ends with the element-wise sum of all ranks' inputs.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "links.hpp"
#include "schedule.hpp"

namespace paralet::driver {

struct Job {
  /// Iteration i sums inputs[i mod size]; the same number on every rank.
  std::vector<std::span<const float>> inputs;
  std::span<float> output;
  unsigned iterations = 1;
};

/// When things happened on this rank, by the monotonic clock. Of several iterations the last one counts.
struct Timings {
  std::vector<Nanos> step_finished;        ///< the last message of each step, in or out; 0: the step had none here
  std::map<unsigned, Nanos> last_arrival;  ///< by source rank, when it had been added
};

/// Iterations follow each other without a barrier.
Timings ring_all_reduce(Links& links, unsigned rank, const Extent& extent, const Job& job, Patience patience);
Timings tree_all_reduce(Links& links, unsigned rank, const Extent& extent, const Job& job, Patience patience);

}  // namespace paralet::driver
