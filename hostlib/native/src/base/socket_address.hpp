// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

#include "base/ip_address.hpp"

namespace paralet {

/// The family of an address's sockets.
inline int family_of(const IpAddress& address) { return address.is_ipv4() ? AF_INET : AF_INET6; }

/// A sockaddr_in or sockaddr_in6, for calls of sockets.
class SocketAddress {
 public:
  /// Room for the kernel to write either.
  SocketAddress() = default;
  SocketAddress(const IpAddress& address, std::uint16_t port) {
    if (address.is_ipv4()) {
      any_.v4.sin_family = AF_INET;
      any_.v4.sin_addr.s_addr = htonl(address.ipv4());
      any_.v4.sin_port = htons(port);
      length_ = sizeof any_.v4;
    } else {
      any_.v6.sin6_family = AF_INET6;
      std::memcpy(&any_.v6.sin6_addr, address.bytes().data(), sizeof any_.v6.sin6_addr);
      any_.v6.sin6_port = htons(port);
    }
  }

  /// A copy of a sockaddr_in or sockaddr_in6.
  explicit SocketAddress(const sockaddr* given)
      : length_(given->sa_family == AF_INET ? sizeof any_.v4 : sizeof any_.v6) {
    std::memcpy(&any_.v6, given, length_);
  }

  [[nodiscard]] sockaddr* get() { return &any_.generic; }
  [[nodiscard]] const sockaddr* get() const { return &any_.generic; }
  /// Bytes of the address, or of the room.
  [[nodiscard]] socklen_t length() const { return length_; }
  /// The same, for calls that write the length of what they wrote.
  [[nodiscard]] socklen_t* length_place() { return &length_; }
  static constexpr socklen_t kRoom = sizeof(sockaddr_in6);

  [[nodiscard]] IpAddress address() const {
    if (any_.generic.sa_family == AF_INET) return IpAddress(ntohl(any_.v4.sin_addr.s_addr));
    IpAddress::Bytes bytes{};
    std::memcpy(bytes.data(), &any_.v6.sin6_addr, bytes.size());
    return IpAddress(bytes);
  }
  [[nodiscard]] std::uint16_t port() const {
    return ntohs(any_.generic.sa_family == AF_INET ? any_.v4.sin_port : any_.v6.sin6_port);
  }

 private:
  union Any {
    sockaddr_in6 v6{};  // first: it is the largest, and so all bytes are zero
    sockaddr_in v4;
    sockaddr generic;
  };
  Any any_;
  socklen_t length_ = kRoom;
};

}  // namespace paralet
