// SPDX-License-Identifier: Apache-2.0
// What the kernel's error queue of a socket tells (ip(7), IP_RECVERR). No system call is made here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/ip_address.hpp"
#include "base/socket_address.hpp"
#include "prober/observation.hpp"

namespace paralet::prober {

/// kTimeExceeded: ICMP "time to live exceeded in transit" or ICMPv6 "hop limit exceeded in transit". kUnreachable: no
/// way to the host, or its port is closed. kLocal: the kernel of this host. kOther: any other message.
enum class ErrorKind : std::uint8_t { kTimeExceeded, kUnreachable, kLocal, kOther };

struct QueuedError {
  ErrorKind kind = ErrorKind::kOther;
  int number = 0;    ///< errno
  IpAddress sender;  ///< of the ICMP message; :: of kLocal
};

/// The error in the control messages of a recvmsg with MSG_ERRQUEUE. Nothing when they hold none that is whole.
std::optional<QueuedError> parse_queued_error(std::span<const std::byte> control);

/// Whether what an ICMP message quotes can be of this probe. The kernel has found the socket by the quoted source
/// address and port. `destination` is the quoted one, `quoted` are the quoted bytes: what follows the UDP header, or
/// the TCP header. Routers may quote only 8 bytes behind the IP header (RFC 792), so `quoted` may be short; each byte
/// of it that is there must be that of `payload`, which was sent.
bool quotes(const Target& target, std::uint16_t source_port, std::span<const std::byte> payload,
            const SocketAddress& destination, std::span<const std::byte> quoted);

}  // namespace paralet::prober
