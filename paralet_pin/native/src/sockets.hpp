// SPDX-License-Identifier: Apache-2.0
// Sockets of the program: which of them get a planned port, and when. Nothing here allocates, locks, or keeps a
// descriptor, so it may run in a signal handler and between fork and exec.
#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "agent_link.hpp"
#include "networks.hpp"

namespace paralet::pin {

/// The C library's functions, or those of a library that was loaded after this one.
struct Calls {
  int (*connect)(int, const sockaddr*, socklen_t) = nullptr;
  int (*bind)(int, const sockaddr*, socklen_t) = nullptr;
  int (*getsockname)(int, sockaddr*, socklen_t*) = nullptr;
  int (*setsockopt)(int, int, int, const void*, socklen_t) = nullptr;
};

class Sockets {
 public:
  /// `wait` bounds what one connect waits for its port.
  Sockets(const AgentLink& agent, const Networks& networks, const Calls& calls, Nanos wait)
      : agent_(agent), networks_(networks), calls_(calls), wait_(wait) {}

  /// The program has made `fd` by socket(2).
  void made(int fd, int domain, int type) {
    if (fd < 0 || static_cast<std::size_t>(fd) >= kDescriptors) return;
    const bool datagrams = (domain == AF_INET || domain == AF_INET6) && (type & 0xF) == SOCK_DGRAM;
    marks_[static_cast<std::size_t>(fd)].store(datagrams ? kUnsent : 0, std::memory_order_relaxed);
  }
  /// Connects `fd`, from its planned port.
  int connect(int fd, const sockaddr* to, socklen_t length);
  /// It is about to connect `fd`. Returns the id of the TCP flow to whose planned port it has bound `fd`, or 0.
  std::uint64_t connecting(int fd, const sockaddr* to, socklen_t length);
  /// It is about to send a datagram; `to` may be nullptr.
  void sending(int fd, const sockaddr* to, socklen_t length) {
    if (marked(fd, kUnsent)) first_send(fd, to, length);
  }
  /// Binds `fd`. A socket that is bound to an address of a fabric, or to any address, without a port gets its port no
  /// earlier than it has to, so that `connecting` and `sending` can still choose it.
  int bind(int fd, const sockaddr* to, socklen_t length);
  /// It is about to ask for the name of `fd`, or to listen: a port that `bind` has left out is chosen now, whichever
  /// descriptor or process it was bound by.
  void settle(int fd);
  /// It is about to set IP_BIND_ADDRESS_NO_PORT: whether the port of `fd` is left out is its own choice from here on.
  /// Other descriptors of the same socket do not know of this: a port is chosen when their name is asked for.
  void leaving_port_out(int fd) {
    settle(fd);
    mark(fd, kOwnChoice, true);
  }

 private:
  // Marks of a descriptor. One that the program has closed may leave its mark to the next of the same number: a mark
  // only says where to look closer.
  static constexpr std::uint8_t kUnsent = 1;     ///< datagrams, of which none was sent
  static constexpr std::uint8_t kOwnChoice = 2;  ///< a port that is left out stays so: not by `bind`, or not yet bound
  static constexpr std::uint8_t kTold = 4;       ///< the agent knows that it is not pinned
  static constexpr std::size_t kDescriptors = 65536;

  [[nodiscard]] bool marked(int fd, std::uint8_t mark) const {
    return fd >= 0 && static_cast<std::size_t>(fd) < kDescriptors &&
           (marks_[static_cast<std::size_t>(fd)].load(std::memory_order_relaxed) & mark) != 0;
  }
  void mark(int fd, std::uint8_t mark, bool on);
  void first_send(int fd, const sockaddr* to, socklen_t length);
  std::uint64_t pin(int fd, bool tcp, const sockaddr* to, socklen_t length);

  AgentLink agent_;
  Networks networks_;
  Calls calls_;
  Nanos wait_;
  std::array<std::atomic<std::uint8_t>, kDescriptors> marks_{};
};

}  // namespace paralet::pin
