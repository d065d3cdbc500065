// SPDX-License-Identifier: Apache-2.0
// The settings of a program: PARALET_* variables, and a file with the same names, as options of a device and a choice
// of interfaces. This is the only place that parses them: the NCCL plugin and the Python binding
// (hostlib/parameters.py) take what it has read.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/options.hpp"
#include "settings/interface_choice.hpp"
#include "settings/rails.hpp"

namespace paralet::settings {

struct Settings {
  Selection selection;
  std::string selected_by = "default";         ///< the variable that chose the interfaces, for messages
  DeviceOptions device;                        ///< all but its address
  bool automatic_backend = true;               ///< choose_backend has the last word about `device.backend`
  std::string backend_choice;                  ///< what it said, once it was asked
  std::map<std::string, OptionValue> options;  ///< those that are set, by Option::name
  std::set<std::string> given;                 ///< parameters that are set, by name
  Rails rails;
  std::string config_file;
  std::vector<std::string> advice;  ///< sentences about likely mistakes
};

}  // namespace paralet::settings
