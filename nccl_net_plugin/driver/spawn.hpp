// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include "options.hpp"

namespace paralet::driver {

/// Starts this program once per rank, each on its own loopback address, exchanges their handles, and prints a summary
/// as one line of JSON. Returns whether all data was correct. Throws NetError when a rank fails.
bool spawn_ranks(const Options& options, int argc, char** argv, std::ostream& out);

}  // namespace paralet::driver
