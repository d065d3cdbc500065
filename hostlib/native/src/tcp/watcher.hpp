// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <span>

#include "base/file_descriptor.hpp"

namespace paralet::tcp {

/// One edge-triggered epoll for all sockets of a device: a look at thousands of idle lanes is one system call.
class Watcher {
 public:
  /// Throws DeviceError.
  Watcher();

  /// Watches the socket of this QP (0: of none yet) for everything. Returns a number that no later socket gets; 0 when
  /// the kernel refuses.
  std::uint64_t add(int socket, std::uint32_t qpn);
  /// The socket is of this QP from now on, has this new number, and is watched for what arrives. An event that is due
  /// comes again. With room to send as an event too, each arrival that was read before the next look would be one.
  std::uint64_t assign(int socket, std::uint32_t qpn);
  /// The QP of a socket's number.
  [[nodiscard]] static std::uint32_t qpn_of(std::uint64_t watched) {
    return static_cast<std::uint32_t>(watched & ((1U << kQpnBits) - 1));
  }
  /// Before the socket is closed: a forked child may keep it open, and its events would go on.
  void remove(int socket);
  /// What has become ready since the last call: up to as many as fit `out`. Does not wait.
  std::span<const epoll_event> ready(std::span<epoll_event> out) const;
  [[nodiscard]] int fd() const { return epoll_.get(); }

 private:
  static constexpr unsigned kQpnBits = 24;

  std::uint64_t control(int operation, int socket, std::uint32_t qpn, std::uint32_t events);

  FileDescriptor epoll_;
  std::uint64_t next_ = 1;
};

}  // namespace paralet::tcp
