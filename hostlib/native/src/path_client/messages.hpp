// SPDX-License-Identifier: Apache-2.0
// What a host and the path service say to each other: one JSON object per line (docs/path-service.md). Pure: text in,
// values out. What comes from the service is checked here and nowhere else.
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

namespace paralet::controller {

inline constexpr unsigned kVersion = 1;
inline constexpr std::size_t kMaxLine = std::size_t{1} << 20;  ///< bytes that the service may put in a line
inline constexpr std::size_t kMaxPorts = 1024;                 ///< in one assignment: as many as a device has lanes

// -- from the host ------------------------------------------------------------------------------------------------

struct Hello {
  std::string token;
  PeerName device;  ///< this one
  std::uint64_t instance = 0;
  unsigned lanes = 0;
};
/// An elephant to `peer` begins, or has grown.
struct Announce {
  std::uint64_t id = 0;
  PeerName peer;
  std::uint64_t bytes = 0;
  Nanos repeat = 0;  ///< how often such elephants come, 0: not known
};
struct Release {
  std::uint64_t id = 0;
};
/// What an elephant got since it was measured last.
struct Measured {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  Nanos duration = 0;
  Nanos rtt = 0;
  std::uint64_t retransmits = 0;
};
enum class Reason : std::uint8_t { kRtt, kLoss };
/// A lane left its assigned port by itself.
struct Report {
  std::uint64_t id = 0;
  unsigned lane = 0;
  std::uint16_t port = 0;
  Reason reason = Reason::kRtt;
  double value = 0;  ///< seconds of smoothed round trip, or the share of packets sent again (1 for silence)
};
/// What the data path tells its client.
using Event = std::variant<Announce, Release, Measured, Report>;

// Lines with their line feed.
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
  std::optional<std::uint64_t> id;   ///< nothing: not for an elephant that was announced
  double rate_bps = 0;               ///< 0: no limit
  std::uint64_t generation = 0;
  bool cut = false;  ///< the path before is dead: nothing in flight arrives
};
struct Refusal {
  std::string code;
  std::string text;
};
/// A pong, or something that a later version says.
struct Ignored {};
struct Nonsense {
  std::string what;              ///< is wrong
  std::optional<PeerName> peer;  ///< whose paths it was about
  bool hopeless = false;         ///< nothing that follows can be trusted to be a line of this protocol
};
using Answer = std::variant<Welcome, Assign, Refusal, Ignored, Nonsense>;

/// A line without its line feed.
Answer decode(std::string_view line);

}  // namespace paralet::controller
