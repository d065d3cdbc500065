// SPDX-License-Identifier: Apache-2.0
// Reads the settings of a program.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "settings/settings.hpp"

namespace paralet::settings {

using Environment = std::map<std::string, std::string>;
/// The variables of this process.
Environment process_environment();

/// Reads all parameters, of which an empty one counts as not set. Throws SettingsError with one sentence: the
/// parameter, its value and what is allowed. What depends on several parameters is left to `check`.
Settings read(const Environment& environment);

/// Sets one parameter. `where` comes before its name in messages. Throws SettingsError.
void set(Settings& settings, std::string_view parameter, const std::string& value, const std::string& where);

/// Checks parameters against each other. Throws SettingsError.
void check(const Settings& settings);

/// Checks a device's options against each other. Throws SettingsError with one sentence in terms of parameters.
void check_device(const DeviceOptions& options);

}  // namespace paralet::settings
