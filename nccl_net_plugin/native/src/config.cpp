// SPDX-License-Identifier: Apache-2.0
#include "config.hpp"

#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/interfaces.hpp"
#include "nccl_variables.hpp"
#include "plugin_error.hpp"
#include "settings/backend_choice.hpp"
#include "settings/error.hpp"

namespace paralet::plugin {
namespace {

/// Variables of NCCL whose meaning is the same here stand in for parameters that are not set. Those that are set and
/// have no effect are named in one warning.
void take_nccl_settings(const Environment& environment, Settings& settings) {
  const std::set<std::string> given = settings.given;
  std::string ignored;
  for (const NcclVariable& variable : nccl_variables()) {
    if (variable.effect == NcclEffect::kOwn || variable.effect == NcclEffect::kRead) continue;
    const auto set = environment.find(variable.name);
    if (set == environment.end() || set->second.empty() || set->second == "-1") continue;  // -1: NCCL's own default
    const std::string here(variable.here);
    if (given.contains(here)) continue;
    const bool taken = variable.effect == NcclEffect::kTaken ||
                       (variable.effect == NcclEffect::kTakenByVerbs && settings.device.backend == BackendKind::kVerbs);
    if (taken) {
      settings::set(settings, here, set->second, std::string(variable.name) + ", taken as ");
    } else {
      ignored +=
          (ignored.empty() ? "" : ", ") + std::string(variable.name) + (here.empty() ? "" : " (here " + here + ")");
    }
  }
  if (!ignored.empty()) {
    settings.advice.push_back("these variables of NCCL have no effect on this plugin: " + ignored);
  }
}

/// The family of the addresses of interfaces, as for NCCL's own sockets.
void take_family(const Environment& environment, Settings& settings) {
  const auto given = environment.find("NCCL_SOCKET_FAMILY");
  if (given == environment.end() || given->second.empty() || !settings.selection.addresses.empty()) return;
  const std::string said = "NCCL_SOCKET_FAMILY=" + given->second;
  if (given->second != "AF_INET" && given->second != "AF_INET6") {
    settings.advice.push_back(said + " has no effect: it must be AF_INET or AF_INET6");
    return;
  }
  settings.selection.ipv4 = given->second == "AF_INET";
  settings.selected_by += ", " + said;
}

/// What PARALET_BACKEND=auto means for the interfaces that are chosen.
void take_backend(Settings& settings) {
  std::vector<IpAddress> addresses;
  for (const Interface& interface : settings::select(interfaces(), settings.selection)) {
    addresses.push_back(interface.address);
  }
  const auto choice = settings::choose_backend(addresses, settings::known_verbs_ports());
  settings.device.backend = choice.backend;
  settings.backend_choice = choice.why;
}

}  // namespace

Settings load_settings(const Environment& environment) try {
  Settings settings{settings::read(environment)};
  if (const auto nccl = environment.find("NCCL_SOCKET_IFNAME");
      nccl != environment.end() && !settings.selection.names && settings.selection.addresses.empty()) {
    settings.selection.names = settings::NameFilter::parse(nccl->second);
    if (settings.selection.names) settings.selected_by = "NCCL_SOCKET_IFNAME=" + nccl->second;
  }
  take_family(environment, settings);
  if (settings.automatic_backend) take_backend(settings);
  take_nccl_settings(environment, settings);
  settings::check(settings);
  if (const auto file = environment.find("NCCL_TOPO_FILE"); file != environment.end()) {
    std::ifstream in(file->second);
    settings.topology.assign(std::istreambuf_iterator<char>(in), {});
  }
  return settings;
} catch (const settings::SettingsError& error) {
  refuse(error.what());
}

void check_device(const DeviceOptions& options) try {
  settings::check_device(options);
} catch (const settings::SettingsError& error) {
  refuse(error.what());
}

}  // namespace paralet::plugin
