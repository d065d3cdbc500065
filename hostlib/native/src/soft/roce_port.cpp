// SPDX-License-Identifier: Apache-2.0
#include "soft/roce_port.hpp"

#include <cstddef>
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

/// The GID of an address as sysfs writes it: eight groups of four digits.
std::string gid_text(const IpAddress& address) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < address.bytes().size(); ++i) {
    if (i > 0 && i % 2 == 0) text += ':';
    text += kDigits[address.bytes()[i] >> 4];
    text += kDigits[address.bytes()[i] & 0xF];
  }
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

std::optional<std::string> roce_device(const IpAddress& address, const fs::path& devices) {
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
