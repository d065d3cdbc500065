// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "config.hpp"
#include "nccl_variables.hpp"
#include "plugin_error.hpp"
#include "settings/parameters.hpp"

namespace paralet::plugin {
namespace {

/// The sentence with which the settings are refused, "" when they are accepted.
std::string refusal(const Environment& environment) {
  try {
    load_settings(environment);
    return "";
  } catch (const PluginError& error) {
    CHECK(error.result == ncclInvalidUsage);
    return error.what();
  }
}

TEST_CASE("PARALET_BACKEND=auto, the default, becomes a back end, and one sentence says why") {
  for (const char* value : {"", "auto"}) {
    const Settings chosen = load_settings({{"PARALET_BACKEND", value}, {"PARALET_IFNAME", "=lo"}});
    CHECK(chosen.device.backend == BackendKind::kTcp);  // loopback has no RoCE port, on any machine
    CHECK(chosen.backend_choice.starts_with("PARALET_BACKEND=auto takes tcp: "));
  }
  CHECK(load_settings({{"PARALET_BACKEND", "tcp"}}).backend_choice.empty());
}

TEST_CASE("a mistake in a parameter is NCCL's error of wrong usage") {
  CHECK(refusal({{"PARALET_LANES", "0"}}) == "PARALET_LANES='0' is not allowed: it must be 1 to 1024");
  CHECK(refusal({{"PARALET_POLICY", "pinned"}}).find("needs PARALET_PORTS") != std::string::npos);
}

TEST_CASE(
    "NCCL's variables are honoured where they mean the same, and named in one warning where they have no effect") {
  const Settings soft = load_settings(
      {{"PARALET_BACKEND", "soft"}, {"NCCL_IB_TC", "104"}, {"NCCL_IB_SL", "3"}, {"NCCL_IB_GID_INDEX", "-1"}});
  CHECK(soft.device.traffic_class == 104);
  CHECK(soft.device.rdma.service_level == 0);
  REQUIRE(soft.advice.size() == 1);
  CHECK(soft.advice[0] ==
        "these variables of NCCL have no effect on this plugin: NCCL_IB_SL (here PARALET_SERVICE_LEVEL)");
  const Settings verbs = load_settings({{"PARALET_BACKEND", "verbs"},
                                        {"PARALET_TRAFFIC_CLASS", "8"},
                                        {"NCCL_IB_TC", "104"},
                                        {"NCCL_IB_SL", "3"},
                                        {"NCCL_IB_GID_INDEX", "5"},
                                        {"NCCL_IB_PKEY", "2"},
                                        {"NCCL_IB_HCA", "mlx5_0"},
                                        {"NCCL_IB_TIMEOUT", "22"}});
  CHECK(verbs.device.traffic_class == 8);  // the plugin's own variable comes first
  CHECK(verbs.device.rdma.service_level == 3);
  CHECK(verbs.device.rdma.gid_index == 5U);
  CHECK(verbs.device.rdma.pkey_index == 2);
  REQUIRE(verbs.advice.size() == 1);
  CHECK(verbs.advice[0].find("NCCL_IB_HCA (here PARALET_IFNAME), NCCL_IB_TIMEOUT (here PARALET_RETRY_TIME)") !=
        std::string::npos);
  const Settings several = load_settings({{"NCCL_IB_ADDR_RANGE", "10.0.0.0/8"},
                                          {"NCCL_IB_AR_THRESHOLD", "8192"},
                                          {"NCCL_IB_ROCE_VERSION_NUM", "1"},
                                          {"NCCL_SOCKET_NTHREADS", "4"},
                                          {"NCCL_BUFFSIZE", "8388608"}});
  CHECK(several.advice ==
        std::vector<std::string>{"these variables of NCCL have no effect on this plugin: NCCL_IB_ADDR_RANGE (here "
                                 "PARALET_ADDRESSES), NCCL_IB_AR_THRESHOLD, NCCL_IB_ROCE_VERSION_NUM, "
                                 "NCCL_SOCKET_NTHREADS (here PARALET_LANES)"});
  CHECK(load_settings({{"NCCL_IB_DISABLE", "1"}, {"NCCL_IB_TC", ""}}).advice.empty());
  CHECK(refusal({{"NCCL_IB_TC", "much"}}).find("NCCL_IB_TC, taken as PARALET_TRAFFIC_CLASS='much' is not allowed") ==
        0);
}

TEST_CASE("the table of NCCL's variables is in order, and names parameters that exist") {
  std::string last;
  for (const NcclVariable& variable : nccl_variables()) {
    CAPTURE(variable.name);
    CHECK(last < variable.name);
    last = variable.name;
    const bool taken = variable.effect == NcclEffect::kTaken || variable.effect == NcclEffect::kTakenByVerbs;
    const bool parameter = settings::find_parameter(variable.here) != nullptr;
    CHECK((parameter || (!taken && (variable.here.empty() || variable.here.starts_with("NCCL_")))));
  }
}

TEST_CASE("NCCL_SOCKET_IFNAME applies when no parameter selects interfaces") {
  const auto admits = [](const Environment& environment, const char* name) {
    const Settings settings = load_settings(environment);
    return settings.selection.names && settings.selection.names->admits(name);
  };
  CHECK(admits({{"NCCL_SOCKET_IFNAME", "eth"}}, "eth0"));
  CHECK_FALSE(admits({{"NCCL_SOCKET_IFNAME", "eth"}, {"PARALET_IFNAME", "ib"}}, "eth0"));
  CHECK(admits({{"NCCL_SOCKET_IFNAME", "eth"}, {"PARALET_IFNAME", ""}}, "eth0"));
  CHECK_FALSE(
      load_settings({{"NCCL_SOCKET_IFNAME", "eth"}, {"PARALET_ADDRESSES", "127.0.0.1"}}).selection.names.has_value());
}

TEST_CASE("NCCL_SOCKET_FAMILY chooses the family of interfaces' addresses") {
  const Settings ipv6 = load_settings({{"NCCL_SOCKET_FAMILY", "AF_INET6"}});
  CHECK(ipv6.selection.ipv4 == false);
  CHECK(ipv6.selected_by == "default, NCCL_SOCKET_FAMILY=AF_INET6");
  CHECK(load_settings({{"NCCL_SOCKET_FAMILY", "AF_INET"}}).selection.ipv4 == true);
  CHECK_FALSE(load_settings({{"NCCL_SOCKET_FAMILY", ""}}).selection.ipv4.has_value());
  CHECK_FALSE(load_settings({{"NCCL_SOCKET_FAMILY", "AF_INET6"}, {"PARALET_ADDRESSES", "127.0.0.1"}})
                  .selection.ipv4.has_value());
  const Settings wrong = load_settings({{"NCCL_SOCKET_FAMILY", "IPv6"}});
  CHECK_FALSE(wrong.selection.ipv4.has_value());
  CHECK(wrong.advice ==
        std::vector<std::string>{"NCCL_SOCKET_FAMILY=IPv6 has no effect: it must be AF_INET or AF_INET6"});
}

}  // namespace
}  // namespace paralet::plugin
