// SPDX-License-Identifier: Apache-2.0
#include "base/route_mtu.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"

namespace paralet {

std::optional<std::uint32_t> route_mtu(const UdpEnd& from, const UdpEnd& to) {
  const bool ipv4 = to.address.is_ipv4();
  const FileDescriptor socket(::socket(family_of(to.address), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return std::nullopt;
  // A lane's socket has its port already. Both sockets allow that (SendSockets).
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // As the sockets of lanes have it: with IP_PMTUDISC_DONT or _INTERFACE the kernel ignores what routers report.
  static_assert(IP_PMTUDISC_DO == IPV6_PMTUDISC_DO);
  const int discover = IP_PMTUDISC_DO;
  ::setsockopt(socket.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, &discover,
               sizeof discover);
  const SocketAddress local(from.address, from.port);
  const SocketAddress remote(to.address, to.port);
  if (::bind(socket.get(), local.get(), local.length()) != 0) return std::nullopt;
  if (::connect(socket.get(), remote.get(), remote.length()) != 0) return std::nullopt;
  int mtu = 0;
  socklen_t length = sizeof mtu;
  if (::getsockopt(socket.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU : IPV6_MTU, &mtu, &length) != 0) {
    return std::nullopt;
  }
  return static_cast<std::uint32_t>(mtu);
}

}  // namespace paralet
