// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/ip_address.hpp"

namespace paralet {

struct Interface {
  std::string name;
  IpAddress address;
  std::uint32_t mtu_bytes = 0;
  bool up = false;  ///< up, with a carrier
};

/// Whether the interface receives packets for `address`. The loopback interface owns all of 127.0.0.0/8.
bool owns(const Interface& interface, const IpAddress& address);

/// The addresses of this network namespace: all of IPv4, then those of IPv6 but the link-local ones. Throws
/// std::system_error when the kernel refuses.
std::vector<Interface> interfaces();
/// The interface that owns `address`.
std::optional<Interface> interface_of(const IpAddress& address);

/// Bits per second of a NIC's link. Nothing where the driver does not know it, and for virtual interfaces, whose
/// drivers report any number.
std::optional<double> nic_rate_bps(const std::string& interface, const std::filesystem::path& root = "/sys/class/net");

}  // namespace paralet
