// SPDX-License-Identifier: Apache-2.0
#include "parameters.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "path_client/options.hpp"
#include "plugin_error.hpp"
#include "values.hpp"
#include "wire/wire.hpp"

namespace paralet::plugin {
namespace {

constexpr Nanos kMaxDuration = 1'000'000 * kSecond;
constexpr std::uint64_t kMaxElephantBytes = std::uint64_t{1} << 50;
constexpr std::uint64_t kMaxWriteBytes = std::uint64_t{1} << 31;  // of one RDMA WRITE

[[noreturn]] void refuse(const std::string& sentence) { throw PluginError(ncclInvalidUsage, sentence); }

Nanos duration(const std::string& value) { return parse_duration(value, kMaxDuration); }

std::uint32_t parse_address(const std::string& text) {
  const auto parsed = parse_ipv4(text);
  if (!parsed) refuse("'" + text + "' is not an IPv4 address such as 10.0.0.1");
  return *parsed;
}

void set_config(Settings& settings, const std::string& value) { settings.config_file = value; }

void set_ifname(Settings& settings, const std::string& value) {
  settings.selection.names = NameFilter::parse(value);
  if (!settings.selection.names) not_allowed();
  settings.selected_by = "PARALET_IFNAME=" + value;
}

void set_addresses(Settings& settings, const std::string& value) {
  std::vector<std::uint32_t>& addresses = settings.selection.addresses;
  for (const std::string& text : split(value, ",")) addresses.push_back(parse_address(text));
  if (addresses.empty()) not_allowed();
  if (std::set(addresses.begin(), addresses.end()).size() != addresses.size()) refuse("an address is named twice");
  settings.selected_by = "PARALET_ADDRESSES=" + value;
}

void set_backend(Settings& settings, const std::string& value) {
  for (const BackendKind kind : {BackendKind::kSoft, BackendKind::kVerbs}) {
    if (value != to_string(kind)) continue;
    settings.device.backend = kind;
    return;
  }
  not_allowed();
}

void set_gid_index(Settings& settings, const std::string& value) {
  settings.device.rdma.gid_index = static_cast<std::uint32_t>(parse_integer(value, 0, UINT8_MAX));
}

void set_traffic_class(Settings& settings, const std::string& value) {
  settings.device.rdma.traffic_class = static_cast<std::uint8_t>(parse_integer(value, 0, UINT8_MAX));
}

void set_service_level(Settings& settings, const std::string& value) {
  settings.device.rdma.service_level = static_cast<std::uint8_t>(parse_integer(value, 0, 7));
}

void set_lanes(Settings& settings, const std::string& value) {
  settings.device.policy.lanes = static_cast<unsigned>(parse_integer(value, 1, 1024));
}

void set_policy(Settings& settings, const std::string& value) {
  for (const PolicyKind kind :
       {PolicyKind::kEcmp, PolicyKind::kPinned, PolicyKind::kAdaptive, PolicyKind::kController}) {
    if (value != to_string(kind)) continue;
    settings.device.policy.kind = kind;
    return;
  }
  not_allowed();
}

/// "10.0.0.2=50000,50001; 10.0.0.3=50010", or a file with one such entry per line.
void set_ports(Settings& settings, const std::string& value) {
  const bool file = value.starts_with('/') || value.starts_with('.');
  std::vector<Line> entries;
  if (file) {
    entries = read_lines(value);
  } else {
    for (std::string& entry : split(value, ";")) entries.push_back({"", std::move(entry)});
  }
  auto& table = settings.device.policy.ports;
  for (const Line& entry : entries) {
    const std::size_t equals = entry.text.find('=');
    if (equals == std::string::npos) refuse(entry.where + "'" + entry.text + "' is not ADDRESS=PORT,PORT,..");
    const std::uint32_t peer = parse_address(std::string(trim(std::string_view(entry.text).substr(0, equals))));
    std::vector<std::uint16_t>& ports = table[peer];
    if (!ports.empty()) refuse(entry.where + format_ipv4(peer) + " has two lists of ports");
    for (const std::string& port : split(std::string_view(entry.text).substr(equals + 1), ", ")) {
      try {
        ports.push_back(static_cast<std::uint16_t>(parse_integer(port, wire::kFirstEntropyPort, UINT16_MAX)));
      } catch (const std::invalid_argument&) {
        refuse(entry.where + "source port '" + port + "' for " + format_ipv4(peer) +
               " is not one of 49152 to 65535, the range that RoCEv2 uses");
      }
    }
    if (ports.empty()) refuse(entry.where + "the list of ports for " + format_ipv4(peer) + " is empty");
  }
  if (table.empty()) not_allowed();
}

controller::Options& controller_of(Settings& settings) { return settings.device.policy.controller; }

void set_controller(Settings& settings, const std::string& value) {
  try {
    controller::resolve(value);
  } catch (const DeviceError& error) {
    refuse(error.what());
  }
  controller_of(settings).service = value;
}

void set_token_file(Settings& settings, const std::string& value) {
  try {
    controller_of(settings).token = controller::read_token(value);
  } catch (const DeviceError& error) {
    refuse(error.what());
  }
}

void set_job(Settings& settings, const std::string& value) {
  if (!controller::is_job(value)) not_allowed();
  controller_of(settings).job = value;
}

void set_elephant_bytes(Settings& settings, const std::string& value) {
  controller_of(settings).elephant_bytes = parse_bytes(value, 1, kMaxElephantBytes);
}

void set_assign_wait(Settings& settings, const std::string& value) {
  controller_of(settings).assign_wait = duration(value);
}

void set_revert_rtt(Settings& settings, const std::string& value) {
  controller_of(settings).thresholds.rtt_ratio = parse_number(value, 1, 1e6);
}

void set_revert_loss(Settings& settings, const std::string& value) {
  controller_of(settings).thresholds.loss = parse_number(value, 1e-6, 1e6);
}

void set_faults(Settings& settings, const std::string& value) {
  Faults& faults = settings.device.faults;
  const std::vector<std::string> entries = split(value, ",");
  if (entries.empty()) not_allowed();
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) not_allowed();
    const std::string what = entry.substr(0, equals);
    const std::string number = entry.substr(equals + 1);
    if (what == "drop") {
      faults.drop = parse_number(number, 0, 1);
    } else if (what == "duplicate") {
      faults.duplicate = parse_number(number, 0, 1);
    } else if (what == "reorder") {
      faults.reorder = parse_number(number, 0, 1);
    } else if (what == "corrupt") {
      faults.corrupt = parse_number(number, 0, 1);
    } else if (what == "seed") {
      faults.seed = parse_integer(number, 0, UINT64_MAX);
    } else {
      not_allowed();
    }
  }
}

void set_seed(Settings& settings, const std::string& value) {
  settings.device.policy.seed = parse_integer(value, 0, UINT64_MAX);
}

void set_path_mtu(Settings& settings, const std::string& value) {
  const std::uint64_t mtu = parse_integer(value, 256, 4096);
  if ((mtu & (mtu - 1)) != 0) not_allowed();
  settings.device.path_mtu = static_cast<std::uint32_t>(mtu);
}

void set_line_rate(Settings& settings, const std::string& value) {
  settings.device.line_rate_bps = parse_rate(value, 1, 1e15);
}

void set_base_rtt(Settings& settings, const std::string& value) { settings.device.base_rtt = duration(value); }

void set_flowlet_bytes(Settings& settings, const std::string& value) {
  settings.device.flowlet_bytes = parse_bytes(value, 1, kMaxWriteBytes);
}

void set_mice_bytes(Settings& settings, const std::string& value) {
  settings.device.mice_bytes = parse_bytes(value, 0, kMaxWriteBytes);
}

void set_target_queue(Settings& settings, const std::string& value) { settings.device.target_queue = duration(value); }

void set_min_timeout(Settings& settings, const std::string& value) { settings.device.min_timeout = duration(value); }

void set_retry_time(Settings& settings, const std::string& value) { settings.device.retry_time = duration(value); }

void set_idle_peer(Settings& settings, const std::string& value) { settings.device.idle_peer = duration(value); }

void set_busy_poll(Settings& settings, const std::string& value) { settings.device.busy_poll = duration(value); }

constexpr const char* kDuration = "a duration such as 10s, 67ms or 50us, up to 1000000s";

// A table with one parameter per paragraph.
// clang-format off
constexpr Parameter kParameters[] = {
    // NOLINT(cppcoreguidelines-avoid-c-arrays)
    {"PARALET_CONFIG", "a readable file", "none",
     "File with lines NAME=value for the parameters below; # starts a comment. The environment wins over it.",
     set_config},
    {"PARALET_IFNAME", "names separated by commas, after = exact names, after ^ names to leave out",
     "NCCL_SOCKET_IFNAME, else all but docker, lo, virbr, else these",
     "Interfaces to use, by prefix. Each that is up and has an IPv4 address is a device.", set_ifname},
    {"PARALET_ADDRESSES", "IPv4 addresses separated by commas", "none",
     "Local addresses to use, in this order, instead of interfaces by name.", set_addresses},
    {"PARALET_BACKEND", "soft or verbs", "soft",
     "What moves packets. soft: RoCEv2 in user space over UDP sockets; verbs: an RDMA NIC, or the kernel's SoftRoCE, "
     "through libibverbs.",
     set_backend},
    {"PARALET_GID_INDEX", "0 to 255", "the RoCEv2 GID of the device's IPv4 address",
     "For verbs: another GID of the same port (`paralet doctor` lists them).", set_gid_index},
    {"PARALET_TRAFFIC_CLASS", "0 to 255", "0", "For verbs: the IPv4 TOS byte of all packets, DSCP and ECN.",
     set_traffic_class},
    {"PARALET_SERVICE_LEVEL", "0 to 7", "0", "For verbs: the priority of all packets.", set_service_level},
    {"PARALET_LANES", "1 to 1024", "8",
     "m, the path slots of a device: as many QPs towards each peer, whatever the number of connections.", set_lanes},
    {"PARALET_POLICY", "ecmp, pinned, adaptive or controller", "ecmp",
     "Who chooses the lanes' UDP source ports. ecmp: random; pinned: PARALET_PORTS; adaptive: random, and a lane that "
     "does badly moves; controller: PARALET_CONTROLLER for elephants, random for all else and while it is away.",
     set_policy},
    {"PARALET_PORTS",
     "ADDRESS=PORT,PORT,..;ADDRESS=.. with ports 49152 to 65535, or a file (/PATH or ./PATH) with one entry per line",
     "none",
     "For policy pinned: the source ports of lane 0, 1, .. towards each peer; fewer than lanes repeat. Peers not named "
     "get random ports.",
     set_ports},
    {"PARALET_CONTROLLER", "HOST:PORT with an IPv4 address or a name", "none",
     "For policy controller: where the path service listens. Elephants are announced to it, and move to the ports that "
     "it assigns.",
     set_controller},
    {"PARALET_CONTROLLER_TOKEN_FILE", "a file that only its owner may read", "none",
     "For policy controller: holds the token that the path service asks for, in one line.", set_token_file},
    {"PARALET_JOB", "1 to 64 printable ASCII characters without blanks", "none",
     "For policy controller: the job's name, told with each elephant.", set_job},
    {"PARALET_ELEPHANT_BYTES", "1 to 1125899906842624, or with KiB, MiB, GiB", "1 MiB",
     "For policy controller: messages to one peer that follow each other without a pause are an elephant from so many "
     "bytes on.",
     set_elephant_bytes},
    {"PARALET_ASSIGN_WAIT", kDuration, "0",
     "For policy controller: a new elephant waits for its ports so long at most; 0 starts on random ones at once.",
     set_assign_wait},
    {"PARALET_REVERT_RTT", "1 to 1000000", "4",
     "For policy controller: a lane leaves its assigned port when its round trip stays above so many times the best of "
     "the peer's lanes.",
     set_revert_rtt},
    {"PARALET_REVERT_LOSS", "0.000001 to 1000000", "0.25",
     "For policy controller: a lane leaves its assigned port when so many packets are sent again for each one sent.",
     set_revert_loss},
    {"PARALET_SEED", "0 to 18446744073709551615", "unpredictable", "Makes random ports reproducible.", set_seed},
    {"PARALET_PATH_MTU", "256, 512, 1024, 2048 or 4096", "the largest that fits the interface's MTU",
     "Payload bytes per packet.", set_path_mtu},
    {"PARALET_LINE_RATE", "a rate such as 100Gbit/s or 25000Mbit/s, 1 to 1e15 bit/s", "not paced",
     "Paces all lanes of a device together, each at its share, and with PARALET_BASE_RTT sets flowlets' size.",
     set_line_rate},
    {"PARALET_BASE_RTT", kDuration, "measured", "Round trip of an idle network, for flowlets of S = 4 BDP / m bytes.",
     set_base_rtt},
    {"PARALET_FLOWLET_BYTES", "1 to 2147483648, or with KiB, MiB, GiB", "4 BDP / m with PARALET_LINE_RATE, else 2 MiB",
     "S, the bytes of a flowlet.", set_flowlet_bytes},
    {"PARALET_MICE_BYTES", "0 to 2147483648, or with KiB, MiB, GiB", "one packet",
     "Messages up to this size are one flowlet on one lane.",
     set_mice_bytes},
    {"PARALET_TARGET_QUEUE", kDuration, "2ms, 12 packets at the line rate if that is more",
     "Queueing delay that congestion control aims at.", set_target_queue},
    {"PARALET_MIN_TIMEOUT", kDuration, "67ms, 4 target queues if that is more",
     "Least time before a silent lane sends again.", set_min_timeout},
    {"PARALET_RETRY_TIME", kDuration, "10s", "A peer that is silent for so long is given up, and its requests fail.",
     set_retry_time},
    {"PARALET_IDLE_PEER", kDuration, "2s", "QPs of a peer without connections are dropped after this.", set_idle_peer},
    {"PARALET_BUSY_POLL", kDuration, "0",
     "How long waits spin before they sleep. NCCL's own threads move packets while they test.", set_busy_poll},
    {"PARALET_FAULTS", "drop=P,duplicate=P,reorder=P,corrupt=P with P from 0 to 1, seed=N", "none",
     "For tests: what happens to received packets, as a bad network would do it.", set_faults},
};
// clang-format on

}  // namespace

std::span<const Parameter> parameters() { return kParameters; }

const Parameter* find_parameter(std::string_view name) {
  const auto found = std::ranges::find(parameters(), name, [](const Parameter& p) { return std::string_view(p.name); });
  return found != parameters().end() ? &*found : nullptr;
}

}  // namespace paralet::plugin
