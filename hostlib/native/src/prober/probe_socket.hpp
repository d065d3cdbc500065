// SPDX-License-Identifier: Apache-2.0
// Sockets that send one probe each. No privilege is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/file_descriptor.hpp"
#include "prober/observation.hpp"
#include "prober/queued_error.hpp"

namespace paralet::prober {

/// The outcome of sending: a socket, or an error number.
struct SentProbe {
  FileDescriptor socket;
  int error = 0;
  Nanos sent_at = 0;
};

/// Sends a UDP datagram with `payload`, from a socket that is not connected: the kernel marks the packets of connected
/// ones with a hash of its own, which virtual switches take instead of the header's.
SentProbe send_udp(const Target& target, const Probe& probe, std::span<const std::byte> payload);

/// Sends a SYN. A destination that it reaches may accept the connection, which closing the socket resets.
SentProbe send_syn(const Target& target, const Probe& probe);

/// An error that a socket has queued, with what it quotes.
struct QuotedError {
  QueuedError error;
  bool of_probe = false;  ///< what it quotes can be of this probe
};

/// The next error of the socket's queue; nothing when there is none. One that cannot be parsed is none of the probe.
std::optional<QuotedError> next_error(int fd, const Target& target, const Probe& probe,
                                      std::span<const std::byte> payload);

/// Of a SYN that queues no error: whether the destination has answered, by accepting or refusing.
bool destination_answered(int fd);

}  // namespace paralet::prober
