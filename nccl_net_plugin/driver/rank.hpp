// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include "options.hpp"

namespace paralet::driver {

/// Runs one rank: reads commands and writes events, as `--help` describes. Throws NetError, and std::exception for
/// malformed commands.
void run_rank(const Options& options, std::istream& commands, std::ostream& events);

}  // namespace paralet::driver
