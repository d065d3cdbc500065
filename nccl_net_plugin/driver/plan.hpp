// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include "options.hpp"

namespace paralet::driver {

/// Prints every message of one iteration, one JSON object per line: step, src, dst, channel, first and count
/// (elements), combine (whether the receiver adds).
void print_plan(const Options& options, std::ostream& out);

}  // namespace paralet::driver
