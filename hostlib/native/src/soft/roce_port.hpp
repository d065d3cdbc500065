// SPDX-License-Identifier: Apache-2.0
// NICs that take RoCEv2 packets for themselves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace paralet {

/// The RDMA NIC that has a RoCEv2 GID for the IPv4 address (host byte order), nothing without one. Such a NIC consumes
/// packets to UDP port 4791 in hardware (the kernel's devlink documentation, `enable_roce`). A software device (rxe) is
/// none: it binds the port like any program. `devices` is the folder /sys/class/infiniband.
std::optional<std::string> roce_device(std::uint32_t address, const std::filesystem::path& devices);

}  // namespace paralet
