// SPDX-License-Identifier: Apache-2.0
// An attacker's access to the wire: a UDP socket on a loopback address that sends any bytes and receives the answers.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <system_error>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"
#include "soft/udp_sockets.hpp"
#include "wire/icrc.hpp"
#include "wire/wire.hpp"

namespace paralet::fuzz {

class UdpEndpoint {
 public:
  /// `traffic_class`: the TOS byte of all packets.
  explicit UdpEndpoint(std::uint32_t address, int traffic_class = 0)
      : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), address_(address) {
    ::setsockopt(socket_.get(), IPPROTO_IP, IP_TOS, &traffic_class, sizeof traffic_class);
    SocketAddress local(address, 0);
    if (::bind(socket_.get(), local.get(), local.length()) != 0 ||
        ::getsockname(socket_.get(), local.get(), local.length_place()) != 0) {
      throw std::system_error(errno, std::generic_category(), "a loopback address cannot be bound");
    }
    port_ = local.port();
  }

  [[nodiscard]] std::uint32_t address() const { return address_; }
  [[nodiscard]] std::uint16_t port() const { return port_; }

  /// Sends `datagrams` as one UDP_SEGMENT batch of packets of `segment_bytes`, or one packet when that is 0.
  void send(std::uint32_t to, std::uint16_t port, std::span<std::byte> datagrams, std::size_t segment_bytes = 0) const {
    iovec piece{.iov_base = datagrams.data(), .iov_len = datagrams.size()};
    send_batch(socket_.get(), to, port, {&piece, 1}, static_cast<std::uint16_t>(segment_bytes));
  }

  /// The next datagram received, empty when there is none.
  std::span<const std::byte> receive() {
    const ssize_t got = ::recv(socket_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    return {buffer_.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
  }

  /// Writes the ICRC into the last four bytes of a packet to `to`, `port`.
  void seal(std::span<std::byte> datagram, std::uint32_t to, std::uint16_t port, std::uint16_t ip_id = 0) const {
    if (datagram.size() < wire::kIcrcBytes) return;
    const UdpFlow flow{.src_address = address_, .dst_address = to, .src_port = port_, .dst_port = port};
    const auto covered = datagram.first(datagram.size() - wire::kIcrcBytes);
    put_icrc(datagram.data() + covered.size(), icrc(flow, ip_id, covered, {}));
  }

 private:
  FileDescriptor socket_;
  std::uint32_t address_;
  std::uint16_t port_ = 0;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(1 << 16);
};

}  // namespace paralet::fuzz
