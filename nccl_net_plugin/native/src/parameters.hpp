// SPDX-License-Identifier: Apache-2.0
// The one table of what may be set. It drives parsing, the messages about wrong values, and docs/plugin.md.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "settings.hpp"

namespace paralet::plugin {

struct Parameter {
  const char* name;
  const char* values;    ///< what is allowed
  const char* standard;  ///< what holds when it is not set
  const char* meaning;
  /// Throws PluginError with what is wrong, without a name, or std::invalid_argument when `values` says it all.
  void (*apply)(Settings& settings, const std::string& value);
};

/// All of them, in the order of the documentation.
std::span<const Parameter> parameters();
/// nullptr when there is none of this name.
const Parameter* find_parameter(std::string_view name);

}  // namespace paralet::plugin
