// SPDX-License-Identifier: Apache-2.0
// What a prober is asked, and what it finds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.hpp"
#include "base/ip_address.hpp"

namespace paralet::prober {

enum class Protocol : std::uint8_t { kUdp, kTcp };

/// A pair of addresses, and the port on which the far one receives.
struct Target {
  IpAddress from;
  IpAddress to;
  std::uint16_t destination_port = 0;
  Protocol protocol = Protocol::kUdp;
};

/// A packet from one source port whose time to live ends at hop `ttl`.
struct Probe {
  std::size_t target = 0;  ///< its number
  std::uint16_t source_port = 0;
  std::uint8_t ttl = 1;
  std::uint32_t qpn = 0;  ///< of UDP: the destination QPN that it carries, since some switches hash it
  bool once = false;      ///< ports are sought, and one without an answer is replaced: see `Schedule`
  bool first = false;     ///< it leaves before others that wait for the same routers

  bool operator==(const Probe&) const = default;
};

/// kHop: a router let the time to live run out. kDestination: the destination itself answered. kNone: nobody did, in
/// time.
enum class Answer : std::uint8_t { kHop, kDestination, kNone };

/// One packet sent, and its answer.
struct Observation {
  Probe probe;
  Answer answer = Answer::kNone;
  std::optional<IpAddress> router;  ///< who answered
  Nanos sent_at = 0;
  Nanos answered_at = 0;
};

/// A probe that this host could not send, or that a router or host refused.
struct Failure {
  Probe probe;
  int error = 0;                    ///< errno
  std::optional<IpAddress> router;  ///< who refused; nothing when it was this host's kernel
};

}  // namespace paralet::prober
