// SPDX-License-Identifier: Apache-2.0
// Exact weighted max-min fair rates by progressive filling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace paralet::planners {

/// The rate of each flow: all rise together, in proportion to their weights, and a flow stops when a link of its is
/// full (D. Bertsekas and R. Gallager, "Data Networks", section 6.5.2). `links` holds `links_per_flow` link numbers for
/// each flow, negative ones meaning none; a flow that crosses no link of finite capacity gets an infinite rate. Weights
/// are above zero, capacities not below. O((flows * links_per_flow + links) log links).
void max_min_rates(std::span<const double> capacity, std::span<const std::int32_t> links, std::size_t links_per_flow,
                   std::span<const double> weight, std::span<double> rate);

}  // namespace paralet::planners
