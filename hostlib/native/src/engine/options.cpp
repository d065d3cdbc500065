// SPDX-License-Identifier: Apache-2.0
#include "engine/options.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>

#include "backend/backend.hpp"
#include "backend/congestion_laws.hpp"
#include "base/interfaces.hpp"
#include "engine/eager.hpp"
#include "path_client/options.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr std::uint64_t kMaxWriteBytes = std::uint64_t{1} << 31;  // of one RDMA WRITE (IBTA: message length)
constexpr std::uint64_t kMaxElephantBytes = std::uint64_t{1} << 50;
constexpr std::uint64_t kMaxQueueBytes = std::uint64_t{1} << 40;
constexpr double kMaxSeconds = 1e6;
constexpr RealBounds kAnyTime = {0, kMaxSeconds};
constexpr double kMinReconnectSeconds = 1e-3;
constexpr IntegerBounds kUint64 = {0, UINT64_MAX};
constexpr IntegerBounds kByte = {0, UINT8_MAX};

constexpr std::array kBackends = {BackendKind::kSoft, BackendKind::kTcp, BackendKind::kVerbs};
constexpr std::array kPolicies = {PolicyKind::kEcmp, PolicyKind::kPinned, PolicyKind::kAdaptive,
                                  PolicyKind::kController};
constexpr std::array kLanesPer = {LanesPer::kPeer, LanesPer::kHost};

template <typename Kinds>
Choices names(const Kinds& kinds) {
  Choices out;
  for (const auto kind : kinds) out.emplace_back(to_string(kind));
  return out;
}

// -- fields of DeviceOptions to and from values -------------------------------------------------------------

Nanos nanos(double seconds) { return std::llround(seconds * 1e9); }

template <typename Kinds>
auto kind_of(const Kinds& kinds, const std::string& name) {
  const auto found = std::ranges::find(kinds, name, [](auto kind) { return std::string(to_string(kind)); });
  if (found == kinds.end()) throw OptionNotAllowed();
  return *found;
}

template <typename T>
constexpr bool kIsUnsigned =
    std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::uint32_t> || std::is_same_v<T, std::uint64_t>;

void assign(BackendKind& field, const OptionValue& value) { field = kind_of(kBackends, std::get<std::string>(value)); }
void assign(PolicyKind& field, const OptionValue& value) { field = kind_of(kPolicies, std::get<std::string>(value)); }
void assign(LanesPer& field, const OptionValue& value) { field = kind_of(kLanesPer, std::get<std::string>(value)); }
void assign(std::string& field, const OptionValue& value) { field = std::get<std::string>(value); }
void assign(double& field, const OptionValue& value) { field = std::get<double>(value); }
void assign(Nanos& field, const OptionValue& value) { field = nanos(std::get<double>(value)); }
void assign(SourcePorts& field, const OptionValue& value) { field = std::get<SourcePorts>(value); }
void assign(LaneSegments& field, const OptionValue& value) { field = std::get<LaneSegments>(value); }
template <typename T>
requires kIsUnsigned<T>
void assign(T& field, const OptionValue& value) { field = static_cast<T>(std::get<std::uint64_t>(value)); }
template <typename T>
void assign(std::optional<T>& field, const OptionValue& value) {
  assign(field.emplace(), value);
}

OptionValue value_of(BackendKind field) { return to_string(field); }
OptionValue value_of(PolicyKind field) { return to_string(field); }
OptionValue value_of(LanesPer field) { return to_string(field); }
OptionValue value_of(const std::string& field) { return field.empty() ? OptionValue() : OptionValue(field); }
OptionValue value_of(double field) { return field; }
OptionValue value_of(Nanos field) { return to_seconds(field); }
OptionValue value_of(const SourcePorts& field) { return field.empty() ? OptionValue() : OptionValue(field); }
OptionValue value_of(const LaneSegments& field) { return field.empty() ? OptionValue() : OptionValue(field); }
template <typename T>
requires kIsUnsigned<T> OptionValue value_of(T field) { return std::uint64_t{field}; }
template <typename T>
OptionValue value_of(const std::optional<T>& field) {
  return field ? value_of(*field) : OptionValue();
}

/// `set` and `get` of the field that a captureless lambda selects.
template <typename Select>
struct Field {
  explicit constexpr Field(Select /*select*/) {}
  static void set(DeviceOptions& options, const OptionValue& value) { assign(Select{}(options), value); }
  static OptionValue get(const DeviceOptions& options) { return value_of(Select{}(options)); }
};

// -- options that are not a plain field ---------------------------------------------------------------------

/// DeviceOptions writes "not set" as 0.
OptionValue get_line_rate(const DeviceOptions& options) {
  return options.line_rate_bps > 0 ? OptionValue(options.line_rate_bps) : OptionValue();
}

void set_service(DeviceOptions& options, const OptionValue& value) {
  const auto& service = std::get<std::string>(value);
  path_client::check_service(service);
  options.policy.path_client.service = service;
}

void set_token_file(DeviceOptions& options, const OptionValue& value) {
  std::string& token = options.policy.path_client.token;
  if (!token.empty()) throw std::invalid_argument("token and token_file exclude each other: give one of them");
  token = path_client::read_token(std::get<std::string>(value));
}

/// The file's name is not kept.
OptionValue get_token_file(const DeviceOptions& /*options*/) { return {}; }

void set_tcp_congestion(DeviceOptions& options, const OptionValue& value) {
  const auto& name = std::get<std::string>(value);
  const auto in_names = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  // TCP_CA_NAME_MAX of include/net/tcp.h is 16, with the zero at the end.
  if (name.empty() || name.size() > 15 || !std::all_of(name.begin(), name.end(), in_names)) throw OptionNotAllowed();
  options.tcp_congestion = name;
}

void set_job(DeviceOptions& options, const OptionValue& value) {
  const auto& job = std::get<std::string>(value);
  if (!path_client::is_job(job)) throw OptionNotAllowed();
  options.policy.path_client.job = job;
}

void set_reconnect(DeviceOptions& options, const OptionValue& value) {
  const auto [least, most] = std::get<std::pair<double, double>>(value);
  options.policy.path_client.reconnect_least = nanos(least);
  options.policy.path_client.reconnect_most = nanos(most);
}

OptionValue get_reconnect(const DeviceOptions& options) {
  const path_client::Options& client = options.policy.path_client;
  return std::pair(to_seconds(client.reconnect_least), to_seconds(client.reconnect_most));
}

// One option per paragraph.
// clang-format off
std::vector<Option> make_options() {
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a row names its field once
#define PARALET_FIELD(member)                                                                   \
  Field([](auto& options) -> auto& { return options.member; }).set,                             \
  Field([](auto& options) -> auto& { return options.member; }).get
  using enum OptionType;
  return {
      {"backend", "PARALET_BACKEND", kChoice, names(kBackends), nullptr,
       "What moves packets. soft: RoCEv2 in user space over UDP sockets. tcp: a TCP connection per lane and direction. "
       "verbs: an RDMA NIC, or the kernel's SoftRoCE, through libibverbs. Devices with soft and verbs talk to each "
       "other, those with tcp only to their own kind.",
       PARALET_FIELD(backend)},
      {"gid_index", "PARALET_GID_INDEX", kInteger, kByte, "the RoCEv2 GID of the device's address",
       "For backend verbs: another GID of the same port (`paralet doctor` lists them).",
       PARALET_FIELD(rdma.gid_index)},
      {"traffic_class", "PARALET_TRAFFIC_CLASS", kInteger, kByte, nullptr,
       "The IPv4 TOS or IPv6 traffic class byte (DSCP and ECN) of all packets, where a communicator does not ask for "
       "another. Without ECN bits soft sends ECT(0) to peers that report congestion marks.",
       PARALET_FIELD(traffic_class)},
      {"service_level", "PARALET_SERVICE_LEVEL", kInteger, IntegerBounds{0, 7}, nullptr,
       "For backend verbs: the priority of all packets.",
       PARALET_FIELD(rdma.service_level)},
      {"pkey_index", "PARALET_PKEY_INDEX", kInteger, IntegerBounds{0, UINT16_MAX}, nullptr,
       "For backend verbs: index of the partition key in the port's table.",
       PARALET_FIELD(rdma.pkey_index)},
      {"lanes", "PARALET_LANES", kInteger, IntegerBounds{1, 1024}, nullptr,
       "m, the number of lanes of a device. All connections to a peer share m QPs, one per lane.",
       PARALET_FIELD(policy.lanes)},
      {"lanes_per", "PARALET_LANES_PER", kChoice, names(kLanesPer), nullptr,
       "What m lanes are for. peer: each peer has m. host: all peers share m and take turns; a silent peer holds up the "
       "others (ParaLet, section 5.3).",
       PARALET_FIELD(policy.lanes_per)},
      {"shards", "PARALET_SHARDS", kInteger, IntegerBounds{0, kMaxShards}, nullptr,
       "For backends soft and tcp: cores that move a device's packets, at most as many as lanes. 0: one for each 25 Gbit/s "
       "of the NIC, on at most half of the process's cores.",
       PARALET_FIELD(shards)},
      {"policy", "PARALET_POLICY", kChoice, names(kPolicies), nullptr,
       "How the lanes' UDP source ports are chosen. ecmp: at random. pinned: from a table. adaptive: at random, and a "
       "lane that times out or whose round trip stays bad moves. controller: by the path service for elephants, at "
       "random for all else and while the service is away.",
       PARALET_FIELD(policy.kind)},
      {"ports", "PARALET_PORTS", kPorts, FreeText{"a list of ports 49152 to 65535 for each peer address"}, "none",
       "For policy pinned: the source ports of lane 0, 1, .. towards each peer. Fewer ports than lanes repeat; with "
       "backend tcp each lane needs one of its own. Peers without a list get random ports.",
       PARALET_FIELD(policy.ports)},
      {"segments", "PARALET_SEGMENTS", kSegments, FreeText{"lists of IPv6 addresses for each peer address"}, "none",
       "For policy pinned and backend soft over IPv6: the nodes that the packets of each of the ports towards a peer "
       "pass, in this order (segment routing, RFC 8754). Routers then need no hash.",
       PARALET_FIELD(segments)},
      {"path_service", "PARALET_PATH_SERVICE", kText, FreeText{"HOST:PORT, [IPv6 address]:PORT; with a standby A:PORT,B:PORT"}, "none",
       "For policy controller: where the path service listens. Elephants are announced to it and move to the ports that "
       "it assigns. Of several addresses that of the service that leads is found, and found again after a takeover.",
       set_service, Field([](auto& options) -> auto& { return options.policy.path_client.service; }).get,
       "PARALET_CONTROLLER"},
      {"token", nullptr, kText, FreeText{"1 to 256 printable ASCII characters without blanks"}, "none",
       "For policy controller: the token shared with the path service.",
       PARALET_FIELD(policy.path_client.token)},
      {"token_file", "PARALET_PATH_SERVICE_TOKEN_FILE", kText, FreeText{"a file that only its owner may read"}, "none",
       "For policy controller: holds the token shared with the path service, in one line.",
       set_token_file, get_token_file, "PARALET_CONTROLLER_TOKEN_FILE"},
      {"tls_ca", "PARALET_PATH_SERVICE_CA", kText, FreeText{"a file of certificates in PEM format"}, "none",
       "For policy controller: the CAs from one of which the path service's certificate is. With it, and with the two "
       "that follow, the connection is by TLS, which needs OpenSSL 3.",
       PARALET_FIELD(policy.path_client.tls.ca)},
      {"tls_certificate", "PARALET_PATH_SERVICE_CERTIFICATE", kText, FreeText{"a file in PEM format"}, "none",
       "For policy controller: this host's certificate, for the addresses of its devices. It is read for each "
       "connection.",
       PARALET_FIELD(policy.path_client.tls.certificate)},
      {"tls_key", "PARALET_PATH_SERVICE_KEY", kText, FreeText{"a file in PEM format that only its owner may read"}, "none",
       "For policy controller: the key of this host's certificate.",
       PARALET_FIELD(policy.path_client.tls.key)},
      {"job", "PARALET_JOB", kText, FreeText{"1 to 64 printable ASCII characters without blanks"}, "none",
       "For policy controller: the job's name, sent with each elephant.",
       set_job, Field([](auto& options) -> auto& { return options.policy.path_client.job; }).get},
      {"elephant_bytes", "PARALET_ELEPHANT_BYTES", kBytes, IntegerBounds{1, kMaxElephantBytes}, nullptr,
       "For policy controller: messages that follow each other to one peer without a pause are an elephant from this "
       "size on.",
       PARALET_FIELD(policy.path_client.elephant_bytes)},
      {"assign_wait_s", "PARALET_ASSIGN_WAIT", kSeconds, kAnyTime, nullptr,
       "For policy controller: the longest time that a new elephant waits for its ports. With 0 it starts on random "
       "ports at once.",
       PARALET_FIELD(policy.path_client.assign_wait)},
      {"probe_rate", "PARALET_PROBE_RATE", kNumber, RealBounds{0, 1e6}, nullptr,
       "For policy controller: probes per second that a device sends at most, where the path service asks for probes of "
       "paths. 0: none.",
       PARALET_FIELD(policy.path_client.probe_rate)},
      {"revert_rtt", "PARALET_REVERT_RTT", kNumber, RealBounds{1, 1e6}, nullptr,
       "For policy controller: a lane leaves its assigned port when its round trip stays above this multiple of the "
       "round trip of the peer's best lane.",
       PARALET_FIELD(policy.path_client.thresholds.rtt_ratio)},
      {"revert_loss", "PARALET_REVERT_LOSS", kNumber, RealBounds{1e-6, 1e6}, nullptr,
       "For policy controller: a lane leaves its assigned port when it retransmits more than this number of packets per "
       "packet sent.",
       PARALET_FIELD(policy.path_client.thresholds.loss)},
      {"reconnect_s", nullptr, kSecondsRange, RealBounds{kMinReconnectSeconds, kMaxSeconds}, nullptr,
       "For policy controller: the shortest and the longest delay between attempts to reach the path service.",
       set_reconnect, get_reconnect},
      {"seed", "PARALET_SEED", kInteger, kUint64, "unpredictable", "Makes random ports reproducible.",
       PARALET_FIELD(policy.seed)},
      {"path_mtu", "PARALET_PATH_MTU", kInteger, Choices{"256", "512", "1024", "2048", "4096"},
       "the largest that fits the route's MTU",
       "Payload bytes per packet, at most.",
       PARALET_FIELD(path_mtu)},
      {"line_rate_bps", "PARALET_LINE_RATE", kBitsPerSecond, RealBounds{1, 1e15}, "not paced",
       "Paces all lanes of a device together, each at its share. Together with the base round trip it sets the size of "
       "flowlets.",
       Field([](auto& options) -> auto& { return options.line_rate_bps; }).set, get_line_rate},
      {"base_rtt_s", "PARALET_BASE_RTT", kSeconds, kAnyTime, "measured",
       "Round trip of the idle network, for flowlets of S = 4 BDP / m bytes.",
       PARALET_FIELD(base_rtt)},
      {"flowlet_bytes", "PARALET_FLOWLET_BYTES", kBytes, IntegerBounds{1, kMaxWriteBytes},
       "4 BDP / m with a line rate or a NIC's, else 2 MiB", "S, the size of a flowlet.",
       PARALET_FIELD(flowlet_bytes)},
      {"mice_bytes", "PARALET_MICE_BYTES", kBytes, IntegerBounds{0, kMaxWriteBytes}, "one packet",
       "Messages up to this size are one flowlet on one lane.",
       PARALET_FIELD(mice_bytes)},
      {"eager_bytes", "PARALET_EAGER_BYTES", kBytes, IntegerBounds{0, kMostEagerBytes}, nullptr,
       "For backends soft and tcp: messages up to this size may go before their receive is advertised, once 8 in a row "
       "were that short. 0: none does, from either side.",
       PARALET_FIELD(eager_bytes)},
      {"congestion_control", "PARALET_CONGESTION_CONTROL", kChoice, congestion_laws(), nullptr,
       "For backend soft: the law that sets the windows of lanes. delay: follows queueing delay, congestion marks and "
       "losses. fixed_window: window_packets at all times, to compare other laws with.",
       PARALET_FIELD(congestion_control)},
      {"tcp_congestion", "PARALET_TCP_CONGESTION", kText, FreeText{"1 to 15 letters, digits, '_' and '-', such as cubic or bbr"},
       "the kernel's default, net.ipv4.tcp_congestion_control",
       "For backend tcp: the kernel's congestion control, one of net.ipv4.tcp_available_congestion_control.",
       set_tcp_congestion, Field([](auto& options) -> auto& { return options.tcp_congestion; }).get},
      {"window_packets", "PARALET_WINDOW_PACKETS", kInteger, IntegerBounds{1, 512}, "64",
       "For congestion control fixed_window: packets that a lane may have in flight.",
       PARALET_FIELD(window_packets)},
      {"target_queue_s", "PARALET_TARGET_QUEUE", kSeconds, kAnyTime, "2ms, or 12 packets at the line rate if longer",
       "Queueing delay that congestion control aims at, in network and hosts together.",
       PARALET_FIELD(target_queue)},
      {"queue_bytes", "PARALET_QUEUE_BYTES", kBytes, IntegerBounds{1, kMaxQueueBytes}, nullptr,
       "Bytes of a switch's buffer that congestion control between soft devices aims at. Divided by the line rate, or the "
       "NIC's speed (1 Gbit/s where unknown), it is the target of the delay outside hosts: at least 100us, or a quarter of "
       "the target queue where a line rate is given without a base round trip.",
       PARALET_FIELD(queue_bytes)},
      {"min_timeout_s", "PARALET_MIN_TIMEOUT", kSeconds, kAnyTime, "67ms, or 4 target queues if longer",
       "Lower bound of the retransmission timeout. With verbs, the NIC's timeout; the default is a seventh of the retry "
       "time.",
       PARALET_FIELD(min_timeout)},
      {"retry_time_s", "PARALET_RETRY_TIME", kSeconds, kAnyTime, nullptr,
       "A peer that stays silent for this time is given up, and its requests fail.",
       PARALET_FIELD(retry_time)},
      {"idle_peer_s", "PARALET_IDLE_PEER", kSeconds, kAnyTime, nullptr,
       "QPs of a peer without connections are removed after this time.",
       PARALET_FIELD(idle_peer)},
      {"busy_poll_s", "PARALET_BUSY_POLL", kSeconds, kAnyTime, nullptr,
       "How long waits spin before they sleep. NCCL's own threads move packets while they test.",
       PARALET_FIELD(busy_poll)},
      {"faults.drop", nullptr, kNumber, RealBounds{0, 1}, nullptr,
       "For tests: the probability that a received packet is dropped.",
       PARALET_FIELD(faults.drop)},
      {"faults.duplicate", nullptr, kNumber, RealBounds{0, 1}, nullptr,
       "For tests: the probability that a received packet is delivered twice.",
       PARALET_FIELD(faults.duplicate)},
      {"faults.reorder", nullptr, kNumber, RealBounds{0, 1}, nullptr,
       "For tests: the probability that a received packet is held back until later ones have passed.",
       PARALET_FIELD(faults.reorder)},
      {"faults.corrupt", nullptr, kNumber, RealBounds{0, 1}, nullptr,
       "For tests: the probability that one bit of a received packet is flipped.",
       PARALET_FIELD(faults.corrupt)},
      {"faults.reorder_packets", nullptr, kInteger, IntegerBounds{1, 4096}, nullptr,
       "For tests: the most packets that overtake one that is held back.",
       PARALET_FIELD(faults.reorder_packets)},
      {"faults.cut", nullptr, kNumber, RealBounds{0, 1}, nullptr,
       "For tests of backend tcp: probability per system call that sends on a connection that it ends there.",
       PARALET_FIELD(faults.cut)},
      {"faults.dead", nullptr, kNumber, RealBounds{0, 1}, nullptr,
       "For tests: the probability that the path of a source port dies, so that its later packets are dropped.",
       PARALET_FIELD(faults.dead)},
      {"faults.dead_after", nullptr, kInteger, kUint64, nullptr,
       "For tests: the number of packets that arrive over a path before it dies.",
       PARALET_FIELD(faults.dead_after)},
      {"faults.seed", nullptr, kInteger, kUint64, nullptr, "For tests: makes the faults reproducible.",
       PARALET_FIELD(faults.seed)},
  };
#undef PARALET_FIELD
}
// clang-format on

bool in_bounds(const RealBounds& bounds, double value) {
  return value >= bounds.least && value <= bounds.most;  // false for NaN
}

bool in_domain(const IntegerBounds& bounds, const OptionValue& value) {
  const auto number = std::get<std::uint64_t>(value);
  return number >= bounds.least && number <= bounds.most;
}

bool in_domain(const RealBounds& bounds, const OptionValue& value) {
  if (const auto* range = std::get_if<std::pair<double, double>>(&value)) {
    return in_bounds(bounds, range->first) && in_bounds(bounds, range->second) && range->first <= range->second;
  }
  return in_bounds(bounds, std::get<double>(value));
}

bool in_domain(const Choices& choices, const OptionValue& value) {
  const auto* number = std::get_if<std::uint64_t>(&value);
  const std::string name = number != nullptr ? std::to_string(*number) : std::get<std::string>(value);
  return std::ranges::find(choices, name) != choices.end();
}

bool in_domain(const FreeText& /*text*/, const OptionValue& /*value*/) { return true; }

std::string joined(const std::vector<std::string>& parts, const std::string& last) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += i + 1 < parts.size() ? ", " : " " + last + " ";
    out += parts[i];
  }
  return out;
}

std::string words(const IntegerBounds& bounds) {
  return std::to_string(bounds.least) + " to " + std::to_string(bounds.most);
}
std::string words(const RealBounds& bounds) {
  return format_number(bounds.least) + " to " + format_number(bounds.most);
}
std::string words(const Choices& choices) { return joined(choices, "or"); }
std::string words(const FreeText& text) { return text.allowed; }

std::uint16_t parse_source_port(const std::string& text, const std::string& peer) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < wire::kFirstEntropyPort) {
    throw std::invalid_argument("source port " + text + " for peer " + peer + " is outside 49152..65535");
  }
  return port;
}

}  // namespace

const char* to_string(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kEcmp:
      return "ecmp";
    case PolicyKind::kPinned:
      return "pinned";
    case PolicyKind::kAdaptive:
      return "adaptive";
    case PolicyKind::kController:
      return "controller";
  }
  return "unknown";
}

const char* to_string(LanesPer per) { return per == LanesPer::kPeer ? "peer" : "host"; }

const char* to_string(BackendKind kind) {
  switch (kind) {
    case BackendKind::kSoft:
      return "soft";
    case BackendKind::kTcp:
      return "tcp";
    case BackendKind::kVerbs:
      return "verbs";
  }
  return "unknown";
}

const char* to_string(OptionType type) {
  switch (type) {
    case OptionType::kInteger:
      return "integer";
    case OptionType::kBytes:
      return "bytes";
    case OptionType::kNumber:
      return "number";
    case OptionType::kBitsPerSecond:
      return "bits per second";
    case OptionType::kSeconds:
      return "seconds";
    case OptionType::kSecondsRange:
      return "range of seconds";
    case OptionType::kChoice:
      return "choice";
    case OptionType::kText:
      return "text";
    case OptionType::kPorts:
      return "ports";
    case OptionType::kSegments:
      return "segments";
  }
  return "";
}

const std::vector<Option>& options() {
  static const auto& table = *new std::vector<Option>(make_options());  // NOLINT(cppcoreguidelines-owning-memory)
  return table;
}

void set_option(DeviceOptions& options, const Option& option, const OptionValue& value) {
  if (!std::visit([&](const auto& domain) { return in_domain(domain, value); }, option.domain)) {
    throw OptionNotAllowed();
  }
  option.set(options, value);
}

std::string allowed_values(const Option& option) {
  std::string out = std::visit([](const auto& domain) { return words(domain); }, option.domain);
  if (option.type == OptionType::kSecondsRange) out = "two numbers in ascending order, each " + out;
  return out;
}

std::string format_number(double number) {
  std::array<char, 32> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.12g", number);
  std::string out(text.data(), static_cast<std::size_t>(length));
  const std::size_t exponent = out.find('e');
  if (exponent == std::string::npos) return out;
  return out.substr(0, exponent + 1) + std::to_string(std::stoi(out.substr(exponent + 1)));  // "1e+15" is "1e15"
}

void add_source_ports(SourcePorts& table, const std::string& peer, const std::vector<std::string>& ports) {
  const auto address = parse_address(peer);
  if (!address) throw std::invalid_argument("'" + peer + "' is not an IP address such as 10.0.0.1 or fd00::1");
  if (ports.empty()) throw std::invalid_argument("the list of source ports for peer " + peer + " is empty");
  std::vector<std::uint16_t>& out = table[*address];
  for (const std::string& port : ports) out.push_back(parse_source_port(port, peer));
}

void set_addresses(DeviceOptions& options, const std::string& text) {
  std::vector<IpAddress> all;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t to = std::min(text.find('+', from), text.size());
    const std::string given = text.substr(from, to - from);
    const auto address = parse_address(given);
    if (!address) throw std::invalid_argument("'" + given + "' is not an IP address such as 10.0.0.1 or fd00::1");
    if (std::ranges::find(all, *address) != all.end()) {
      throw std::invalid_argument("the address " + given + " is given twice: fuse different NICs");
    }
    all.push_back(*address);
    from = to + 1;
  }
  if (all.size() > kMaxMembers) {
    throw std::invalid_argument("'" + text + "' names " + std::to_string(all.size()) + " NICs: at most " +
                                std::to_string(kMaxMembers) + " can be fused");
  }
  options.address = all.front();
  options.fused_with.assign(all.begin() + 1, all.end());
}

void check_combination(const DeviceOptions& options, const OptionSpelling& spelled) {
  const PolicyOptions& policy = options.policy;
  const auto setting = [&](const char* name, const char* value) { return spelled(name) + "='" + value + "'"; };
  // A front end may lack some of them.
  const auto any_of = [&](std::initializer_list<const char*> list, const char* last) {
    std::vector<std::string> known;
    for (const char* name : list) {
      if (std::string spelling = spelled(name); !spelling.empty()) known.push_back(std::move(spelling));
    }
    return joined(known, last);
  };
  const auto other_policy = [&](const std::string& what, PolicyKind kind) {
    return std::invalid_argument(what + " is only for " + setting("policy", to_string(kind)) + ", not for '" +
                                 to_string(policy.kind) + "'");
  };

  if (policy.kind == PolicyKind::kPinned && policy.ports.empty()) {
    throw std::invalid_argument(setting("policy", "pinned") + " needs " + spelled("ports") +
                                ", the UDP source ports for each peer address");
  }
  if (policy.kind != PolicyKind::kPinned && !policy.ports.empty()) {
    throw other_policy(spelled("ports"), PolicyKind::kPinned);
  }
  const bool has_service = !policy.path_client.service.empty();
  const bool has_token = !policy.path_client.token.empty();
  const std::string token = any_of({"token_file", "token"}, "or");
  if (policy.kind == PolicyKind::kController && !(has_service && has_token)) {
    throw std::invalid_argument(setting("policy", "controller") + " needs " + spelled("path_service") +
                                ", where the path service listens, and " + token);
  }
  if (policy.kind != PolicyKind::kController && (has_service || has_token)) {
    throw other_policy(has_service ? spelled("path_service") : token, PolicyKind::kController);
  }
  const path_client::TlsFiles& tls = policy.path_client.tls;
  const std::string files = any_of({"tls_ca", "tls_certificate", "tls_key"}, "and");
  if (tls.any() && policy.kind != PolicyKind::kController) {
    throw std::invalid_argument(files + " are only for " + setting("policy", "controller") + ", not for '" +
                                to_string(policy.kind) + "'");
  }
  if (tls.any() && !tls.all()) {
    throw std::invalid_argument(files + " belong together: give all three for TLS to the path service, or none");
  }
  if (options.backend != BackendKind::kVerbs && (options.rdma.gid_index || options.rdma.service_level != 0)) {
    throw std::invalid_argument(any_of({"gid_index", "service_level"}, "and") + " are only for " +
                                setting("backend", "verbs"));
  }
  if (options.backend != BackendKind::kVerbs && options.rdma.pkey_index != 0) {
    throw std::invalid_argument(spelled("pkey_index") + " is only for " + setting("backend", "verbs"));
  }
  if (options.backend != BackendKind::kSoft && options.congestion_control != DeviceOptions{}.congestion_control) {
    throw std::invalid_argument(spelled("congestion_control") + " is only for " + setting("backend", "soft") +
                                (options.backend == BackendKind::kTcp
                                     ? ": that of TCP is the kernel's, which " + spelled("tcp_congestion") + " names"
                                     : ": an RDMA NIC has its own congestion control"));
  }
  if (options.backend != BackendKind::kTcp && !options.tcp_congestion.empty()) {
    throw std::invalid_argument(spelled("tcp_congestion") + " is only for " + setting("backend", "tcp"));
  }
  if (options.backend != BackendKind::kSoft && !options.segments.empty()) {
    throw std::invalid_argument(spelled("segments") + " is only for " + setting("backend", "soft") +
                                ": no other back end sends IPv6 routing headers");
  }
  check_segments(options.segments, policy.ports, spelled("segments"), spelled("ports"));
  if (options.backend == BackendKind::kTcp) {
    for (const auto& [peer, ports] : policy.ports) {
      if (std::set(ports.begin(), ports.end()).size() >= policy.lanes) continue;
      throw std::invalid_argument(spelled("ports") + " for " + format_address(peer) + " must name " +
                                  std::to_string(policy.lanes) +
                                  " different source ports, one for each lane: TCP lanes to one peer cannot share one");
    }
  }
  if (options.shards != 1 && options.backend == BackendKind::kVerbs) {
    throw std::invalid_argument(spelled("shards") + " is only for " + setting("backend", "soft") +
                                " and 'tcp': an RDMA NIC " + "moves packets itself");
  }
  if (options.shards > 1 && policy.kind == PolicyKind::kController) {
    throw std::invalid_argument(spelled("shards") + " must be 1 with " + setting("policy", "controller") +
                                ": the path service plans for one destination port");
  }
  if (options.window_packets && options.congestion_control != "fixed_window") {
    throw std::invalid_argument(spelled("window_packets") + " is only for " +
                                setting("congestion_control", "fixed_window"));
  }
  if (const std::size_t members = 1 + options.fused_with.size(); members > 1) {
    if (policy.lanes < members) {
      throw std::invalid_argument(spelled("lanes") + " must be at least " + std::to_string(members) +
                                  " where as many NICs are fused");
    }
    if (policy.kind == PolicyKind::kController) {
      throw std::invalid_argument(setting("policy", "controller") +
                                  " is only for a device with one NIC: the path service plans paths between two NICs");
    }
  }
  if (options.backend == BackendKind::kTcp && options.faults.of_packets()) {
    throw std::invalid_argument(spelled("faults") + " of packets are only for " + setting("backend", "soft") +
                                ": TCP repairs them");
  }
  if (options.backend == BackendKind::kSoft && options.faults.cut > 0) {
    throw std::invalid_argument(spelled("faults") + ".cut is only for " + setting("backend", "tcp"));
  }
  if (options.backend == BackendKind::kVerbs && options.faults.any()) {
    throw std::invalid_argument(spelled("faults") + " is only for " + setting("backend", "soft") +
                                ": the packets of an RDMA NIC do not pass through this library");
  }
}

}  // namespace paralet
