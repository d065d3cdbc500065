// SPDX-License-Identifier: Apache-2.0
// Messages on standard error.
#pragma once

#include <string_view>

namespace paralet::cpu_device {

// Whether PARALET_CPU_DEVICE_DEBUG is set to anything but 0.
bool debugging();

// A line that a user must see.
void warn(std::string_view sentence);

// A line where debugging() holds.
void debug(std::string_view sentence);

}  // namespace paralet::cpu_device
