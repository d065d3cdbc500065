// SPDX-License-Identifier: Apache-2.0
#include "fusion.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "backend/backend.hpp"
#include "plugin_error.hpp"

namespace paralet::plugin {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw PluginError(ncclInvalidArgument, "these devices cannot be fused: " + why);
}

/// Whether NCCL finds a way from a GPU to a device that has this one as a member. It takes NICs without a PCI device
/// for ports of one card, fuses them unasked, and then finds no way (NCCL 2.32, "Could not find any local path").
bool has_place(const DeviceProperties& device, const std::string& topology) {
  return device.pci_path != nullptr || topology.find("name=\"" + std::string(device.name) + '"') != std::string::npos;
}

void check(const std::vector<DeviceProperties>& devices, std::span<const int> members, const std::string& topology) {
  if (members.size() < 2 || members.size() > kMaxMembers) {
    refuse("there must be 2 to " + std::to_string(kMaxMembers) + ", got " + std::to_string(members.size()));
  }
  for (const int member : members) {
    if (member < 0 || static_cast<std::size_t>(member) >= devices.size()) {
      refuse("device " + std::to_string(member) + " does not exist");
    }
    const DeviceProperties& device = devices[static_cast<std::size_t>(member)];
    if (!device.members.empty()) refuse(std::string(device.name) + " is fused already");
    if (!has_place(device, topology)) {
      refuse(std::string(device.name) + " is not a PCI device, and NCCL_TOPO_FILE does not name it");
    }
  }
  if (std::set(members.begin(), members.end()).size() != members.size()) refuse("one is there twice");
}

}  // namespace

DeviceProperties fuse(const std::vector<DeviceProperties>& devices, std::span<const int> members,
                      const std::string& topology) {
  check(devices, members, topology);
  DeviceProperties out = devices[static_cast<std::size_t>(members.front())];
  out.members.assign(members.begin(), members.end());
  std::string name = out.name;
  for (const int member : members.subspan(1)) {
    const DeviceProperties& other = devices[static_cast<std::size_t>(member)];
    name += std::string("+") + other.name;
    out.speed_mbps += other.speed_mbps;
    out.pointers &= other.pointers;
    if (other.place.rail != out.place.rail) out.place.rail = NCCL_NET_ID_UNDEF;
    if (other.place.plane != out.place.plane) out.place.plane = NCCL_NET_ID_UNDEF;
  }
  out.name = forever(name);
  return out;
}

}  // namespace paralet::plugin
