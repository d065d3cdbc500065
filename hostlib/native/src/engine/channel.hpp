// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "engine/handshake.hpp"

namespace paralet {

/// Frames over a non-blocking TCP connection. Every failure ends in closed().
class Channel {
 public:
  explicit Channel(FileDescriptor connected, Nanos dead_after);
  /// Starts connecting from `local`. Throws TransportError when that fails at once.
  Channel(std::uint32_t local, std::uint32_t address, std::uint16_t port, Nanos dead_after);

  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] bool wants_write() const { return connecting_ || !out_.empty(); }

  void send(const handshake::Frame& frame);
  void on_writable();
  /// Reads what is there and returns the whole frames; a malformed one closes the channel.
  std::vector<handshake::Frame> on_readable();

 private:
  static constexpr std::size_t kMaxUnsent = std::size_t{1} << 20;  ///< bytes that a peer may leave unread

  void flush();
  void close(const std::string& reason);
  void configure(Nanos dead_after);

  FileDescriptor socket_;
  bool connecting_ = false;
  bool closed_ = false;
  std::string reason_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

/// A TCP socket that listens on `address` at a port of the kernel's choice. Throws DeviceError.
FileDescriptor listen_tcp(std::uint32_t address, std::uint16_t& port);

}  // namespace paralet
