// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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

}  // namespace paralet
