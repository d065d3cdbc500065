// SPDX-License-Identifier: Apache-2.0
// NIC fusion: NCCL asks for a device made of several others (makeVDevice).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "devices.hpp"

namespace paralet::plugin {

/// Properties of the device that these `members` of `devices` make together: the sum of their speeds, what all of them
/// support, and else those of the first. `topology` is the text of NCCL's topology file, empty without one. Throws
/// PluginError with one sentence when they cannot be fused.
DeviceProperties fuse(const std::vector<DeviceProperties>& devices, std::span<const int> members,
                      const std::string& topology);

}  // namespace paralet::plugin
