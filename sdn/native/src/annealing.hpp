// SPDX-License-Identifier: Apache-2.0
// Simulated annealing in the manner of Hedera (M. Al-Fares et al., NSDI 2010, section 4.3).
#pragma once

#include <cstdint>
#include <span>

#include "clos.hpp"

namespace paralet::planners {

struct Schedule {
  double hot;      // the first temperature, in commodities beyond capacity
  double cold;     // the last temperature
  double cooling;  // factor from one temperature to the next, below 1
  std::int32_t steps_per_temperature;
};

/// Finds a route for each commodity. The state assigns one of `slots` to each destination NIC: the number of a link
/// (spine * parallel + parallel link) that all commodities to this NIC use. A step swaps the slots of two NICs; in half
/// of the steps both NICs are of one ToR. The energy is the load beyond `capacity` (demand per rate), summed over
/// links, in units of `unit`. The result is the best state seen. A commodity whose slot is dead at an end takes the
/// least congested path afterwards. The same seed gives the same plan.
void anneal(const Clos& clos, const Commodities& commodities, std::span<const std::int32_t> dst_nic,
            std::span<const std::int32_t> slots, double capacity, double unit, const Schedule& schedule,
            std::uint64_t seed, std::span<Route> routes);

}  // namespace paralet::planners
