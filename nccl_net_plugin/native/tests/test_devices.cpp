// SPDX-License-Identifier: Apache-2.0
// The properties of interfaces in a tree like /sys.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/interfaces.hpp"
#include "devices.hpp"

namespace paralet::plugin {
namespace {

namespace fs = std::filesystem;

Interface nic(const std::string& name, const std::string& address, bool up = true) {
  return {.name = name, .address = *parse_address(address), .mtu_bytes = 1500, .up = up};
}

/// A temporary tree like /sys.
class Sys {
 public:
  Sys() : root_(fs::temp_directory_path() / ("paralet-sys-" + std::to_string(::getpid()))) {
    fs::create_directories(root_ / "net");
  }
  Sys(const Sys&) = delete;
  Sys& operator=(const Sys&) = delete;
  ~Sys() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void write(const std::string& interface, const std::string& file, const std::string& text) const {
    fs::create_directories(net() / interface);
    std::ofstream(net() / interface / file) << text << '\n';
  }
  void link_device(const std::string& interface, const std::string& target) const {
    fs::create_directories(root_ / target);
    fs::create_directories(net() / interface);
    fs::create_directory_symlink(root_ / target, net() / interface / "device");
  }
  [[nodiscard]] fs::path net() const { return root_ / "net"; }
  [[nodiscard]] const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

TEST_CASE("a PCI NIC has the path, speed and port that the kernel reports") {
  const Sys sys;
  sys.link_device("eth0", "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1");
  sys.write("eth0", "speed", "100000");
  sys.write("eth0", "dev_port", "1");
  sys.write("eth0", "address", "02:00:00:00:00:01");
  const NicFacts facts = nic_facts(nic("eth0", "192.0.2.1"), sys.net());
  CHECK(facts.pci_path == (fs::canonical(sys.root()) / "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1").string());
  CHECK(facts.speed_mbps == 100000);
  CHECK(facts.port == 1);
}

TEST_CASE("a virtio NIC has the PCI device above it, a virtual interface has none") {
  const Sys sys;
  sys.link_device("eth0", "devices/pci0000:00/0000:00:03.0/virtio1");
  sys.link_device("eth1", "devices/platform/something");
  CHECK(nic_facts(nic("eth0", "192.0.2.1"), sys.net()).pci_path.ends_with("/0000:00:03.0"));
  CHECK(nic_facts(nic("eth1", "192.0.2.2"), sys.net()).pci_path.empty());
  CHECK(nic_facts(nic("veth0", "192.0.2.3"), sys.net()).pci_path.empty());
}

TEST_CASE("an unknown or invalid speed counts as 10 Gbit/s, as in NCCL's socket transport") {
  const Sys sys;
  for (const char* text : {"-1", "0", "fast", "", "99999999999999999999"}) {
    CAPTURE(text);
    sys.write("eth0", "speed", text);
    CHECK(nic_facts(nic("eth0", "192.0.2.1"), sys.net()).speed_mbps == kUnknownSpeed);
  }
  CHECK(nic_facts(nic("eth9", "192.0.2.9"), sys.net()).speed_mbps == kUnknownSpeed);
}

TEST_CASE("GUIDs are constant, and differ by MAC and by address") {
  const Sys sys;
  sys.write("eth0", "address", "02:00:00:00:00:01");
  sys.write("eth1", "address", "02:00:00:00:00:02");
  const auto guid = [&](const char* name, const char* address) {
    return nic_facts(nic(name, address), sys.net()).guid;
  };
  CHECK(guid("eth0", "192.0.2.1") == guid("eth0", "192.0.2.1"));
  CHECK(guid("eth0", "192.0.2.1") == guid("eth0:1", "192.0.2.1"));
  CHECK(guid("eth0", "192.0.2.1") != guid("eth1", "192.0.2.1"));
  CHECK(guid("eth0", "192.0.2.1") != guid("eth0", "192.0.2.2"));
}

TEST_CASE("the ports of one chip have one GUID, that of the RDMA device where there is one") {
  const Sys sys;
  sys.link_device("eth0", "devices/pci0000:3a/0000:3b:00.0");
  sys.link_device("eth1", "devices/pci0000:3a/0000:3b:00.1");
  sys.link_device("eth2", "devices/pci0000:3a/0000:3c:00.0");
  const auto guid = [&](const char* name, const char* address) {
    return nic_facts(nic(name, address), sys.net()).guid;
  };
  sys.write("eth0", "address", "02:00:00:00:00:01");
  sys.write("eth1", "address", "02:00:00:00:00:02");
  CHECK(guid("eth0", "192.0.2.1") == guid("eth1", "192.0.2.2"));
  CHECK(guid("eth0", "192.0.2.1") != guid("eth2", "192.0.2.3"));
  for (const char* name : {"eth0", "eth2"}) {
    sys.write(std::string(name) + "/device/infiniband/mlx5_0", "sys_image_guid", "b83f:d203:00ab:cdef");
  }
  CHECK(guid("eth0", "192.0.2.1") == 0xB83FD20300ABCDEF);
  CHECK(guid("eth2", "192.0.2.3") == 0xB83FD20300ABCDEF);
}

TEST_CASE("rails by position number the PCI addresses of two or more devices") {
  const Rails order;
  const auto path = [](const char* address) { return std::string("/sys/devices/pci0000:00/") + address; };
  const RailPlane none;
  const RailPlane first{.rail = 0};
  const RailPlane second{.rail = 1};
  const RailPlane third{.rail = 2};
  CHECK(rails_of(order, {"eth0", "eth1"}, {path("0000:5e:00.0"), path("0000:3b:00.1")}) == std::vector{second, first});
  CHECK(rails_of(order, {"a", "b", "c"}, {path("10000:01:00.0"), path("ffff:01:00.0"), path("0000:3b:00.0")}) ==
        std::vector{third, second, first});
  CHECK(rails_of(order, {"a", "b"}, {path("0000:3b:00.0"), path("0000:3b:00.0")}) == std::vector{first, first});
  CHECK(rails_of(order, {"eth0"}, {path("0000:3b:00.0")}) == std::vector{none});
  CHECK(rails_of(order, {"eth0", "veth1"}, {path("0000:3b:00.0"), ""}) == std::vector{none, none});
  CHECK(rails_of(order, {}, {}).empty());
}

TEST_CASE("named rails and planes hold for their interfaces only, and for all addresses of these") {
  const Rails named{.by_position = false, .named = {{"eth0", {.rail = 3}}, {"eth1", {.rail = 4, .plane = 1}}}};
  CHECK(rails_of(named, {"eth1:2", "eth0", "eth2"}, {"", "", ""}) ==
        std::vector<RailPlane>{{.rail = 4, .plane = 1}, {.rail = 3}, {}});
}

TEST_CASE("this machine has a loopback interface that is up") {
  bool found = false;
  for (const Interface& i : interfaces()) found = found || (i.address.ipv4() >> 24 == 127 && i.up);
  CHECK(found);
}

TEST_CASE("GPU memory can be registered by address when one of NCCL's modules is loaded") {
  for (const char* module : {"module/nvidia_peermem", "kernel/mm/memory_peers/nv_mem"}) {
    const Sys sys;
    CHECK_FALSE(peer_memory(sys.root()));
    fs::create_directories(sys.root() / module);
    std::ofstream(sys.root() / module / "version") << "1.0\n";
    CHECK(peer_memory(sys.root()));
  }
}

}  // namespace
}  // namespace paralet::plugin
