// SPDX-License-Identifier: Apache-2.0
// The configuration: PARALET_* variables, and a file with the same names.
#pragma once

#include <map>
#include <string>

#include "settings.hpp"

namespace paralet::plugin {

using Environment = std::map<std::string, std::string>;
/// The variables of this process.
Environment process_environment();

/// Reads and checks all parameters. Throws PluginError with one sentence: the parameter, its value and what is allowed.
Settings load_settings(const Environment& environment);

/// Checks a device's options against each other. Throws PluginError with one sentence in terms of parameters.
void check_device(const DeviceOptions& options);

}  // namespace paralet::plugin
