// SPDX-License-Identifier: Apache-2.0
// Simulated annealing in the manner of Hedera (M. Al-Fares et al., NSDI 2010, section 4.3).
#pragma once

#include <cstdint>
#include <span>

#include "clos.hpp"

namespace paralet::planners {

struct Schedule {
  double hot;      // the first temperature, in commodities beyond capacity
  double cold;     // the last
  double cooling;  // each temperature is this part of the one before
  std::int32_t steps_per_temperature;
};

/// A route for each commodity. The state gives each destination NIC one of `slots`, links by number (spine * parallel +
/// parallel link) that all its commodities use. A step swaps the slots of two NICs, half the time of one ToR. The
/// energy is how far links are loaded beyond `capacity` (demand per rate), in units of `unit`; the best state seen
/// wins. Commodities whose slot is dead at an end take the least congested path in the end. The same seed gives the
/// same plan.
void anneal(const Clos& clos, const Commodities& commodities, std::span<const std::int32_t> dst_nic,
            std::span<const std::int32_t> slots, double capacity, double unit, const Schedule& schedule,
            std::uint64_t seed, std::span<Route> routes);

}  // namespace paralet::planners
