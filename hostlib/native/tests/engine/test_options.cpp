// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "engine/options.hpp"

namespace paralet {
namespace {

const Option& option(const std::string& name) {
  const auto found = std::ranges::find(options(), name, [](const Option& o) { return std::string(o.name); });
  REQUIRE(found != options().end());
  return *found;
}

bool allowed(const std::string& name, const OptionValue& value) {
  DeviceOptions scratch;
  try {
    set_option(scratch, option(name), value);
    return true;
  } catch (const OptionNotAllowed&) {
    return false;
  }
}

std::string refusal(const DeviceOptions& options) {
  try {
    check_combination(options, [](std::string_view name) { return std::string(name); });
    return "";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

TEST_CASE("every option has a name, a variable and a meaning of its own") {
  std::set<std::string> names;
  std::set<std::string> variables;
  for (const Option& o : options()) {
    CHECK(names.insert(o.name).second);
    if (o.variable != nullptr) CHECK(variables.insert(o.variable).second);
    CHECK(std::string(o.meaning).ends_with('.'));
    CHECK_FALSE(allowed_values(o).empty());
  }
}

TEST_CASE("the default of every option is its own domain's, and setting it changes nothing") {
  for (const Option& o : options()) {
    CAPTURE(std::string(o.name));
    const OptionValue standard = o.get(DeviceOptions{});
    CHECK(std::holds_alternative<std::monostate>(standard) == (o.automatic != nullptr));
    if (o.automatic != nullptr) continue;
    DeviceOptions set;
    set_option(set, o, standard);
    CHECK(o.get(set) == standard);
  }
}

TEST_CASE("a value that is set is the value that is read") {
  const auto kept = [](const std::string& name, const OptionValue& value) {
    DeviceOptions set;
    set_option(set, option(name), value);
    return option(name).get(set) == value;
  };
  CHECK(kept("lanes", std::uint64_t{16}));
  CHECK(kept("traffic_class", std::uint64_t{255}));
  CHECK(kept("seed", std::uint64_t{UINT64_MAX}));
  CHECK(kept("flowlet_bytes", std::uint64_t{65536}));
  CHECK(kept("line_rate_bps", 25e9));
  CHECK(kept("retry_time_s", 2.5));
  CHECK(kept("base_rtt_s", 20e-6));
  CHECK(kept("policy", std::string("adaptive")));
  CHECK(kept("ports", SourcePorts{{0x0A000001, {50000}}}));
  CHECK(kept("segments", LaneSegments{{0x0A000001, {{0x0A000002}}}}));
  CHECK(kept("reconnect_s", std::pair(0.5, 2.0)));
  CHECK(kept("faults.drop", 0.25));
}

TEST_CASE("bounds are part of the domain; neither NaN nor infinity is") {
  CHECK(allowed("lanes", std::uint64_t{1}));
  CHECK(allowed("lanes", std::uint64_t{1024}));
  CHECK_FALSE(allowed("lanes", std::uint64_t{0}));
  CHECK_FALSE(allowed("lanes", std::uint64_t{1025}));
  CHECK(allowed("path_mtu", std::uint64_t{2048}));
  CHECK_FALSE(allowed("path_mtu", std::uint64_t{1500}));
  CHECK(allowed("retry_time_s", 0.0));
  CHECK(allowed("retry_time_s", 1e6));
  CHECK_FALSE(allowed("retry_time_s", 1e6 + 1));
  CHECK_FALSE(allowed("retry_time_s", HUGE_VAL));
  CHECK_FALSE(allowed("retry_time_s", std::nan("")));
  CHECK_FALSE(allowed("policy", std::string("best")));
  CHECK_FALSE(allowed("job", std::string("two words")));
  CHECK_FALSE(allowed("reconnect_s", std::pair(2.0, 1.0)));
  CHECK_FALSE(allowed("reconnect_s", std::pair(0.0, 1.0)));
}

TEST_CASE("what is allowed, in words") {
  CHECK(allowed_values(option("lanes")) == "1 to 1024");
  CHECK(allowed_values(option("seed")) == "0 to 18446744073709551615");
  CHECK(allowed_values(option("path_mtu")) == "256, 512, 1024, 2048 or 4096");
  CHECK(allowed_values(option("backend")) == "soft, tcp or verbs");
  CHECK(allowed_values(option("line_rate_bps")) == "1 to 1e15");
  CHECK(allowed_values(option("revert_loss")) == "1e-6 to 1000000");
  CHECK(allowed_values(option("reconnect_s")) == "two numbers in ascending order, each 0.001 to 1000000");
}

TEST_CASE("source ports: what is wrong") {
  const auto wrong = [](const std::string& peer, const std::vector<std::string>& ports) {
    SourcePorts table;
    try {
      add_source_ports(table, peer, ports);
      return std::string();
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
  };
  CHECK(wrong("10.0.0.1", {"49152", "65535"}).empty());
  CHECK(wrong("h1", {"50000"}) == "'h1' is not an IP address such as 10.0.0.1 or fd00::1");
  CHECK(wrong("10.0.0.1", {}) == "the list of source ports for peer 10.0.0.1 is empty");
  for (const char* port : {"49151", "65536", "-1", "x", "50000.0", ""}) {
    CHECK(wrong("10.0.0.1", {port}) ==
          "source port " + std::string(port) + " for peer 10.0.0.1 is outside 49152..65535");
  }
}

TEST_CASE("options that belong together") {
  DeviceOptions o;
  CHECK(refusal(o).empty());
  o.policy.kind = PolicyKind::kPinned;
  CHECK(refusal(o) == "policy='pinned' needs ports, the UDP source ports for each peer address");
  o.policy.ports = {{1, {50000}}};
  CHECK(refusal(o).empty());
  o.policy.kind = PolicyKind::kEcmp;
  CHECK(refusal(o) == "ports is only for policy='pinned', not for 'ecmp'");

  o = {};
  o.policy.kind = PolicyKind::kController;
  CHECK(refusal(o) ==
        "policy='controller' needs path_service, where the path service listens, and token_file or token");
  o.policy.path_client.service = "h:1";
  o.policy.path_client.token = "t";
  CHECK(refusal(o).empty());
  o.policy.kind = PolicyKind::kAdaptive;
  CHECK(refusal(o) == "path_service is only for policy='controller', not for 'adaptive'");
  o.policy.path_client.service.clear();
  CHECK(refusal(o) == "token_file or token is only for policy='controller', not for 'adaptive'");

  o = {};
  o.shards = 2;
  CHECK(refusal(o).empty());
  o.backend = BackendKind::kVerbs;
  CHECK(refusal(o) == "shards is only for backend='soft' and 'tcp': an RDMA NIC moves packets itself");
  o.backend = BackendKind::kTcp;
  o.policy.kind = PolicyKind::kController;
  o.policy.path_client.service = "h:1";
  o.policy.path_client.token = "t";
  CHECK(refusal(o) == "shards must be 1 with policy='controller': the path service plans for one destination port");

  o = {};
  o.rdma.service_level = 1;
  CHECK(refusal(o) == "gid_index and service_level are only for backend='verbs'");
  o.backend = BackendKind::kVerbs;
  CHECK(refusal(o).empty());
  o.faults.drop = 0.1;
  CHECK(refusal(o) == "faults is only for backend='soft': the packets of an RDMA NIC do not pass through this library");
}

}  // namespace
}  // namespace paralet
