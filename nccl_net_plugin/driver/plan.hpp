// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include "options.hpp"

namespace paralet::driver {

/// Every message of one iteration, a JSON object a line: step, src, dst, channel, first and count (elements), combine.
void print_plan(const Options& options, std::ostream& out);

}  // namespace paralet::driver
