// SPDX-License-Identifier: Apache-2.0
// All parameters: the choice of interfaces, and those options of a device (engine/options.hpp) that have a variable.
// They drive the parser, the messages about wrong values, and `paralet plugin --parameters`.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "settings/settings.hpp"

namespace paralet::settings {

struct Parameter {
  std::string name;
  std::string values;    ///< what is allowed, as words after "must be"
  std::string standard;  ///< what holds when it is not set
  std::string meaning;
  /// Throws SettingsError, or OptionNotAllowed when `values` says all there is to say. Their texts do not repeat the
  /// parameter's name.
  std::function<void(Settings& settings, const std::string& value)> apply;
};

/// All parameters, in the order of the documentation.
const std::vector<Parameter>& parameters();
/// nullptr when there is no parameter of this name.
const Parameter* find_parameter(std::string_view name);

}  // namespace paralet::settings
