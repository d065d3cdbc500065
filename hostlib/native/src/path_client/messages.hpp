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
#include <variant>
#include <vector>

#include "base/clock.hpp"
#include "wire/peer_name.hpp"

namespace paralet::path_client {

inline constexpr unsigned kVersion = 1;
inline constexpr std::size_t kMaxLine = std::size_t{1} << 20;  ///< bytes of a line from the service
inline constexpr std::size_t kMaxPorts = 1024;                 ///< in one assignment: the most lanes of a device

// -- from the host ------------------------------------------------------------------------------------------------

struct Hello {
  std::string token;
  PeerName device;  ///< this one
  std::uint64_t instance = 0;
  unsigned lanes = 0;
  bool tcp = false;  ///< lanes are TCP connections, whose protocol number switches hash
};
/// An elephant to `peer` has begun, or has grown.
struct Announce {
  std::uint64_t id = 0;
  PeerName peer;
  std::uint64_t bytes = 0;
  Nanos repeat = 0;  ///< period of such elephants, 0: unknown
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
/// From the data path to the client.
using Event = std::variant<Announce, Release, Measured, Report>;

// Each returns a line with its line feed.
std::string encode(const Hello& hello);
std::string encode(const Announce& announce, const std::string& job);
std::string encode(const Release& release);
std::string encode(std::span<const Measured> flows);
std::string encode(const Report& report);
std::string encode_ping(std::uint64_t nonce);

// -- from the service ---------------------------------------------------------------------------------------------

struct Welcome {};
struct Assign {
  PeerName peer;
  std::vector<std::uint16_t> ports;  ///< of lane 0, 1, ..; empty: ECMP
  std::optional<std::uint64_t> id;   ///< of the elephant, nothing for an assignment without one
  double rate_bps = 0;               ///< 0: no limit
  std::uint64_t generation = 0;
  bool cut = false;  ///< the old path is dead: all packets in flight are lost
};
struct Refusal {
  std::string code;
  std::string text;
};
/// A pong, or a message of a later version.
struct Ignored {};
/// An invalid message.
struct InvalidMessage {
  std::string what;              ///< what is wrong with it
  std::optional<PeerName> peer;  ///< the peer that it was about
  bool fatal = false;            ///< the other side does not speak this protocol: drop the connection
};
using Answer = std::variant<Welcome, Assign, Refusal, Ignored, InvalidMessage>;

/// Decodes a line without its line feed.
Answer decode(std::string_view line);

}  // namespace paralet::path_client
