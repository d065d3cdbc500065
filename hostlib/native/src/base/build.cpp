// SPDX-License-Identifier: Apache-2.0
#include "base/build.hpp"

#include <algorithm>

// CMake gives the macros to this file alone, so that a new commit compiles nothing else.
namespace paralet {

static_assert(std::max({PARALET_MAJOR, PARALET_MINOR, PARALET_PATCH}) < 256);

const char* build_version() { return PARALET_VERSION; }

std::uint32_t build_version_number() { return PARALET_MAJOR << 16U | PARALET_MINOR << 8U | PARALET_PATCH; }

const char* build_commit() { return PARALET_COMMIT; }

}  // namespace paralet
