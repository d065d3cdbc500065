// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "fusion.hpp"
#include "paralet_nccl_net.h"
#include "plugin_error.hpp"

namespace paralet::plugin {
namespace {

std::vector<DeviceProperties> three() {
  return {{.name = "eth0", .pci_path = "/sys/a", .guid = 1, .pointers = 7, .speed_mbps = 100, .place = {2, 0}},
          {.name = "eth1", .pci_path = "/sys/b", .guid = 2, .pointers = 5, .speed_mbps = 25, .place = {2, 1}},
          {.name = "eth2", .pci_path = "/sys/c", .guid = 3, .pointers = 1, .speed_mbps = 10, .place = {3, 1}}};
}

std::string refusal(const std::vector<DeviceProperties>& devices, const std::vector<int>& members,
                    const std::string& topology = {}) {
  try {
    static_cast<void>(fuse(devices, members, topology));
  } catch (const PluginError& error) {
    CHECK(error.result == ncclInvalidArgument);
    return error.what();
  }
  return {};
}

TEST_CASE("a fused device has the sum of the speeds, and of the rest what its members share") {
  const DeviceProperties two = fuse(three(), std::vector{0, 1}, {});
  CHECK(std::string(two.name) == "eth0+eth1");
  CHECK(std::string(two.pci_path) == "/sys/a");
  CHECK(two.guid == 1);
  CHECK(two.speed_mbps == 125);
  CHECK(two.pointers == 5);
  CHECK(two.place == RailPlane{2, -1});
  CHECK(two.members == std::vector{0, 1});
  const DeviceProperties all = fuse(three(), std::vector{2, 1, 0}, {});
  CHECK(std::string(all.name) == "eth2+eth1+eth0");
  CHECK(all.pointers == 1);
  CHECK(all.place == RailPlane{-1, -1});
}

TEST_CASE("what cannot be fused is told in one sentence") {
  std::vector<DeviceProperties> devices = three();
  devices.push_back(fuse(devices, std::vector{0, 1}, {}));
  CHECK(refusal(devices, {}) == "these devices cannot be fused: there must be 2 to 4, got 0");
  CHECK(refusal(devices, {0}) == "these devices cannot be fused: there must be 2 to 4, got 1");
  CHECK(refusal(devices, {0, 1, 2, 0, 1}) == "these devices cannot be fused: there must be 2 to 4, got 5");
  CHECK(refusal(devices, {0, 4}) == "these devices cannot be fused: device 4 does not exist");
  CHECK(refusal(devices, {-1, 0}) == "these devices cannot be fused: device -1 does not exist");
  CHECK(refusal(devices, {2, 3}) == "these devices cannot be fused: eth0+eth1 is fused already");
  CHECK(refusal(devices, {0, 1, 0}) == "these devices cannot be fused: one is there twice");
}

TEST_CASE("devices for which NCCL finds no place are fused only by a topology file that names them") {
  std::vector<DeviceProperties> devices = three();
  devices[1].pci_path = nullptr;
  const char* const why =
      "these devices cannot be fused: eth1 is not a PCI device, and NCCL_TOPO_FILE does not name it";
  CHECK(refusal(devices, {0, 1}) == why);
  CHECK(refusal(devices, {0, 1}, R"(<net name="eth10"/>)") == why);
  CHECK(refusal(devices, {0, 1}, R"(<net dev="1" name="eth1"/>)").empty());
  CHECK(refusal(devices, {0, 2}).empty());
}

}  // namespace
}  // namespace paralet::plugin
