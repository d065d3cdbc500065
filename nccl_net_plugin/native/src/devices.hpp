// SPDX-License-Identifier: Apache-2.0
// Selects the interfaces that become devices, and finds their properties for NCCL.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/interfaces.hpp"

namespace paralet::plugin {

/// A list of interface names in the syntax of NCCL_SOCKET_IFNAME: prefixes; exact names after '='; exclusions after
/// '^'.
class NameFilter {
 public:
  /// Nothing when the list has no name.
  static std::optional<NameFilter> parse(std::string_view text);
  [[nodiscard]] bool admits(std::string_view name) const;

 private:
  bool exclude_ = false;
  bool exact_ = false;
  std::vector<std::string> names_;
};

/// The user's choice of interfaces. Without names and addresses the choice is that of NCCL's socket transport.
struct Selection {
  std::optional<NameFilter> names;
  std::vector<IpAddress> addresses = {};  ///< devices, in this order
  std::optional<bool> ipv4 = {};  ///< the family of the addresses of interfaces; nothing: the one that `select` chooses
};

/// One interface per device, each with one address unless addresses are given: the one that reaches farthest, of these
/// the kernel's first. All are of one family: the one asked for, else that of the address that reaches farthest, IPv4
/// if both do. Empty when none fits.
std::vector<Interface> select(const std::vector<Interface>& all, const Selection& selection);

/// The addresses that the device's interface has beside the one that was selected, "" when there are none.
std::string other_addresses(const std::vector<Interface>& all, const Interface& device);

/// Properties of an interface from /sys.
struct NicFacts {
  std::string pci_path;  ///< empty: not a PCI device
  int speed_mbps = 0;    ///< kUnknownSpeed when the driver reports none
  int port = 0;
  std::uint64_t guid = 0;  ///< the same in every process, different on every host
};
inline constexpr int kUnknownSpeed = 10'000;  ///< NCCL's assumption
NicFacts nic_facts(const Interface& interface, const std::filesystem::path& sys = "/sys/class/net");

/// Rail and plane of a device, as in NCCL's properties: undefined is NCCL_NET_ID_UNDEF.
struct RailPlane {
  std::int16_t rail = -1;
  std::int16_t plane = -1;
  bool operator==(const RailPlane&) const = default;
};

/// Properties of a device, common to all versions.
struct DeviceProperties {
  const char* name = nullptr;      ///< `forever`
  const char* pci_path = nullptr;  ///< `forever`; nullptr: not a PCI device
  std::uint64_t guid = 0;
  int pointers = 0;  ///< NCCL_PTR_* bits
  int speed_mbps = 0;
  int port = 0;
  RailPlane place;
  std::vector<int> members;  ///< numbers of the devices that this one fuses; empty: it fuses none
};

/// A copy that is never freed, because NCCL keeps pointers to names.
const char* forever(const std::string& text);

/// The user's rails and planes.
struct Rails {
  bool by_position = true;                 ///< number rails by PCI address; else only the named ones
  std::map<std::string, RailPlane> named;  ///< by interface
};

/// Rail and plane of each device. By position, the devices' PCI addresses in ascending order are rails 0, 1, ..; a
/// single device, and devices of which one has no PCI address, have no rail. Planes are never guessed: NCCL connects no
/// two devices of different planes.
std::vector<RailPlane> rails_of(const Rails& rails, const std::vector<std::string>& interfaces,
                                const std::vector<std::string>& pci_paths);

/// Whether a kernel module lets NICs register GPU memory by its address. Looks for the same modules as NCCL.
bool peer_memory(const std::filesystem::path& sys = "/sys");

/// "lo 127.0.0.1, eth0 10.0.0.1 (down)"
std::string describe(const std::vector<Interface>& interfaces);

}  // namespace paralet::plugin
