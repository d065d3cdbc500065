// SPDX-License-Identifier: Apache-2.0
// What this library was built from.
#pragma once

#include <cstdint>

namespace paralet {

/// Such as "0.1.0".
const char* build_version();
/// The same in three bytes, major first: 0x000100.
std::uint32_t build_version_number();
/// The first 12 digits of Git's commit, with "-dirty" where sources differed from it; "unknown" without Git.
const char* build_commit();

}  // namespace paralet
