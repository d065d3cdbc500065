// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace paralet::planners {

/// A ToR, spine or commodity as the index of an array. Not negative.
inline std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace paralet::planners
