// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "settings/error.hpp"
#include "settings/parameters.hpp"
#include "settings/read.hpp"

namespace paralet::settings {
namespace {

namespace fs = std::filesystem;

Settings checked(const Environment& environment) {
  Settings out = read(environment);
  check(out);
  return out;
}

/// The sentence with which the settings are refused, "" when they are accepted.
std::string refusal(const Environment& environment) {
  try {
    static_cast<void>(checked(environment));
    return "";
  } catch (const SettingsError& error) {
    return error.what();
  }
}

std::string refusal(const std::string& name, const std::string& value) { return refusal({{name, value}}); }

/// A temporary file.
class File {
 public:
  explicit File(const std::string& text) : path_("/tmp/paralet-settings-" + std::to_string(::getpid())) {
    std::ofstream(path_) << text;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { static_cast<void>(std::remove(path_.c_str())); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST_CASE("without settings the defaults are the engine's: eight lanes, random ports") {
  const Settings settings = checked({{"HOME", "/root"}, {"NCCL_DEBUG", "INFO"}});
  CHECK(settings.device.policy.lanes == 8);
  CHECK(settings.device.policy.kind == PolicyKind::kEcmp);
  CHECK_FALSE(settings.device.policy.seed.has_value());
  CHECK_FALSE(settings.device.path_mtu.has_value());
  CHECK(settings.device.line_rate_bps == 0);
  CHECK(settings.device.retry_time == 10 * kSecond);
  CHECK(settings.automatic_backend);
  CHECK_FALSE(settings.selection.names.has_value());
  CHECK(settings.advice.empty());
}

TEST_CASE("rails and planes") {
  const auto rails = [](const char* text) { return checked({{"PARALET_RAILS", text}}).rails; };
  CHECK(checked({}).rails.by_position);
  CHECK(rails("order").by_position);
  CHECK_FALSE(rails("none").by_position);
  const Rails named = rails("eth0=0, eth1 = 1:7");
  CHECK_FALSE(named.by_position);
  CHECK(named.named == std::map<std::string, RailPlane>{{"eth0", {.rail = 0}}, {"eth1", {.rail = 1, .plane = 7}}});
  for (const char* wrong : {"best", "eth0", "eth0=-1", "eth0=1:", "=1", "eth0=32768", ","}) {
    CAPTURE(wrong);
    CHECK(refusal("PARALET_RAILS", wrong).find("it must be order, none, or NAME=RAIL") != std::string::npos);
  }
  CHECK(refusal("PARALET_RAILS", "eth0=1,eth0=2").find("the interface eth0 is named twice") != std::string::npos);
}

TEST_CASE("every parameter reaches the engine") {
  const Settings settings = checked({{"PARALET_ADDRESSES", "127.0.0.1, 127.0.0.2"},
                                     {"PARALET_BACKEND", "soft"},
                                     {"PARALET_LANES", "16"},
                                     {"PARALET_POLICY", "adaptive"},
                                     {"PARALET_SEED", "42"},
                                     {"PARALET_PATH_MTU", "1024"},
                                     {"PARALET_LINE_RATE", "25 Gbit/s"},
                                     {"PARALET_BASE_RTT", "20us"},
                                     {"PARALET_FLOWLET_BYTES", "64KiB"},
                                     {"PARALET_MICE_BYTES", "0"},
                                     {"PARALET_TARGET_QUEUE", "1.5ms"},
                                     {"PARALET_MIN_TIMEOUT", "5 ms"},
                                     {"PARALET_RETRY_TIME", "3s"},
                                     {"PARALET_IDLE_PEER", "0"},
                                     {"PARALET_BUSY_POLL", "50us"},
                                     {"PARALET_FAULTS", "drop=0.1, corrupt=0.01,reorder_packets=3,seed=7"}});
  const DeviceOptions& device = settings.device;
  CHECK(settings.selection.addresses == std::vector<IpAddress>{0x7F000001, 0x7F000002});
  CHECK(device.policy.lanes == 16);
  CHECK(device.policy.kind == PolicyKind::kAdaptive);
  CHECK(device.policy.seed == 42);
  CHECK(device.path_mtu == 1024);
  CHECK(device.line_rate_bps == doctest::Approx(25e9));
  CHECK(device.base_rtt == 20 * kMicrosecond);
  CHECK(device.flowlet_bytes == 65536);
  CHECK(device.mice_bytes == 0);
  CHECK(device.target_queue == 1500 * kMicrosecond);
  CHECK(device.min_timeout == 5 * kMillisecond);
  CHECK(device.retry_time == 3 * kSecond);
  CHECK(device.idle_peer == 0);
  CHECK(device.busy_poll == 50 * kMicrosecond);
  CHECK(device.faults.drop == doctest::Approx(0.1));
  CHECK(device.faults.corrupt == doctest::Approx(0.01));
  CHECK(device.faults.reorder_packets == 3);
  CHECK(device.faults.seed == 7);
}

TEST_CASE("a wrong value is refused with the parameter, the value and what is allowed") {
  for (const Parameter& parameter : parameters()) {
    const std::string_view name = parameter.name;
    if (name == "PARALET_CONFIG") continue;  // below
    // Files that the path client reads at each connection, so that these may be renewed: test_path_client_tls.py.
    if (name == "PARALET_PATH_SERVICE_CA" || name == "PARALET_PATH_SERVICE_CERTIFICATE" ||
        name == "PARALET_PATH_SERVICE_KEY")
      continue;
    CAPTURE(std::string(parameter.name));
    const std::string wrong = parameter.name == std::string("PARALET_JOB") ? "two words" : ",";
    const std::string sentence = refusal(parameter.name, wrong);
    CAPTURE(sentence);
    CHECK(sentence.find(parameter.name + ("='" + wrong + "' is not allowed: ")) == 0);
    CHECK(sentence.find('\n') == std::string::npos);
  }
  CHECK(refusal("PARALET_LANES", "0") == "PARALET_LANES='0' is not allowed: it must be 1 to 1024");
}

TEST_CASE("bounds and syntax of values") {
  struct Case {
    const char* name;
    const char* value;
    bool allowed;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"PARALET_LANES", "1", true},
           {"PARALET_LANES", "1024", true},
           {"PARALET_LANES", "1025", false},
           {"PARALET_LANES", "-1", false},
           {"PARALET_LANES", "8x", false},
           {"PARALET_LANES", "8.5", false},
           {"PARALET_LANES", "99999999999999999999", false},
           {"PARALET_PATH_MTU", "4096", true},
           {"PARALET_PATH_MTU", "1500", false},
           {"PARALET_PATH_MTU", "128", false},
           {"PARALET_PATH_MTU", "8192", false},
           {"PARALET_SEED", "18446744073709551615", true},
           {"PARALET_SEED", "18446744073709551616", false},
           {"PARALET_LINE_RATE", "1e15", true},
           {"PARALET_LINE_RATE", "100 GB/s", false},
           {"PARALET_LINE_RATE", "0", false},
           {"PARALET_LINE_RATE", "nan", false},
           {"PARALET_LINE_RATE", "inf Gbit/s", false},
           {"PARALET_FLOWLET_BYTES", "2GiB", true},
           {"PARALET_FLOWLET_BYTES", "2147483649", false},
           {"PARALET_FLOWLET_BYTES", "0", false},
           {"PARALET_FLOWLET_BYTES", "1.5", false},
           {"PARALET_FLOWLET_BYTES", "1.5KiB", true},
           {"PARALET_MICE_BYTES", "64kb", false},
           {"PARALET_RETRY_TIME", "10", false},
           {"PARALET_RETRY_TIME", "-1s", false},
           {"PARALET_RETRY_TIME", "1000000s", true},
           {"PARALET_RETRY_TIME", "1000001s", false},
           {"PARALET_POLICY", "random", false},
           {"PARALET_BACKEND", "verbs", true},
           {"PARALET_BACKEND", "hard", false},
           {"PARALET_GID_INDEX", "1", true},  // `auto` may take verbs
           {"PARALET_GID_INDEX", "256", false},
           {"PARALET_ADDRESSES", "127.0.0.1,127.0.0.1", false},
           {"PARALET_ADDRESSES", "localhost", false},
           {"PARALET_FAULTS", "drop=1.1", false},
           {"PARALET_FAULTS", "drop", false},
           {"PARALET_FAULTS", "rise=1", false},
           {"PARALET_FAULTS", "seed=-1", false},
           {"PARALET_IFNAME", "^=eth0,eth1", true},
       }) {
    CAPTURE(c.name);
    CAPTURE(c.value);
    CHECK(refusal(c.name, c.value).empty() == c.allowed);
  }
}

TEST_CASE("ports: inline and from a file") {
  const Settings inlined =
      checked({{"PARALET_POLICY", "pinned"}, {"PARALET_PORTS", "10.0.0.2=50000,50001; 10.0.0.3 = 65535"}});
  const auto& ports = inlined.device.policy.ports;
  CHECK(ports.size() == 2);
  CHECK(ports.at(0x0A000002) == std::vector<std::uint16_t>{50000, 50001});
  CHECK(ports.at(0x0A000003) == std::vector<std::uint16_t>{65535});

  const File file("# our paths\n\n10.0.0.2 = 50000, 50001  # two lanes\n10.0.0.3=49152\n");
  const Settings read = checked({{"PARALET_POLICY", "pinned"}, {"PARALET_PORTS", file.path()}});
  CHECK(read.device.policy.ports.at(0x0A000002) == std::vector<std::uint16_t>{50000, 50001});
  CHECK(read.device.policy.ports.at(0x0A000003) == std::vector<std::uint16_t>{49152});
}

TEST_CASE("ports: errors name the entry and the line") {
  const auto inlined = [](const std::string& text) {
    return refusal({{"PARALET_POLICY", "pinned"}, {"PARALET_PORTS", text}});
  };
  CHECK(inlined("10.0.0.2=80").find("source port 80 for peer 10.0.0.2 is outside 49152..65535") != std::string::npos);
  CHECK(inlined("10.0.0.2=").find("the list of source ports for peer 10.0.0.2 is empty") != std::string::npos);
  CHECK(inlined("10.0.0.2=50000;10.0.0.2=50001").find("10.0.0.2 has two lists") != std::string::npos);
  CHECK(inlined("h2=50000").find("'h2' is not an IP address") != std::string::npos);
  CHECK(inlined("50000").find("'50000' is not ADDRESS=PORT") != std::string::npos);
  CHECK(inlined("/dev/null/file").find("the file /dev/null/file cannot be read") != std::string::npos);
  const File file("10.0.0.2=50000\n10.0.0.3=1\n");
  CHECK(inlined(file.path()).find(file.path() + ":2: source port 1 for peer") != std::string::npos);
}

TEST_CASE("interfaces and addresses exclude each other") {
  CHECK(refusal({{"PARALET_IFNAME", "eth"}, {"PARALET_ADDRESSES", "127.0.0.1"}}).find("exclude each other") !=
        std::string::npos);
}

TEST_CASE("what is set is known by parameter and, as a value, by option") {
  const Settings settings = checked(
      {{"PARALET_BACKEND", "auto"}, {"PARALET_LANES", "2"}, {"PARALET_FAULTS", "dead=0.1"}, {"PARALET_SEED", ""}});
  CHECK(settings.given == std::set<std::string>{"PARALET_BACKEND", "PARALET_FAULTS", "PARALET_LANES"});
  CHECK(settings.options == std::map<std::string, OptionValue>{{"faults.dead", 0.1}, {"lanes", std::uint64_t{2}}});
}

TEST_CASE("ports and policy are checked against each other") {
  CHECK(refusal("PARALET_POLICY", "pinned").find("needs PARALET_PORTS") != std::string::npos);
  CHECK(refusal("PARALET_PORTS", "10.0.0.2=50000").find("is only for PARALET_POLICY='pinned'") != std::string::npos);
}

TEST_CASE("controller: all parameters") {
  const File token("secret\n");
  fs::permissions(token.path(), fs::perms::owner_read | fs::perms::owner_write);
  const Settings settings = checked({{"PARALET_POLICY", "controller"},
                                     {"PARALET_PATH_SERVICE", "127.0.0.1:4792"},
                                     {"PARALET_PATH_SERVICE_TOKEN_FILE", token.path()},
                                     {"PARALET_JOB", "bert"},
                                     {"PARALET_ELEPHANT_BYTES", "4MiB"},
                                     {"PARALET_ASSIGN_WAIT", "2ms"},
                                     {"PARALET_REVERT_RTT", "3"},
                                     {"PARALET_REVERT_LOSS", "0.5"}});
  CHECK(settings.device.policy.kind == PolicyKind::kController);
  const path_client::Options& options = settings.device.policy.path_client;
  CHECK(options.service == "127.0.0.1:4792");
  CHECK(options.token == "secret");
  CHECK(options.job == "bert");
  CHECK(options.elephant_bytes == 4 << 20);
  CHECK(options.assign_wait == 2 * kMillisecond);
  CHECK(options.thresholds.rtt_ratio == 3);
  CHECK(options.thresholds.loss == 0.5);
}

TEST_CASE("controller: errors") {
  const auto holds = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(holds(refusal("PARALET_POLICY", "controller"), "needs PARALET_PATH_SERVICE"));
  CHECK(holds(refusal("PARALET_PATH_SERVICE", "127.0.0.1:4792"),
              "PARALET_PATH_SERVICE is only for PARALET_POLICY='controller', not for 'ecmp'"));
  CHECK(holds(refusal("PARALET_PATH_SERVICE", "127.0.0.1"), "write HOST:PORT"));
  CHECK(holds(refusal("PARALET_PATH_SERVICE_TOKEN_FILE", "/dev/null/file"), "/dev/null/file cannot be read"));
  const File open("secret\n");
  fs::permissions(open.path(), fs::perms::others_read, fs::perm_options::add);
  CHECK(holds(refusal("PARALET_PATH_SERVICE_TOKEN_FILE", open.path()), "chmod 600"));
  CHECK(holds(refusal("PARALET_JOB", "two words"), "it must be 1 to 64 printable ASCII characters"));
}

TEST_CASE("the environment overrides the configuration file") {
  const File file("# a site's file\n PARALET_LANES = 4\n\nPARALET_POLICY=adaptive # moves\n");
  const Settings settings = checked({{"PARALET_CONFIG", file.path()}, {"PARALET_LANES", "2"}});
  CHECK(settings.device.policy.lanes == 2);
  CHECK(settings.device.policy.kind == PolicyKind::kAdaptive);
  CHECK(settings.config_file == file.path());
}

TEST_CASE("the configuration file: errors name the line") {
  const auto wrong = [](const std::string& text) {
    const File file(text);
    return refusal("PARALET_CONFIG", file.path());
  };
  CHECK(wrong("\nPARALET_LANES=0\n").find(":2: PARALET_LANES='0' is not allowed: it must be 1 to 1024") !=
        std::string::npos);
  CHECK(wrong("PARALET_LANES\n").find(":1: 'PARALET_LANES' is not NAME=value") != std::string::npos);
  CHECK(wrong("LANES=1\n").find(":1: LANES is not a parameter") != std::string::npos);
  CHECK(wrong("PARALET_LANES=1\nPARALET_LANES=2\n").find(":2: PARALET_LANES is set twice") != std::string::npos);
  CHECK(wrong("PARALET_CONFIG=x\n").find(":1: PARALET_CONFIG is not a parameter") != std::string::npos);
  CHECK(refusal("PARALET_CONFIG", "/dev/null/file").find("the file /dev/null/file cannot be read") !=
        std::string::npos);
  CHECK(refusal("PARALET_CONFIG", "/tmp").find("the file /tmp cannot be read") != std::string::npos);
  CHECK(wrong(std::string(2 << 20, '#')).find("longer than 1 MiB") != std::string::npos);
}

TEST_CASE("a misspelled parameter gives advice; names of other programs do not") {
  const Settings misspelled = checked({{"PARALET_LANE", "4"}, {"PARALET_SANDBOX", "1"}, {"PARALET_RUN_TEST", "1"}});
  REQUIRE(misspelled.advice.size() == 1);
  CHECK(misspelled.advice[0] == "PARALET_LANE is not a parameter and is ignored: did you mean PARALET_LANES?");
}

TEST_CASE("a parameter's former name is refused") {
  const std::string said = "PARALET_CONTROLLER is now named PARALET_PATH_SERVICE: set that instead";
  CHECK(refusal("PARALET_CONTROLLER", "127.0.0.1:4792") == said);
  CHECK(refusal("PARALET_CONTROLLER_TOKEN_FILE", "/token").find("PARALET_PATH_SERVICE_TOKEN_FILE") !=
        std::string::npos);
  CHECK_NOTHROW(static_cast<void>(checked({{"PARALET_CONTROLLER", ""}})));
  const File file("PARALET_LANES=1\nPARALET_CONTROLLER=127.0.0.1:4792\n");
  CHECK(refusal("PARALET_CONFIG", file.path()).ends_with(":2: " + said));
}

TEST_CASE("the table has unique names and no empty cell") {
  std::set<std::string> names;
  for (const Parameter& parameter : parameters()) {
    CHECK(names.insert(parameter.name).second);
    CHECK(std::string(parameter.name).starts_with("PARALET_"));
    for (const auto& cell : {parameter.values, parameter.standard, parameter.meaning}) CHECK_FALSE(cell.empty());
  }
}

TEST_CASE("the environment of this process is read") {
  REQUIRE(::setenv("PARALET_TEST_VARIABLE", "a=b", 1) == 0);
  CHECK(process_environment().at("PARALET_TEST_VARIABLE") == "a=b");
  REQUIRE(::unsetenv("PARALET_TEST_VARIABLE") == 0);
}

}  // namespace
}  // namespace paralet::settings
