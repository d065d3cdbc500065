// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "settings/backend_choice.hpp"
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

TEST_CASE("auto is a value of PARALET_BACKEND, and a name is one too") {
  CHECK(read({{"PARALET_BACKEND", "auto"}}).automatic_backend);
  const Settings named = read({{"PARALET_BACKEND", "tcp"}});
  CHECK(!named.automatic_backend);
  CHECK(named.device.backend == BackendKind::kTcp);
}

}  // namespace
}  // namespace paralet::settings
