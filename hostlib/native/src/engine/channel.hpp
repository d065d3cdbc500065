// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/ip_address.hpp"
#include "engine/handshake.hpp"

namespace paralet {

/// Handshake frames over a non-blocking TCP connection. After any failure closed() is true and reason() says why.
class Channel {
 public:
  /// Over a connected socket. The kernel closes the connection if the peer does not answer for `dead_after`.
  explicit Channel(FileDescriptor connected, Nanos dead_after);
  /// Starts connecting from `local`. Throws TransportError when that fails at once.
  Channel(const IpAddress& local, const IpAddress& address, std::uint16_t port, Nanos dead_after);

  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool connecting() const { return connecting_; }
  [[nodiscard]] bool closed() const { return closed_; }
  /// After closed(): whether the network failed, rather than the peer ended the connection or sent nonsense.
  [[nodiscard]] bool lost() const { return lost_; }
  /// Makes the end of this object a reset of the connection, which the peer can tell from its end.
  void reset_at_end();
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] bool wants_write() const { return connecting_ || !out_.empty(); }

  void send(const handshake::Frame& frame);
  void on_writable();
  /// Reads what has arrived and returns the complete frames; a malformed frame closes the channel.
  std::vector<handshake::Frame> on_readable();

 private:
  static constexpr std::size_t kMaxUnsent = std::size_t{1} << 20;  ///< bytes; a peer that leaves more unread is closed

  void flush();
  void close(const std::string& reason, bool lost = false);
  void configure(Nanos dead_after);

  FileDescriptor socket_;
  bool connecting_ = false;
  bool closed_ = false;
  bool lost_ = false;
  std::string reason_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

/// A TCP socket that listens on `address`; the kernel chooses `port`. Throws DeviceError.
FileDescriptor listen_tcp(const IpAddress& address, std::uint16_t& port);

}  // namespace paralet
