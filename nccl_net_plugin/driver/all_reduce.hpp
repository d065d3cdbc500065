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

/// Times on this rank's monotonic clock, of the last iteration.
struct Timings {
  std::vector<Nanos> step_finished;        ///< last message of each step, sent or received; 0: none in this step
  std::map<unsigned, Nanos> last_arrival;  ///< by source rank: when its last message had been reduced
};

/// Iterations run without a barrier between them. Throws NetError.
Timings ring_all_reduce(Links& links, unsigned rank, const Extent& extent, const Job& job, PollDeadline deadline);
Timings tree_all_reduce(Links& links, unsigned rank, const Extent& extent, const Job& job, PollDeadline deadline);

}  // namespace paralet::driver
