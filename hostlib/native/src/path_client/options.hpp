// SPDX-License-Identifier: Apache-2.0
// What is set for the `controller` policy: where the path service is, what counts as an elephant, when a lane leaves a
// path that it was given.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.hpp"

namespace paralet::controller {

/// When a lane leaves an assigned port by itself.
struct Thresholds {
  double rtt_ratio = 4;            ///< smoothed round trip above so many times the best of the peer's lanes ..
  std::optional<Nanos> rtt_floor;  ///< .. and above this; nothing: four times the queueing delay aimed at
  double loss = 0.25;              ///< share of packets that are sent again; go-back-N sends a window for each loss
};

struct Options {
  std::string service;  ///< "HOST:PORT"
  std::string token;
  std::string job;  ///< told with every elephant, empty: none
  /// Bytes to one peer, without a pause, from which they are an elephant. 1 MiB takes 0.1 ms at 100 Gbit/s: what is
  /// shorter is over before an answer, about a millisecond later, could help.
  std::uint64_t elephant_bytes = std::uint64_t{1} << 20;
  Nanos assign_wait = 0;  ///< a new elephant waits for its ports so long, 0: it starts on ECMP at once
  Thresholds thresholds;
  Nanos reconnect_least = 50 * kMillisecond;
  Nanos reconnect_most = 1 * kSecond;
  Nanos ping_every = 2 * kSecond;               ///< when there is nothing else to say
  Nanos silence = 6 * kSecond;                  ///< a service that says nothing for so long is gone
  std::function<void(const std::string&)> log;  ///< sentences for people; nothing: standard error
};

struct Address {
  std::uint32_t address = 0;  ///< IPv4, host byte order
  std::uint16_t port = 0;
};

/// Throws DeviceError when the text is no HOST:PORT. Does not look the host up.
void check_service(const std::string& service);

/// Finds the service once. Throws DeviceError when the text is no HOST:PORT or the host has no IPv4 address.
Address resolve(const std::string& service);

/// The token in a file that only its owner may read. Throws DeviceError when it is missing, open to others, or no
/// token.
std::string read_token(const std::string& path);

/// Whether a text may be a job's name: up to 64 printable ASCII characters without blanks.
bool is_job(const std::string& text);

/// Throws DeviceError for what cannot work.
void check(const Options& options);

}  // namespace paralet::controller
