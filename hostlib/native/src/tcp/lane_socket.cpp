// SPDX-License-Identifier: Apache-2.0
#include "tcp/lane_socket.hpp"

#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/errors.hpp"
#include "base/limits.hpp"
#include "base/socket_address.hpp"
#include "wire/wire.hpp"

#ifndef IPV6_AUTOFLOWLABEL
#define IPV6_AUTOFLOWLABEL 70
#endif

namespace paralet::tcp {
namespace {

// Bytes that may wait in a socket before its lane counts as full. Enough that the kernel never runs dry between two
// calls, and little enough that a slow lane does not take what another lane could send.
constexpr int kUnsentBytes = 256 * 1024;

void set_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

FileDescriptor tcp_socket(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

bool set_congestion(int fd, const std::string& name) {
  return name.empty() ||
         ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

std::string known_congestion_controls() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::string out;
  std::getline(file, out);
  return out;
}

void configure(int fd, const SocketSettings& settings) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
  const Nanos dead = std::min<Nanos>(settings.retry_time / kMillisecond, INT32_MAX);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(dead));
  if (settings.address.is_ipv4()) {
    set_option(fd, IPPROTO_IP, IP_TOS, settings.traffic_class);
  } else {
    set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, settings.traffic_class);
    // Routers may hash the flow label. One that the kernel draws anew after a timeout would move the lane.
    set_option(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0);
  }
  set_congestion(fd, settings.congestion);
}

/// Makes the socket listen on that port, or on one of the kernel's choice where `port` is 0. False, and errno, if not.
bool listen_on(int fd, const IpAddress& address, std::uint16_t port) {
  const SocketAddress local(address, port);
  return ::bind(fd, local.get(), local.length()) == 0 && ::listen(fd, SOMAXCONN) == 0;
}

FileDescriptor listening_socket(const SocketSettings& settings) {
  FileDescriptor out = tcp_socket(family_of(settings.address));
  if (!out.valid()) throw DeviceError("cannot open a TCP socket: " + error_text(errno));
  if (!set_congestion(out.get(), settings.congestion)) {
    throw DeviceError("this kernel has no TCP congestion control '" + settings.congestion +
                      "', or does not allow it; it has: " + known_congestion_controls());
  }
  // Connections of an earlier device may still have the port. A socket that listens keeps it for itself all the same.
  set_option(out.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  return out;
}

}  // namespace

FileDescriptor listen(const SocketSettings& settings, std::uint16_t& port) {
  FileDescriptor out = listening_socket(settings);
  bool listens = listen_on(out.get(), settings.address, wire::kRocePort);
  if (!listens && errno == EADDRINUSE) {
    out = listening_socket(settings);  // the first one may be bound by now
    listens = listen_on(out.get(), settings.address, 0);
  }
  SocketAddress local(settings.address, 0);
  if (!listens || ::getsockname(out.get(), local.get(), local.length_place()) != 0) {
    throw DeviceError("cannot listen on " + format_address(settings.address) + ": " + std::strerror(errno));
  }
  port = local.port();
  return out;
}

Accepted accept(int listener, const SocketSettings& settings) {
  SocketAddress from;
  Accepted out;
  out.socket = FileDescriptor(::accept4(listener, from.get(), from.length_place(), SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!out.socket.valid()) return out;
  configure(out.socket.get(), settings);
  out.address = from.address();
  out.port = from.port();
  return out;
}

FileDescriptor connect(const SocketSettings& settings, std::uint16_t source_port, const IpAddress& address,
                       std::uint16_t port) {
  if (family_of(settings.address) != family_of(address)) {
    errno = EAFNOSUPPORT;
    return {};
  }
  FileDescriptor out = tcp_socket(family_of(address));
  if (!out.valid()) return out;
  configure(out.get(), settings);
  // Lanes to several peers have one source port.
  set_option(out.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  const SocketAddress from(settings.address, source_port);
  const SocketAddress to(address, port);
  if (::bind(out.get(), from.get(), from.length()) == 0 &&
      (::connect(out.get(), to.get(), to.length()) == 0 || errno == EINPROGRESS)) {
    return out;
  }
  const int why = errno;
  out.reset();
  errno = why;
  return out;
}

bool port_taken(int error) { return error == EADDRINUSE || error == EADDRNOTAVAIL || error == EACCES; }

int error_of(int socket) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

void reset(FileDescriptor& socket) {
  if (!socket.valid()) return;
  // Ends the connection even while a forked child has the descriptor too, which a close does not.
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  [[maybe_unused]] const int ended = ::connect(socket.get(), &nowhere, sizeof nowhere);
  socket.reset();
}

void deafen(int socket) {
  sock_filter none{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &none};
  ::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

void acknowledge_at_once(int socket) { set_option(socket, IPPROTO_TCP, TCP_QUICKACK, 1); }

void acknowledge_later(int socket) { set_option(socket, IPPROTO_TCP, TCP_QUICKACK, 0); }

std::uint64_t unacknowledged(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) == 0 ? static_cast<std::uint64_t>(bytes) : UINT64_MAX;
}

TcpState state_of(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  constexpr std::uint32_t kNoRtt = UINT32_MAX;  // of tcpi_min_rtt
  return {.smoothed_rtt = info.tcpi_rtt * kMicrosecond,
          .min_rtt = info.tcpi_min_rtt == kNoRtt ? 0 : info.tcpi_min_rtt * kMicrosecond,
          .window_bytes = static_cast<double>(info.tcpi_snd_cwnd) * info.tcpi_snd_mss,
          .segments_sent = info.tcpi_data_segs_out,
          .segments_received = info.tcpi_data_segs_in,
          .bytes_repeated = info.tcpi_bytes_retrans,
          .repeats = info.tcpi_total_retrans,
          .marked = info.tcpi_delivered_ce,
          .in_flight = info.tcpi_unacked > 0};
}

TcpState TcpState::operator+(const TcpState& other) const {
  TcpState out = *this;
  out.segments_sent += other.segments_sent;
  out.segments_received += other.segments_received;
  out.bytes_repeated += other.bytes_repeated;
  out.repeats += other.repeats;
  out.marked += other.marked;
  return out;
}

}  // namespace paralet::tcp
