// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "devices.hpp"
#include "engine/options.hpp"

namespace paralet::plugin {

/// The configuration that load_settings has read.
struct Settings {
  Selection selection;
  std::string selected_by = "default";  ///< the variable that chose the interfaces, for messages
  DeviceOptions device;                 ///< all but its address
  bool lanes_given = false;             ///< the user has chosen the number of lanes
  Rails rails;
  std::string config_file;
  std::string topology;             ///< NCCL's description of the machine (NCCL_TOPO_FILE), empty without one
  std::vector<std::string> advice;  ///< sentences for the log about likely mistakes
};

}  // namespace paralet::plugin
