// SPDX-License-Identifier: Apache-2.0
// Options of the `controller` policy: where the path service is, what counts as an elephant, and when a lane leaves an
// assigned path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "base/log.hpp"
#include "path_client/channel.hpp"

namespace paralet::path_client {

/// When a lane leaves an assigned port: its smoothed round trip is above both rtt_ratio times the best of the peer's
/// lanes and rtt_floor, or its loss is above `loss`.
struct Thresholds {
  double rtt_ratio = 4;
  std::optional<Nanos> rtt_floor;  ///< nothing: four times the target queueing delay
  double loss = 0.25;              ///< share of packets sent again; go-back-N sends a window again for each loss
};

struct Options {
  std::string service;  ///< "HOST:PORT", an IPv6 address in brackets; with a standby both, between them a comma
  std::string token;
  TlsFiles tls;     ///< without them lines travel in the clear
  std::string job;  ///< sent with every elephant, empty: none
  /// Bytes to one peer without a pause that make an elephant. 1 MiB takes 0.1 ms at 100 Gbit/s: shorter traffic ends
  /// before an answer, about a millisecond later, could help.
  std::uint64_t elephant_bytes = std::uint64_t{1} << 20;
  Nanos assign_wait = 0;    ///< how long a new elephant waits for its ports, 0: it starts on ECMP at once
  double probe_rate = 100;  ///< probes per second for a service that asks for them, 0: none
  Thresholds thresholds;
  Nanos reconnect_least = 50 * kMillisecond;
  Nanos reconnect_most = 10 * kSecond;
  Nanos ping_every = 2 * kSecond;  ///< interval of pings on an idle connection
  Nanos silence = 6 * kSecond;     ///< a service that leaves pings unanswered for this long counts as gone
  Log log;                         ///< takes messages for the user; nothing: standard error
};

struct Address {
  std::string host;  ///< as it was given, without brackets
  IpAddress address;
  std::uint16_t port = 0;
};

/// Throws DeviceError when the text is not one or more HOST:PORT with commas between them. Resolves no host.
void check_service(const std::string& service);

/// Resolves the addresses of the service, one or more. Throws DeviceError as `check_service`, and when a host has no
/// address.
std::vector<Address> resolve(const std::string& service);

/// Reads a token file. Throws DeviceError when the file is missing, other users may access it, or it holds no token.
std::string read_token(const std::string& path);

/// Whether a text is a valid job name: up to 64 printable ASCII characters without blanks.
bool is_job(const std::string& text);

/// Throws DeviceError for invalid options.
void check(const Options& options);

}  // namespace paralet::path_client
