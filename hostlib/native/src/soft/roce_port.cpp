// SPDX-License-Identifier: Apache-2.0
#include "soft/roce_port.hpp"

#include <cstdio>
#include <fstream>
#include <system_error>

namespace paralet {
namespace {

namespace fs = std::filesystem;

/// The first line of a file, empty when it cannot be read, as that of an unused GID.
std::string line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

/// The IPv4-mapped GID of an address as sysfs writes it.
std::string gid_text(std::uint32_t address) {
  char text[sizeof "0000:0000:0000:0000:0000:ffff:0000:0000"];
  std::snprintf(text, sizeof text, "0000:0000:0000:0000:0000:ffff:%04x:%04x", address >> 16, address & 0xFFFF);
  return text;
}

bool port_has(const fs::path& port, const std::string& gid) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(port / "gids", error)) {
    const fs::path type = port / "gid_attrs" / "types" / entry.path().filename();
    if (line_of(entry.path()) == gid && line_of(type) == "RoCE v2") return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> roce_device(std::uint32_t address, const fs::path& devices) {
  const std::string gid = gid_text(address);
  std::error_code error;
  for (const auto& device : fs::directory_iterator(devices, error)) {
    // A software device has no PCI device, but the name of its network interface.
    if (fs::exists(device.path() / "parent", error)) continue;
    for (const auto& port : fs::directory_iterator(device.path() / "ports", error)) {
      if (port_has(port.path(), gid)) return device.path().filename().string();
    }
  }
  return std::nullopt;
}

}  // namespace paralet
