// SPDX-License-Identifier: Apache-2.0
#include "config.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "parameters.hpp"
#include "plugin_error.hpp"
#include "values.hpp"

namespace paralet::plugin {
namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw PluginError(ncclInvalidUsage, sentence); }

struct Given {
  std::string value;
  std::string where;  ///< "FILE:LINE: ", empty for the environment
};

void apply(const Parameter& parameter, Settings& settings, const Given& given) {
  const std::string name = given.where + parameter.name + "='" + given.value + "'";
  try {
    parameter.apply(settings, given.value);
  } catch (const std::invalid_argument&) {
    refuse(name + " is not allowed: it must be " + parameter.values);
  } catch (const PluginError& error) {
    refuse(name + " is not allowed: " + error.what());
  }
}

std::map<std::string, Given> read_config(const std::string& path) {
  std::map<std::string, Given> out;
  for (const Line& line : read_lines(path)) {
    const std::size_t equals = line.text.find('=');
    if (equals == std::string::npos) refuse(line.where + "'" + line.text + "' is not NAME=value");
    const std::string name(trim(std::string_view(line.text).substr(0, equals)));
    if (find_parameter(name) == nullptr || name == "PARALET_CONFIG") {
      refuse(line.where + name + " is no parameter: `paralet plugin --parameters` lists them");
    }
    const std::string value(trim(std::string_view(line.text).substr(equals + 1)));
    if (!out.emplace(name, Given{value, line.where}).second) refuse(line.where + name + " is set twice");
  }
  return out;
}

/// Edits that turn one name into the other.
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

/// A variable that is nearly one of ours is a slip of the pen.
std::optional<std::string> slip(const std::string& name) {
  constexpr std::size_t kSlips = 2;
  if (!name.starts_with("PARALET_") || find_parameter(name) != nullptr) return std::nullopt;
  for (const Parameter& parameter : parameters()) {
    if (distance(name, parameter.name) <= kSlips) {
      return name + " is no parameter and is ignored: did you mean " + parameter.name + "?";
    }
  }
  return std::nullopt;
}

/// What two parameters together may not be.
void check(const Settings& settings) {
  const PolicyOptions& policy = settings.device.policy;
  if (policy.kind == PolicyKind::kPinned && policy.ports.empty()) {
    refuse("PARALET_POLICY='pinned' needs PARALET_PORTS, the source ports for each peer");
  }
  if (policy.kind != PolicyKind::kPinned && !policy.ports.empty()) {
    refuse("PARALET_PORTS is for PARALET_POLICY=pinned, not for " + std::string(to_string(policy.kind)));
  }
  const bool controlled = policy.kind == PolicyKind::kController;
  const bool has_service = !policy.controller.service.empty();
  const bool has_token = !policy.controller.token.empty();
  if (controlled && !(has_service && has_token)) {
    refuse(
        "PARALET_POLICY='controller' needs PARALET_CONTROLLER, where the path service listens, and "
        "PARALET_CONTROLLER_TOKEN_FILE");
  }
  if (!controlled && (has_service || has_token)) {
    refuse(std::string(has_service ? "PARALET_CONTROLLER" : "PARALET_CONTROLLER_TOKEN_FILE") +
           " is for PARALET_POLICY=controller, not for " + to_string(policy.kind));
  }
  const RdmaOptions& rdma = settings.device.rdma;
  if (settings.device.backend != BackendKind::kVerbs &&
      (rdma.gid_index || rdma.traffic_class != 0 || rdma.service_level != 0)) {
    refuse("PARALET_GID_INDEX, PARALET_TRAFFIC_CLASS and PARALET_SERVICE_LEVEL are for PARALET_BACKEND=verbs");
  }
  if (settings.device.backend == BackendKind::kVerbs && settings.device.faults.any()) {
    refuse("PARALET_FAULTS is for PARALET_BACKEND=soft: a NIC's packets are its own");
  }
  if (settings.selection.names && !settings.selection.addresses.empty()) {
    refuse("PARALET_IFNAME and PARALET_ADDRESSES exclude each other: set one of them");
  }
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

Settings load_settings(const Environment& environment) {
  std::map<std::string, Given> given;
  Settings settings;
  // An empty variable is one that is not set, as usual in job scripts.
  for (const auto& [name, value] : environment) {
    if (find_parameter(name) != nullptr && !value.empty()) given.emplace(name, Given{value, ""});
    if (const auto sentence = slip(name)) settings.advice.push_back(*sentence);
  }
  if (const auto config = given.find("PARALET_CONFIG"); config != given.end()) {
    try {
      given.merge(read_config(config->second.value));  // what is there already stays
    } catch (const PluginError& error) {
      refuse("PARALET_CONFIG='" + config->second.value + "': " + error.what());
    }
  }
  for (const Parameter& parameter : parameters()) {
    if (const auto found = given.find(parameter.name); found != given.end()) {
      apply(parameter, settings, found->second);
    }
  }
  check(settings);
  if (const auto nccl = environment.find("NCCL_SOCKET_IFNAME");
      nccl != environment.end() && !settings.selection.names && settings.selection.addresses.empty()) {
    settings.selection.names = NameFilter::parse(nccl->second);
    if (settings.selection.names) settings.selected_by = "NCCL_SOCKET_IFNAME=" + nccl->second;
  }
  return settings;
}

}  // namespace paralet::plugin
