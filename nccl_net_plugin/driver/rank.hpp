// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include "options.hpp"

namespace paralet::driver {

/// One rank: obeys orders and reports, as `--help` says. Throws NetError and what std::exception is.
void run_rank(const Options& options, std::istream& orders, std::ostream& reports);

}  // namespace paralet::driver
