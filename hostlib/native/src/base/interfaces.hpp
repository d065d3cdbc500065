// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace paralet {

struct Interface {
  std::string name;
  std::uint32_t address = 0;  ///< IPv4, host byte order
  std::uint32_t mtu_bytes = 0;
  bool up = false;  ///< up, with a carrier
};

/// Whether the interface receives packets for `address`. The loopback interface owns all of 127.0.0.0/8.
bool owns(const Interface& interface, std::uint32_t address);

/// The IPv4 addresses of this network namespace. Throws std::system_error when the kernel refuses.
std::vector<Interface> interfaces();
/// The interface that owns `address`.
std::optional<Interface> interface_of(std::uint32_t address);

/// "10.0.0.1" to host byte order; nullopt when the text is not an IPv4 address.
std::optional<std::uint32_t> parse_ipv4(const std::string& text);
std::string format_ipv4(std::uint32_t address);

}  // namespace paralet
