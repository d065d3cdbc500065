// SPDX-License-Identifier: Apache-2.0
// What a device function of NCCL does, from its name.
#pragma once

#include <string_view>

#include "kernels/kernel.hpp"

namespace paralet::cpu_device {

// The function called `name`, such as "AllReduce_Sum_f32_RING_SIMPLE" or "SendRecv"; unknown where a part is not
// understood. Keeps `name`, which must outlive the result.
Function parse_function(std::string_view name);

// The identifier in a mangled name of the form _Z<length><identifier>..., or the name itself.
std::string_view identifier(std::string_view mangled);

}  // namespace paralet::cpu_device
