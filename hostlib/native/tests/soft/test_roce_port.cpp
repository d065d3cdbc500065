// SPDX-License-Identifier: Apache-2.0
// Where a NIC takes RoCE packets in hardware, on trees like /sys/class/infiniband.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/device_fixture.hpp"
#include "soft/roce_port.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

namespace fs = std::filesystem;
using namespace test;  // NOLINT(google-build-using-namespace): the fixture

class RdmaDevices {
 public:
  RdmaDevices() : root_(fs::temp_directory_path() / ("paralet-rdma-" + std::to_string(::getpid()))) {
    fs::create_directories(root_);
  }
  RdmaDevices(const RdmaDevices&) = delete;
  RdmaDevices& operator=(const RdmaDevices&) = delete;
  ~RdmaDevices() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void add_gid(const std::string& device, const std::string& index, const std::string& gid,
               const std::string& type) const {
    const fs::path port = root_ / device / "ports" / "1";
    fs::create_directories(port / "gids");
    fs::create_directories(port / "gid_attrs" / "types");
    std::ofstream(port / "gids" / index) << gid << "\n";
    std::ofstream(port / "gid_attrs" / "types" / index) << type << "\n";
  }
  void make_software(const std::string& device) const { std::ofstream(root_ / device / "parent") << "eth0\n"; }
  [[nodiscard]] const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

constexpr const char* kGidOfA = "0000:0000:0000:0000:0000:ffff:7f00:0001";

TEST_CASE("a NIC with a RoCEv2 GID for the address takes port 4791, a software device and other GIDs do not") {
  const RdmaDevices devices;
  CHECK_FALSE(roce_device(kA, devices.root()));
  CHECK_FALSE(roce_device(kA, devices.root() / "absent"));
  devices.add_gid("mlx5_0", "0", "fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2");
  devices.add_gid("mlx5_0", "2", kGidOfA, "IB/RoCE v1");
  devices.add_gid("mlx5_0", "4", "0000:0000:0000:0000:0000:ffff:7f00:0002", "RoCE v2");
  devices.add_gid("rxe0", "1", kGidOfA, "RoCE v2");
  devices.make_software("rxe0");
  CHECK_FALSE(roce_device(kA, devices.root()));
  CHECK(roce_device(kB, devices.root()) == "mlx5_0");
  devices.add_gid("mlx5_1", "3", kGidOfA, "RoCE v2");
  CHECK(roce_device(kA, devices.root()) == "mlx5_1");
  CHECK_FALSE(roce_device(*parse_address("2001:db8::a1"), devices.root()));
  devices.add_gid("mlx5_2", "5", "2001:0db8:0000:0000:0000:0000:0000:00a1", "RoCE v2");
  CHECK(roce_device(*parse_address("2001:db8::a1"), devices.root()) == "mlx5_2");
}

TEST_CASE("where a NIC takes port 4791 the device receives on another one, says so, and its messages arrive") {
  const RdmaDevices devices;
  devices.add_gid("mlx5_0", "3", kGidOfA, "RoCE v2");
  std::string said;
  SoftOptions soft;
  soft.address = kA;
  soft.rdma_devices = devices.root();
  soft.log = [&said](const std::string& sentence) { said += sentence; };
  Device a(options(kA), std::make_unique<SoftBackend>(soft));
  CHECK(a.udp_port() != 4791);
  CHECK(said.find("mlx5_0 receives what comes to UDP port 4791 of 127.0.0.1") != std::string::npos);
  Device b(options(kB));
  const Joined joined(a, b);
  joined.check(300'000);
}

}  // namespace
}  // namespace paralet
