// SPDX-License-Identifier: Apache-2.0
// The option `segments`: the IPv6 nodes that the packets of each lane pass (RFC 8754).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ip_address.hpp"

namespace paralet {

/// IPv6 nodes that the packets of lane 0, 1, .. pass, by peer address.
using LaneSegments = std::map<IpAddress, std::vector<std::vector<IpAddress>>>;

/// Adds the segments of lane 0, 1, .. towards one peer. Throws std::invalid_argument with a sentence.
void add_segments(LaneSegments& table, const std::string& peer, const std::vector<std::vector<std::string>>& lanes);

/// Checks that each port of a peer with segments has one list of them. `name` and `ports_name` are what the front end
/// calls the two options. Throws std::invalid_argument with one sentence.
void check_segments(const LaneSegments& table, const std::map<IpAddress, std::vector<std::uint16_t>>& ports,
                    const std::string& name, const std::string& ports_name);

}  // namespace paralet
