// SPDX-License-Identifier: Apache-2.0
// The sockets of this network namespace, as the kernel tells of them (sock_diag(7)); no privilege is needed.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>

#include "base/file_descriptor.hpp"
#include "base/ip_address.hpp"

namespace paralet::pin {

/// A TCP connection, from this side.
struct Connection {
  IpAddress local;
  std::uint16_t port = 0;
  IpAddress remote;
  std::uint16_t remote_port = 0;
  auto operator<=>(const Connection&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes
};

struct Traffic {
  std::uint64_t sent_bytes = 0;  ///< that the other side has acknowledged
  std::uint64_t received_bytes = 0;
};

class KernelSockets {
 public:
  /// Throws std::system_error when the kernel refuses.
  KernelSockets();

  /// Whether a connection exists in any state, TIME_WAIT included, or a socket listens at its local port. False where
  /// the kernel does not say.
  [[nodiscard]] bool has(const Connection& connection);
  /// All connections, but those in TIME_WAIT. Empty where the kernel does not say.
  [[nodiscard]] std::map<Connection, Traffic> connections();
  /// The ports to which sockets for datagrams are bound.
  [[nodiscard]] std::set<std::uint16_t> datagram_ports();

 private:
  template <typename Each>
  void dump(std::uint8_t protocol, std::uint32_t states, Each&& each);

  FileDescriptor socket_;
};

}  // namespace paralet::pin
