// SPDX-License-Identifier: Apache-2.0
// Messages between a host and the path service: one JSON object per line (docs/path-service.md). No I/O. All input from
// the service is validated here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.hpp"
#include "wire/peer_name.hpp"

namespace paralet::path_client {

inline constexpr unsigned kVersion = 2;
inline constexpr unsigned kOldestVersion = 1;  ///< without probes; said to a service that refuses the newest
inline constexpr std::size_t kMaxLine = std::size_t{1} << 20;  ///< bytes of a line from the service
inline constexpr std::size_t kMaxPorts = 1024;                 ///< in one assignment: the most lanes of a device
inline constexpr std::size_t kMaxProbedPorts = 64;             ///< in one line about probes

// -- from the host ------------------------------------------------------------------------------------------------

/// A program's place in its job.
struct Rank {
  unsigned rank = 0;
  unsigned ranks = 0;  ///< of the job; 0: neither is known
};
struct Hello {
  std::string token;
  PeerName device;  ///< this one
  std::uint64_t instance = 0;
  unsigned lanes = 0;
  bool tcp = false;    ///< lanes are TCP connections, whose protocol number switches hash
  bool fixed = false;  ///< its elephants cannot change their ports
  bool paths = false;  ///< it wants `Assign::paths`
  unsigned version = kVersion;
  std::uint64_t generation = 0;  ///< highest of the services that have welcomed this host
  std::uint64_t voted = 0;       ///< the highest generation in which it has voted, 0: none
  std::string job;               ///< that of `rank`
  Rank rank;
};
/// An elephant to `peer` has begun, or has grown.
struct Announce {
  std::uint64_t id = 0;
  PeerName peer;
  std::uint64_t bytes = 0;
  Nanos repeat = 0;  ///< period of such elephants, 0: unknown
  /// With which it has begun, as in `Begun`, which may have been lost; 0: not yet, or it can change its port.
  std::uint16_t port = 0;
};
/// A fixed client's elephant begins from this port, and keeps it. Not sent: its announcements tell the port from now
/// on, also those to the next service.
struct Begun {
  std::uint64_t id = 0;
  std::uint16_t port = 0;
};
struct Release {
  std::uint64_t id = 0;
};
/// The throughput of an elephant since its last measurement.
struct Measured {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  Nanos duration = 0;
  Nanos rtt = 0;
  std::uint64_t retransmits = 0;
};
enum class Reason : std::uint8_t { kRtt, kLoss };
/// A lane has left its assigned port, because the path is bad.
struct Report {
  std::uint64_t id = 0;
  unsigned lane = 0;
  std::uint16_t port = 0;
  Reason reason = Reason::kRtt;
  double value = 0;  ///< kRtt: smoothed round trip in seconds; kLoss: share of packets sent again (1 for silence)
};
/// The QPs of a peer's lanes are connected. Not sent: probes carry their numbers, since some switches hash them.
struct LanesConnected {
  PeerName peer;
  unsigned first = 0;               ///< the first of the lanes
  std::vector<std::uint32_t> qpns;  ///< the peer's, of this lane, the next one, ..
};
enum class PortAnswer : std::uint8_t { kHop, kDestination, kNone, kFailed };
/// Who answered a probe from a source port. kNone: nobody, after all attempts. kFailed: this host could not send it.
struct ProbedPort {
  std::uint16_t port = 0;
  PortAnswer answer = PortAnswer::kNone;
  std::optional<IpAddress> router;  ///< who answered, of kHop and kDestination
  Nanos round_trip = 0;             ///< of the same

  bool operator==(const ProbedPort&) const = default;
};
/// The answers to a ProbeAsk, one for each of its ports.
struct Probed {
  std::uint64_t ask = 0;
  std::vector<ProbedPort> answers;
};
/// Watched ports whose packets take another way now, or none.
struct Moved {
  PeerName peer;
  std::uint8_t ttl = 1;  ///< of the watch
  std::vector<ProbedPort> answers;
};
/// The service that this host voted for as the one of a generation.
struct Vote {
  std::uint64_t generation = 0;
  std::string service;  ///< its name, which it has chosen at random
  bool trial = false;   ///< only says for whom this host would vote

  bool operator==(const Vote&) const = default;
};
/// From the data path to the client.
using Event = std::variant<Announce, Begun, Release, Measured, Report, LanesConnected>;

// Each returns a line with its line feed.
std::string encode(const Hello& hello);
/// `port`: from which the elephant of a fixed client has begun; 0: none.
std::string encode(const Announce& announce, const std::string& job, std::uint16_t port = 0);
std::string encode(const Release& release);
std::string encode(std::span<const Measured> flows);
std::string encode(const Report& report);
std::string encode_ping(std::uint64_t nonce);
/// Tells that this host probes, at most at this rate in packets per second, watches a port at several hops, and knows
/// `ProbeAsk::once` and `ProbeAsk::until`.
std::string encode_probe(double rate);
std::string encode(const Probed& probed);
std::string encode(const Vote& voted);
/// Of at most kMaxProbedPorts answers.
std::string encode(const Moved& moved);

// -- from the service ---------------------------------------------------------------------------------------------

/// The ports by which packets leave switches, as the service names them.
using Path = std::vector<std::string>;

struct Welcome {
  unsigned version = kOldestVersion;
  std::uint64_t generation = 0;  ///< of the service: higher than of all before it; 0: it does not say
  // From version 2 on.
  bool probe = false;       ///< the service would like this host to probe
  double router_rate = 1;   ///< answers per second that a router gives one host; 0: unlimited. Linux's default
  double router_burst = 6;  ///< answers that a router gives at once
};
struct Assign {
  PeerName peer;
  std::vector<std::uint16_t> ports;  ///< of lane 0, 1, ..; empty: ECMP
  std::optional<std::uint64_t> id;   ///< of the elephant, nothing for an assignment without one
  double rate_bps = 0;               ///< 0: no limit
  std::uint64_t generation = 0;
  bool cut = false;         ///< the old path is dead: all packets in flight are lost
  std::vector<Path> paths;  ///< of each port, or one for all; empty: it does not say
};
struct Refusal {
  std::string code;
  std::string text;
};
/// Asks for a probe from each of these source ports.
struct ProbeAsk {
  std::uint64_t ask = 0;  ///< its number
  PeerName peer;
  std::uint8_t ttl = 1;
  std::vector<std::uint16_t> ports;  ///< 1 to kMaxProbedPorts, each once
  double rate = 0;                   ///< packets per second, 0: as this host likes
  bool once = false;                 ///< ports are sought: one without an answer is replaced, and not probed again
  std::vector<IpAddress> until;      ///< the ports are done when one of these routers has answered
};
/// Asks for a probe from each of these source ports once a period, in place of what was watched before of this peer
/// with this time to live.
struct Watch {
  struct Port {
    std::uint16_t port = 0;
    IpAddress router;  ///< expected to answer
  };
  PeerName peer;
  std::uint8_t ttl = 1;
  Nanos period = 0;
  std::vector<Port> ports;  ///< at most kMaxProbedPorts, each once
};
/// A service asks for this host's vote to be the one of a generation.
struct VoteAsk {
  Vote vote;
};
/// A pong, or a message of a later version.
struct Ignored {};
/// An invalid message.
struct InvalidMessage {
  std::string what;              ///< what is wrong with it
  std::optional<PeerName> peer;  ///< the peer that it was about
  bool fatal = false;            ///< the other side does not speak this protocol: drop the connection
};
using Answer = std::variant<Welcome, Assign, Refusal, ProbeAsk, Watch, VoteAsk, Ignored, InvalidMessage>;

/// Decodes a line without its line feed.
Answer decode(std::string_view line);

}  // namespace paralet::path_client
