// SPDX-License-Identifier: Apache-2.0
// The data part of an operation: reduce some arrays and store the result in some others.
#pragma once

#include <cstddef>
#include <span>

#include "reduction.hpp"

namespace paralet::cpu_device {

// Reduces `own` (may be null) and `received`, and stores the result in every array of `results`. `own` may be one of
// `results`; otherwise arrays do not overlap. There is at least one array to reduce. With `post` the result is
// complete.
void combine(const Reducer& reducer, const std::byte* own, std::span<const std::byte* const> received,
             std::span<std::byte* const> results, std::size_t count, bool post);

}  // namespace paralet::cpu_device
