// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "settings/backend_choice.hpp"
#include "settings/error.hpp"
#include "settings/parameters.hpp"
#include "settings/read.hpp"

namespace paralet::settings {
namespace {

constexpr std::array kAddresses{IpAddress(0x0A000001), IpAddress(0x0A000002)};

VerbsPort roce_port(const IpAddress& address, bool active) {
  return {.device = "mlx5_1", .port = 1, .active = active, .path_mtu = 4096, .address = address};
}

TEST_CASE("an active RoCE port of one of the interfaces means verbs") {
  const std::vector ports{roce_port(0x0A000003, true), roce_port(0x0A000002, true)};
  const BackendChoice choice = choose_backend(kAddresses, ports);
  CHECK(choice.backend == BackendKind::kVerbs);
  CHECK(choice.why == "PARALET_BACKEND=auto takes verbs: mlx5_1 has an active RoCE port with the address 10.0.0.2");
}

TEST_CASE("without an active RoCE port of an interface the choice is tcp") {
  for (const std::vector<VerbsPort>& ports :
       {std::vector<VerbsPort>{}, {roce_port(0x0A000003, true)}, {roce_port(0x0A000001, false)}}) {
    const BackendChoice choice = choose_backend(kAddresses, ports);
    CHECK(choice.backend == BackendKind::kTcp);
    CHECK(choice.why.starts_with("PARALET_BACKEND=auto takes tcp: no interface has an active RoCE port, "));
  }
}

TEST_CASE("the kernel's SoftRoCE is no NIC: TCP is faster") {
  const auto sysfs = std::filesystem::temp_directory_path() / ("paralet-sysfs-" + std::to_string(::getpid()));
  std::filesystem::create_directories(sysfs / "class/infiniband/rxe0");
  std::ofstream(sysfs / "class/infiniband/rxe0/parent") << "eth0\n";
  VerbsPort soft_roce = roce_port(kAddresses[0], true);
  soft_roce.device = "rxe0";
  const std::vector<VerbsPort> left = of_nics({soft_roce, roce_port(kAddresses[1], true)}, sysfs);
  std::filesystem::remove_all(sysfs);
  REQUIRE(left.size() == 1);
  CHECK(left[0].device == "mlx5_1");
}

TEST_CASE("auto is the default of PARALET_BACKEND, and a name takes its place") {
  CHECK(find_parameter("PARALET_BACKEND")->standard == "auto");
  CHECK(read({}).automatic_backend);
  CHECK(read({{"PARALET_BACKEND", "auto"}}).automatic_backend);
  const Settings named = read({{"PARALET_BACKEND", "soft"}});
  CHECK(!named.automatic_backend);
  CHECK(named.device.backend == BackendKind::kSoft);
}

TEST_CASE("a parameter of one back end is allowed while that back end may still be chosen") {
  const auto refusal = [](const char* name, const char* value) -> std::string {
    try {
      check(read({{name, value}}));
      return "";
    } catch (const SettingsError& error) {
      return error.what();
    }
  };
  CHECK(refusal("PARALET_TCP_CONGESTION", "reno").empty());
  CHECK(refusal("PARALET_SHARDS", "2").empty());
  CHECK(refusal("PARALET_GID_INDEX", "3").empty());
  CHECK(refusal("PARALET_CONGESTION_CONTROL", "fixed_window") ==
        "PARALET_CONGESTION_CONTROL is only for PARALET_BACKEND='soft': that of TCP is the kernel's, which "
        "PARALET_TCP_CONGESTION names");
  CHECK(refusal("PARALET_FAULTS", "drop=0.1") ==
        "PARALET_FAULTS of packets are only for PARALET_BACKEND='soft': TCP repairs them");
}

}  // namespace
}  // namespace paralet::settings
