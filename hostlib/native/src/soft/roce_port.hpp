// SPDX-License-Identifier: Apache-2.0
// NICs that take RoCEv2 packets for themselves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/ip_address.hpp"

namespace paralet {

/// The RDMA NIC that has a RoCEv2 GID for the address, nothing without one. Such a NIC consumes
/// packets to UDP port 4791 in hardware (the kernel's devlink documentation, `enable_roce`). A software device (rxe) is
/// none: it binds the port like any program. `devices` is the folder /sys/class/infiniband.
std::optional<std::string> roce_device(const IpAddress& address, const std::filesystem::path& devices);

}  // namespace paralet
