// SPDX-License-Identifier: Apache-2.0
// The options of a device and the table that describes them. The Python binding (hostlib.Device), the NCCL plugin
// (PARALET_* variables) and their checks and documentation are derived from this table. A new option is a field of
// DeviceOptions and a row in options.cpp; a test then asks for the keyword in hostlib/device.py.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "backend/faults.hpp"
#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "base/log.hpp"
#include "engine/lane_segments.hpp"
#include "engine/policy_options.hpp"

namespace paralet {

/// The back end that moves packets: our own RoCEv2 over UDP sockets, TCP connections, or a NIC (or the kernel's rxe)
/// through libibverbs.
enum class BackendKind : std::uint8_t { kSoft, kTcp, kVerbs };
const char* to_string(BackendKind kind);

/// For `verbs` alone.
struct RdmaOptions {
  std::optional<std::uint32_t> gid_index;  ///< nothing: the RoCEv2 GID of the address
  std::uint8_t service_level = 0;
  std::uint32_t pkey_index = 0;  ///< of the partition key in the port's table
};

struct DeviceOptions {
  IpAddress address;
  std::vector<IpAddress> fused_with;  ///< further NICs that act as one with `address`
  BackendKind backend = BackendKind::kSoft;
  std::uint32_t shards = 1;  ///< cores that move packets (shard_count.hpp); 0: as many as the machine and the NIC allow
  RdmaOptions rdma;
  std::uint8_t traffic_class = 0;  ///< IPv4 TOS byte: DSCP and ECN bits; without the latter, soft sets them itself
  PolicyOptions policy;
  /// Of soft, IPv6 nodes that the packets of lane 0, 1, .. pass, by peer: beside each of the policy's ports.
  LaneSegments segments;
  std::optional<std::uint32_t> path_mtu;        ///< nothing: the largest the link's MTU allows
  double line_rate_bps = 0;                     ///< 0: unknown, sends are not paced
  std::optional<Nanos> base_rtt;                ///< nothing: measured; congestion control limits it
  std::optional<std::uint64_t> flowlet_bytes;   ///< nothing: S = 4 BDP / m
  std::optional<std::uint64_t> mice_bytes;      ///< messages up to this size are one flowlet; nothing: one path MTU
  std::uint64_t eager_bytes = 16'384;           ///< messages up to this size may go eagerly; 0: none, either way
  std::string congestion_control = "delay";     ///< of soft: a name of congestion_laws()
  std::string tcp_congestion;                   ///< of tcp: a congestion control of the kernel; empty: its default
  std::optional<std::uint32_t> window_packets;  ///< for law fixed_window; nothing: 64
  std::optional<Nanos> target_queue;            ///< delay in hosts and network that congestion control aims at
  std::uint64_t queue_bytes = 250'000;          ///< of a switch's buffer that it aims at
  std::optional<Nanos> min_timeout;             ///< floor of the retransmission timeout
  Nanos retry_time = 10 * kSecond;              ///< a peer silent for so long is given up
  Nanos busy_poll = 0;                          ///< waits and the progress thread spin this long before they sleep
  Nanos idle_peer = 2 * kSecond;                ///< QPs of a peer without connections are dropped after this
  Faults faults;
  Log log = log_to_standard_error;  ///< takes messages for the user
};

/// UDP source ports of lane 0, 1, .. by peer address.
using SourcePorts = std::map<IpAddress, std::vector<std::uint16_t>>;

/// Type and unit of an option's value. In OptionValue, kInteger and kBytes are uint64_t; kNumber, kBitsPerSecond and
/// kSeconds are double; kSecondsRange is a pair of doubles; kChoice and kText are strings; kPorts is SourcePorts;
/// kSegments is LaneSegments.
enum class OptionType : std::uint8_t {
  kInteger,
  kBytes,
  kNumber,
  kBitsPerSecond,
  kSeconds,
  kSecondsRange,
  kChoice,
  kText,
  kPorts,
  kSegments
};
const char* to_string(OptionType type);

/// A value in the unit of its option. std::monostate: not set, the device chooses.
using OptionValue = std::variant<std::monostate, std::uint64_t, double, std::pair<double, double>, std::string,
                                 SourcePorts, LaneSegments>;

/// Inclusive bounds of kInteger and kBytes.
struct IntegerBounds {
  std::uint64_t least;
  std::uint64_t most;
};
/// Inclusive bounds of kNumber, kBitsPerSecond, kSeconds and both ends of kSecondsRange.
struct RealBounds {
  double least;
  double most;
};
/// The only values of a kChoice, or of a kInteger.
using Choices = std::vector<std::string>;
/// A kText, kPorts or kSegments, whose setter checks it; the words say what is allowed.
struct FreeText {
  const char* allowed;
};

struct Option {
  const char* name;      ///< keyword of hostlib.Device, unit included; "faults.x" is the field x of hostlib.Faults
  const char* variable;  ///< the NCCL plugin's variable; nullptr: the plugin has none
  OptionType type;
  std::variant<IntegerBounds, RealBounds, Choices, FreeText> domain;
  const char* automatic;  ///< what holds while the option is not set; nullptr: the default is a value
  const char* meaning;
  void (*set)(DeviceOptions& options, const OptionValue& value);
  OptionValue (*get)(const DeviceOptions& options);
  const char* former = nullptr;  ///< the variable's former name; front ends refuse it, for it would have no effect
};

/// The value is outside the domain. The front end adds the name, the value and what is allowed.
class OptionNotAllowed : public std::invalid_argument {
 public:
  OptionNotAllowed() : std::invalid_argument("the value is not allowed") {}
};

/// "10.0.0.1", or several joined by '+' for NICs that act as one. Throws std::invalid_argument with a sentence.
void set_addresses(DeviceOptions& options, const std::string& text);

/// All options but the address, in the order of the documentation.
const std::vector<Option>& options();
/// Checks the value against the option's domain and sets it. Throws OptionNotAllowed, std::invalid_argument with a
/// whole sentence for options that exclude each other, and DeviceError for an address or a token file that is unusable.
void set_option(DeviceOptions& options, const Option& option, const OptionValue& value);
/// The allowed values, as words after "must be": "1 to 1024", "soft, tcp or verbs".
std::string allowed_values(const Option& option);
/// A number as people write it: "1000000", "1e15", "0.25".
std::string format_number(double number);

/// Adds the list of source ports for one peer. Throws std::invalid_argument with a sentence when the address is no
/// IP address, the list is empty, or a port is outside RoCEv2's range.
void add_source_ports(SourcePorts& table, const std::string& peer, const std::vector<std::string>& ports);

/// How a front end calls an option: its keyword, or its variable. "" when the front end does not have the option.
using OptionSpelling = std::function<std::string(std::string_view name)>;
/// Checks options against each other. Throws std::invalid_argument with one sentence.
void check_combination(const DeviceOptions& options, const OptionSpelling& spelled);

}  // namespace paralet
