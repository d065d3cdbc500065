// SPDX-License-Identifier: Apache-2.0
// Which interfaces of this machine are devices, and what NCCL wants to know of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/interfaces.hpp"

namespace paralet::plugin {

/// A list of interface names as NCCL_SOCKET_IFNAME has it: prefixes, after '=' exact names, after '^' those to leave
/// out.
class NameFilter {
 public:
  /// Nothing when no name is left.
  static std::optional<NameFilter> parse(std::string_view text);
  [[nodiscard]] bool admits(std::string_view name) const;

 private:
  bool exclude_ = false;
  bool exact_ = false;
  std::vector<std::string> names_;
};

/// What the user asks for; with neither, what NCCL would take for sockets.
struct Selection {
  std::optional<NameFilter> names;
  std::vector<std::uint32_t> addresses;  ///< in this order
};

/// One interface per device, each with its first address unless addresses were asked for. Empty when nothing fits.
std::vector<Interface> select(const std::vector<Interface>& all, const Selection& selection);

/// What /sys tells of an interface.
struct NicFacts {
  std::string pci_path;  ///< empty: it is no PCI device
  int speed_mbps = 0;    ///< kUnknownSpeed when the driver does not say
  int port = 0;
  std::uint64_t guid = 0;  ///< the same in every process, different on every host
};
inline constexpr int kUnknownSpeed = 10'000;  ///< what NCCL assumes
NicFacts nic_facts(const Interface& interface, const std::filesystem::path& sys = "/sys/class/net");

/// Whether the kernel knows GPU memory by its address, so that NICs can register it: by the modules that NCCL looks
/// for.
bool peer_memory(const std::filesystem::path& sys = "/sys");

/// "lo 127.0.0.1, eth0 10.0.0.1 (down)"
std::string describe(const std::vector<Interface>& interfaces);

}  // namespace paralet::plugin
