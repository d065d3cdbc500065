// SPDX-License-Identifier: Apache-2.0
// The plugin's settings: those of every program (settings/read.hpp), and what NCCL's variables say.
#pragma once

#include <string>

#include "settings/read.hpp"

namespace paralet::plugin {

using settings::Environment;
using settings::process_environment;

struct Settings : settings::Settings {
  std::string topology = {};  ///< NCCL's description of the machine (NCCL_TOPO_FILE), empty without one
};

/// Reads and checks all parameters. Throws PluginError with one sentence: the parameter, its value and what is allowed.
Settings load_settings(const Environment& environment);

/// Checks a device's options against each other. Throws PluginError with one sentence in terms of parameters.
void check_device(const DeviceOptions& options);

}  // namespace paralet::plugin
