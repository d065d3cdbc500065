// SPDX-License-Identifier: Apache-2.0
// The properties of the interfaces that become devices, for NCCL.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/interfaces.hpp"
#include "settings/rails.hpp"

namespace paralet::plugin {

/// Properties of an interface from /sys.
struct NicFacts {
  std::string pci_path;  ///< empty: not a PCI device
  int speed_mbps = 0;    ///< kUnknownSpeed when the driver reports none
  int port = 0;
  std::uint64_t guid = 0;  ///< the same in every process, different on every host
};
inline constexpr int kUnknownSpeed = 10'000;  ///< NCCL's assumption
NicFacts nic_facts(const Interface& interface, const std::filesystem::path& sys = "/sys/class/net");

using settings::RailPlane;
using settings::Rails;

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
