// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace paralet {

/// Cores that this process may use, at least 1: those of its affinity, at most as many as the processor time that its
/// control group and the groups above grant (cgroup v2, `cpu.max`; a part of a core counts as a whole one).
unsigned usable_cores();

/// Processor time in cores that the groups grant, rounded up; 0: no limit. `own` is a file as /proc/self/cgroup, `root`
/// where the groups are mounted.
unsigned granted_cores(const std::filesystem::path& own, const std::filesystem::path& root);

}  // namespace paralet
