// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>

namespace paralet {

/// A sockaddr_in from an IPv4 address and a port in host byte order.
inline sockaddr_in socket_address(std::uint32_t address, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(address);
  out.sin_port = htons(port);
  return out;
}

}  // namespace paralet
