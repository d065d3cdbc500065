// SPDX-License-Identifier: Apache-2.0
#include "prober/probe_socket.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/socket_address.hpp"

#ifndef IPV6_AUTOFLOWLABEL
#define IPV6_AUTOFLOWLABEL 70
#endif

namespace paralet::prober {
namespace {

constexpr std::uint8_t kTcpEstablished = 1;  // TCP_ESTABLISHED of net/tcp_states.h, which <linux/tcp.h> lacks

// Room for one answer among packets that nobody expects. The kernel doubles it (socket(7)).
constexpr int kReceiveBuffer = 32 * 1024;
constexpr std::size_t kQuotedBytes = 128;  // more than a probe has

bool set(int fd, int level, int name, int value) { return ::setsockopt(fd, level, name, &value, sizeof value) == 0; }

/// A socket that is bound to the probe's source port and whose packets end at its hop.
SentProbe bound_socket(const Target& target, const Probe& probe, int type) {
  SentProbe out{.socket = FileDescriptor(::socket(family_of(target.to), type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))};
  const int fd = out.socket.get();
  const bool ipv4 = target.to.is_ipv4();
  const SocketAddress local(target.from, probe.source_port);
  // Lanes send from these ports too, and allow it (soft/udp_sockets.cpp).
  const bool done =
      out.socket.valid() && set(fd, SOL_SOCKET, SO_REUSEADDR, 1) &&
      (ipv4 ? set(fd, IPPROTO_IP, IP_RECVERR, 1) && set(fd, IPPROTO_IP, IP_TTL, probe.ttl)
            : set(fd, IPPROTO_IPV6, IPV6_RECVERR, 1) && set(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, probe.ttl)) &&
      ::bind(fd, local.get(), local.length()) == 0;
  if (!done) out.error = errno;
  return out;
}

}  // namespace

SentProbe send_udp(const Target& target, const Probe& probe, std::span<const std::byte> payload) {
  SentProbe out = bound_socket(target, probe, SOCK_DGRAM);
  if (out.error != 0) return out;
  const int fd = out.socket.get();
  // As the sockets of lanes are, so that switches see the same header.
  if (target.to.is_ipv4()) {
    set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  } else {
    set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
    set(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 1);
  }
  // A filter that drops what arrives, as lanes' sockets have, would cost as much as all else: the kernel compiles it.
  set(fd, SOL_SOCKET, SO_RCVBUF, kReceiveBuffer);
  const SocketAddress remote(target.to, target.destination_port);
  out.sent_at = now();
  if (::sendto(fd, payload.data(), payload.size(), MSG_NOSIGNAL, remote.get(), remote.length()) < 0) out.error = errno;
  return out;
}

SentProbe send_syn(const Target& target, const Probe& probe) {
  SentProbe out = bound_socket(target, probe, SOCK_STREAM);
  if (out.error != 0) return out;
  const int fd = out.socket.get();
  set(fd, IPPROTO_TCP, TCP_SYNCNT, 1);
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  const SocketAddress remote(target.to, target.destination_port);
  out.sent_at = now();
  if (::connect(fd, remote.get(), remote.length()) != 0 && errno != EINPROGRESS) out.error = errno;
  return out;
}

std::optional<QuotedError> next_error(int fd, const Target& target, const Probe& probe,
                                      std::span<const std::byte> payload) {
  std::array<std::byte, kQuotedBytes> quoted;
  alignas(cmsghdr) std::array<std::byte, 256> control;
  SocketAddress destination;
  iovec piece{.iov_base = quoted.data(), .iov_len = quoted.size()};
  msghdr header{.msg_name = destination.get(),
                .msg_namelen = SocketAddress::kRoom,
                .msg_iov = &piece,
                .msg_iovlen = 1,
                .msg_control = control.data(),
                .msg_controllen = control.size(),
                .msg_flags = 0};
  const ssize_t length = ::recvmsg(fd, &header, MSG_ERRQUEUE | MSG_DONTWAIT);
  if (length < 0) return std::nullopt;
  const auto error = parse_queued_error(std::span<const std::byte>(control).first(header.msg_controllen));
  if (!error) return QuotedError{};
  const auto bytes = std::span<const std::byte>(quoted).first(static_cast<std::size_t>(length));
  return QuotedError{.error = *error, .of_probe = quotes(target, probe.source_port, payload, destination, bytes)};
}

bool destination_answered(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return false;
  if (error == ECONNREFUSED) return true;
  tcp_info info{};
  length = sizeof info;
  return error == 0 && ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         info.tcpi_state == kTcpEstablished;
}

}  // namespace paralet::prober
