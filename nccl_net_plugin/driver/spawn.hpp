// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include "options.hpp"

namespace paralet::driver {

/// Starts this program once per rank, on loopback addresses of their own, passes their handles on, and prints a line of
/// JSON that sums up what they report. Whether all was right. Throws NetError when a rank fails.
bool spawn_ranks(const Options& options, int argc, char** argv, std::ostream& out);

}  // namespace paralet::driver
