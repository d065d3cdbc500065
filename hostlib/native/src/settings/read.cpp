// SPDX-License-Identifier: Apache-2.0
#include "settings/read.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "base/errors.hpp"
#include "path_client/options.hpp"
#include "settings/error.hpp"
#include "settings/parameters.hpp"
#include "settings/values.hpp"

namespace paralet::settings {
namespace {

struct Given {
  std::string value;
  std::string where;  ///< "FILE:LINE: ", empty for the environment
};

void apply(const Parameter& parameter, Settings& settings, const Given& given) {
  const std::string name = given.where + parameter.name + "='" + given.value + "'";
  try {
    parameter.apply(settings, given.value);
  } catch (const OptionNotAllowed&) {
    refuse(name + " is not allowed: it must be " + parameter.values);
  } catch (const std::invalid_argument& error) {
    refuse(name + " is not allowed: " + error.what());
  }
  settings.given.insert(parameter.name);
}

void refuse_former(const std::string& where, const std::string& name) {
  for (const Option& option : options()) {
    if (option.former != nullptr && name == option.former) {
      refuse(where + name + " is now named " + option.variable + ": set that instead");
    }
  }
}

std::map<std::string, Given> read_config(const std::string& path) {
  std::map<std::string, Given> out;
  for (const Line& line : read_lines(path)) {
    const std::size_t equals = line.text.find('=');
    if (equals == std::string::npos) refuse(line.where + "'" + line.text + "' is not NAME=value");
    const std::string name(trim(std::string_view(line.text).substr(0, equals)));
    refuse_former(line.where, name);
    if (find_parameter(name) == nullptr || name == "PARALET_CONFIG") {
      refuse(line.where + name + " is not a parameter: `paralet plugin --parameters` lists them all");
    }
    const std::string value(trim(std::string_view(line.text).substr(equals + 1)));
    if (!out.emplace(name, Given{value, line.where}).second) refuse(line.where + name + " is set twice");
  }
  return out;
}

/// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// Advice for a variable whose name is probably misspelled: at most two edits away from a parameter.
std::optional<std::string> misspelling(const std::string& name) {
  constexpr std::size_t kMaxEdits = 2;
  if (!name.starts_with("PARALET_") || find_parameter(name) != nullptr) return std::nullopt;
  for (const Parameter& parameter : parameters()) {
    if (distance(name, parameter.name) <= kMaxEdits) {
      return name + " is not a parameter and is ignored: did you mean " + parameter.name + "?";
    }
  }
  return std::nullopt;
}

/// The variable of an option, "" when it has none.
std::string variable_of(std::string_view name) {
  if (name == "faults") return "PARALET_FAULTS";
  const auto found = std::ranges::find(options(), name, [](const Option& o) { return std::string_view(o.name); });
  return found != options().end() && found->variable != nullptr ? found->variable : "";
}

/// Checks the options of a device whose back end is still to be chosen: what fits one of those that `auto` takes is
/// allowed. Throws SettingsError.
void check_undecided(DeviceOptions options) {
  options.backend = BackendKind::kVerbs;
  try {
    return check_device(options);
  } catch (const SettingsError&) {
    options.backend = BackendKind::kTcp;
  }
  check_device(options);
}

}  // namespace

Environment process_environment() {
  Environment out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (const std::size_t equals = text.find('='); equals != std::string_view::npos) {
      out.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return out;
}

Settings read(const Environment& environment) {
  std::map<std::string, Given> given;
  Settings settings;
  // An empty variable counts as not set, as is usual in job scripts.
  for (const auto& [name, value] : environment) {
    if (!value.empty()) refuse_former("", name);
    if (find_parameter(name) != nullptr && !value.empty()) given.emplace(name, Given{value, ""});
    if (const auto sentence = misspelling(name)) settings.advice.push_back(*sentence);
  }
  if (const auto config = given.find("PARALET_CONFIG"); config != given.end()) {
    try {
      given.merge(read_config(config->second.value));  // the environment overrides the file
    } catch (const SettingsError& error) {
      refuse("PARALET_CONFIG='" + config->second.value + "': " + error.what());
    }
  }
  for (const Parameter& parameter : parameters()) {
    if (const auto found = given.find(parameter.name); found != given.end()) {
      apply(parameter, settings, found->second);
    }
  }
  return settings;
}

void set(Settings& settings, std::string_view parameter, const std::string& value, const std::string& where) {
  apply(*find_parameter(parameter), settings, {value, where});
}

void check(const Settings& settings) {
  const bool undecided = settings.automatic_backend && settings.backend_choice.empty();
  undecided ? check_undecided(settings.device) : check_device(settings.device);
  if (settings.selection.names && !settings.selection.addresses.empty()) {
    refuse("PARALET_IFNAME and PARALET_ADDRESSES exclude each other: set one of them");
  }
  const PolicyOptions& policy = settings.device.policy;
  if (policy.kind != PolicyKind::kController) return;
  try {
    path_client::resolve(policy.path_client.service);
  } catch (const DeviceError& error) {
    refuse("PARALET_PATH_SERVICE='" + policy.path_client.service + "' is not allowed: " + error.what());
  }
}

void check_device(const DeviceOptions& options) {
  try {
    check_combination(options, variable_of);
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
}

}  // namespace paralet::settings
