// SPDX-License-Identifier: Apache-2.0
#include "settings/backend_choice.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace paralet::settings {

BackendChoice choose_backend(std::span<const IpAddress> addresses, std::span<const VerbsPort> ports) {
  const auto found = std::ranges::find_if(ports, [addresses](const VerbsPort& port) {
    return port.active && std::ranges::find(addresses, port.address) != addresses.end();
  });
  if (found == ports.end()) {
    return {BackendKind::kTcp,
            "PARALET_BACKEND=auto takes tcp: no interface has an active RoCE port, and NICs cut TCP into packets more "
            "often than UDP"};
  }
  return {BackendKind::kVerbs, "PARALET_BACKEND=auto takes verbs: " + found->device +
                                   " has an active RoCE port with the address " + format_address(found->address)};
}

std::vector<VerbsPort> of_nics(std::vector<VerbsPort> ports, const std::filesystem::path& sysfs) {
  std::erase_if(ports, [&sysfs](const VerbsPort& port) {
    return std::filesystem::exists(sysfs / "class/infiniband" / port.device / "parent");
  });
  return ports;
}

std::vector<VerbsPort> known_verbs_ports() {
  try {
    return of_nics(verbs_ports());
  } catch (const DeviceError&) {
    return {};
  }
}

}  // namespace paralet::settings
