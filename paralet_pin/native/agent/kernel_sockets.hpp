// SPDX-License-Identifier: Apache-2.0
// The sockets of this network namespace, as the kernel tells of them (sock_diag(7)); no privilege is needed.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/ip_address.hpp"

struct inet_diag_req_v2;

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
  unsigned timeouts = 0;   ///< retransmissions in a row that had no answer in time
  bool connected = false;  ///< the other side has answered the SYN
};

/// What the kernel says of a connection.
enum class Found : std::uint8_t {
  kUnknown,   ///< nothing
  kNone,      ///< there is none
  kBound,     ///< there is none, but its port is that of a socket that may still connect
  kTimeWait,  ///< it has ended, and its ports cannot be used yet
  kSocket,    ///< it is there, or a socket listens at its local port
};

/// A connection to look for.
struct Sought {
  Connection connection;
  bool may_retry = false;  ///< its socket may stay open without it, and connect again
};

/// A port, and the address that it is bound at: :: is every address, of both families.
using LocalPort = std::pair<IpAddress, std::uint16_t>;

/// Whether a socket of TCP has this port, or a connection in TIME_WAIT. Binds the port for some microseconds; a flow to
/// another peer that binds the same port then goes on to its next slot.
bool is_taken(const IpAddress& local, std::uint16_t port);

class KernelSockets {
 public:
  /// Throws std::system_error when the kernel refuses.
  KernelSockets();
  /// Asks this socket in place of the kernel's. It has a timeout for what it receives.
  explicit KernelSockets(FileDescriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] Found find(const Connection& connection);
  /// In the same order. kBound is found only of sockets that may retry; where the kernel's list of these fails, of all
  /// of them whose ports are taken.
  [[nodiscard]] std::vector<Found> find_all(const std::vector<Sought>& sought);
  /// All connections, but those in TIME_WAIT; one that changes while the kernel lists them may be missing. Nothing
  /// where the kernel did not tell all.
  [[nodiscard]] std::optional<std::map<Connection, Traffic>> connections();
  /// The ports of sockets of TCP that are bound, and neither connect nor listen. Nothing where the kernel did not tell
  /// all. Linux before 6.8 tells of none of them.
  [[nodiscard]] std::optional<std::set<LocalPort>> unconnected();
  /// The ports to which sockets for datagrams are bound. Nothing where the kernel did not tell all.
  [[nodiscard]] std::optional<std::set<std::uint16_t>> datagram_ports();

 private:
  /// Asks for one socket, or for all of them, and calls `each` with every one and the length of its message. 0 when the
  /// kernel has told all, else an error number.
  template <typename Each>
  int ask(const inet_diag_req_v2& body, bool all, Each&& each);
  /// All sockets of both families. False when some may be missing.
  template <typename Each>
  bool dump(std::uint8_t protocol, std::uint32_t states, Each&& each);

  FileDescriptor socket_;
  std::uint32_t number_ = 0;  ///< of the last request: answers to earlier ones may still come
  std::vector<char> room_ = std::vector<char>(std::size_t{1} << 16);
};

}  // namespace paralet::pin
