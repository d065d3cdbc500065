// SPDX-License-Identifier: Apache-2.0
// PARALET_BACKEND=auto: which back end suits a machine.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/ip_address.hpp"
#include "engine/options.hpp"
#include "verbs/verbs_options.hpp"

namespace paralet::settings {

struct BackendChoice {
  BackendKind backend = BackendKind::kTcp;
  std::string why;  ///< one sentence
};

/// For devices at these addresses: `verbs` where one of them is that of an active RoCE port, else `tcp`.
BackendChoice choose_backend(std::span<const IpAddress> addresses, std::span<const VerbsPort> ports);

/// Without those of devices in software, such as the kernel's SoftRoCE, which have a parent in `sysfs`.
std::vector<VerbsPort> of_nics(std::vector<VerbsPort> ports, const std::filesystem::path& sysfs = "/sys");
/// The ports of this machine's NICs, none without libibverbs.
std::vector<VerbsPort> known_verbs_ports();

}  // namespace paralet::settings
