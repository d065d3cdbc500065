// SPDX-License-Identifier: Apache-2.0
// The system calls of connections that carry lanes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/ip_address.hpp"

namespace paralet::tcp {

/// What all sockets of a device have in common.
struct SocketSettings {
  IpAddress address;
  std::uint8_t traffic_class = 0;  ///< IPv4 TOS or IPv6 traffic class; the kernel sets the ECN bits itself
  std::string congestion;          ///< the kernel's congestion control by name, "": its default
  Nanos retry_time = 10 * kSecond;
};

/// A listening socket on port 4791, or on one that the kernel chooses where another socket listens there. Throws
/// DeviceError, also where the kernel has no congestion control of that name.
FileDescriptor listen(const SocketSettings& settings, std::uint16_t& port);

/// An accepted connection, not valid when none waits.
struct Accepted {
  FileDescriptor socket;
  IpAddress address;
  std::uint16_t port = 0;
};
Accepted accept(int listener, const SocketSettings& settings);

/// Begins to connect from this source port. Not valid, and errno says why, when that fails at once.
FileDescriptor connect(const SocketSettings& settings, std::uint16_t source_port, const IpAddress& address,
                       std::uint16_t port);
/// Whether an errno of `connect` means that the source port is taken: by another program, by another connection to the
/// same peer, or by one that ended a moment ago (TIME_WAIT).
bool port_taken(int error);
/// The errno of a connection, 0 while it has none.
int error_of(int socket);

/// Closes with a reset, so that no TIME_WAIT keeps the port. What has arrived at the other end can still be read there.
void reset(FileDescriptor& socket);
/// The kernel drops all that arrives from now on and acknowledges none of it.
void deafen(int socket);

/// What has been read is acknowledged now, and what follows at once. The kernel holds acknowledgements back for 40 ms
/// (TCP_DELACK_MIN in its include/net/tcp.h), and the other end would wait for them:
/// - on a connection that has sent something, to send them with the next answer (inet_csk_in_pingpong_mode);
/// - behind the second of two segments of one length: it takes them for the longest that the sender makes, and expects
///   another (tcp_measure_rcv_mss, net/ipv4/tcp_input.c).
void acknowledge_at_once(int socket);

/// What is read from now on is acknowledged by `acknowledge_at_once`, or by the kernel: 40 ms later, or when more than
/// a segment has come. Otherwise it would send an acknowledgement in every call that reads short messages.
void acknowledge_later(int socket);

/// Bytes handed over that the other end has not acknowledged.
std::uint64_t unacknowledged(int socket);

/// What TCP measures of a connection.
struct TcpState {
  Nanos smoothed_rtt = 0;  ///< 0: not measured
  Nanos min_rtt = 0;
  double window_bytes = 0;          ///< congestion window
  std::uint64_t segments_sent = 0;  ///< with data
  std::uint64_t segments_received = 0;
  std::uint64_t bytes_repeated = 0;
  std::uint64_t repeats = 0;  ///< segments sent again
  std::uint64_t marked = 0;   ///< segments that the other end reported as marked (ECN)
  bool in_flight = false;     ///< something has been sent that is not acknowledged

  /// Adds the counters of another connection. What is no counter stays.
  TcpState operator+(const TcpState& other) const;
};
TcpState state_of(int socket);

}  // namespace paralet::tcp
