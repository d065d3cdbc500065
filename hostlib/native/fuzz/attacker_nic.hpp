// SPDX-License-Identifier: Apache-2.0
// What the attacker reaches a member of the victim through: TCP connections and a UDP port.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "engine/channel.hpp"
#include "engine/handshake.hpp"
#include "script.hpp"
#include "udp_endpoint.hpp"
#include "wire/wire.hpp"

namespace paralet::fuzz {

/// A TCP connection of the attacker. It ends with a reset, unless `finish` came before.
class Tcp {
 public:
  explicit Tcp(FileDescriptor connected) : socket_(std::move(connected)) { linger_for({.l_onoff = 1, .l_linger = 0}); }
  /// Ends the stream, which ends a fused peer. A reset ends only the path.
  void finish() const {
    linger_for({});
    ::shutdown(socket_.get(), SHUT_WR);
  }
  void send(std::span<const std::byte> bytes) const {
    ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void send(const handshake::Frame& frame) const { send(handshake::encode(frame)); }
  std::vector<handshake::Frame> receive() {
    std::array<std::byte, 4096> chunk;
    for (;;) {
      const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
      if (got <= 0) break;
      in_.insert(in_.end(), chunk.begin(), chunk.begin() + got);
    }
    std::vector<handshake::Frame> out;
    while (in_.size() >= 4 && in_.size() - 4 >= wire::get_u32(in_.data())) {
      const std::size_t length = wire::get_u32(in_.data());
      const auto frame = handshake::decode({in_.data() + 4, length});
      require(frame.has_value());
      out.push_back(*frame);
      in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(4 + length));
    }
    return out;
  }

 private:
  void linger_for(const linger& how) const { setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &how, sizeof how); }

  FileDescriptor socket_;
  std::vector<std::byte> in_;
};

/// A NIC of the attacker.
struct Nic {
  explicit Nic(std::uint32_t address) : udp(address), listening(listen_tcp(address, listen_port)) {}
  UdpEndpoint udp;
  std::uint16_t listen_port = 0;
  FileDescriptor listening;
  std::optional<Tcp> tcp;
  std::vector<Tcp> finished;
  std::uint16_t victim_udp_port = 0;  ///< of the victim's member of the same index
};

}  // namespace paralet::fuzz
