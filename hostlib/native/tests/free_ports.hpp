// SPDX-License-Identifier: Apache-2.0
// Source ports for tests that run beside other programs, which hold any.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <random>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"
#include "wire/wire.hpp"

namespace paralet::test {

/// Whether no socket has this port, at any address of the machine, of UDP or TCP.
inline bool is_free(std::uint16_t port) {
  for (const int type : {SOCK_DGRAM, SOCK_STREAM}) {
    FileDescriptor socket(::socket(AF_INET6, type | SOCK_CLOEXEC, 0));
    SocketAddress everywhere(IpAddress(IpAddress::Bytes{}), port);
    const int no = 0;
    if (!socket.valid() || ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0) {
      socket = FileDescriptor(::socket(AF_INET, type | SOCK_CLOEXEC, 0));  // a kernel without IPv6
      everywhere = SocketAddress(IpAddress(0U), port);
    }
    if (::bind(socket.get(), everywhere.get(), everywhere.length()) != 0) return false;
  }
  return true;
}

/// The first of the ports that tests choose from: the kernel gives none of them to a program that names no port, where
/// net.ipv4.ip_local_port_range leaves room.
inline std::uint16_t first_of_free_ports() {
  constexpr unsigned kRoom = 1024;
  unsigned first = 0;
  unsigned last = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  return last >= wire::kFirstEntropyPort && last + kRoom < 0x10000 ? static_cast<std::uint16_t>(last + 1)
                                                                   : wire::kFirstEntropyPort;
}

/// Source ports of RoCEv2's range that are free now. Each call gives others, and each process begins anywhere, so that
/// tests that run side by side seldom choose the same. They are only looked at: another program may take one before the
/// caller does.
inline std::vector<std::uint16_t> free_ports(std::size_t count) {
  static const std::uint16_t first = first_of_free_ports();
  static unsigned next = std::random_device{}() % 0x10000U;
  const unsigned choice = 0x10000U - first;
  std::vector<std::uint16_t> out;
  for (unsigned tries = 0; tries < choice && out.size() < count; ++tries) {
    const auto port = static_cast<std::uint16_t>(first + next++ % choice);
    if (is_free(port)) out.push_back(port);
  }
  REQUIRE(out.size() == count);
  return out;
}

inline std::uint16_t free_port() { return free_ports(1).front(); }

}  // namespace paralet::test
