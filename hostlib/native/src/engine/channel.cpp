// SPDX-License-Identifier: Apache-2.0
#include "engine/channel.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/limits.hpp"
#include "base/socket_address.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

FileDescriptor tcp_socket(int family) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw DeviceError("cannot open a TCP socket: " + error_text(errno));
  return fd;
}

}  // namespace

Channel::Channel(FileDescriptor connected, Nanos dead_after) : socket_(std::move(connected)) { configure(dead_after); }

Channel::Channel(const IpAddress& local, const IpAddress& address, std::uint16_t port, Nanos dead_after)
    : socket_(tcp_socket(family_of(local))), connecting_(true) {
  if (family_of(local) != family_of(address)) {
    throw TransportError("cannot connect from " + format_address(local) + " to " + format_address(address) +
                         ": one is an IPv4 address, the other an IPv6 address");
  }
  configure(dead_after);
  // Bind to the device's address, so that the connection uses the device's interface.
  const SocketAddress from(local, 0);
  const SocketAddress to(address, port);
  const int on = 1;
  setsockopt(fd(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  if (::bind(fd(), from.get(), from.length()) != 0 ||
      (::connect(fd(), to.get(), to.length()) != 0 && errno != EINPROGRESS)) {
    throw TransportError("cannot connect to " + format_address(address) + ": " + std::strerror(errno));
  }
}

void Channel::configure(Nanos dead_after) {
  const int on = 1;
  setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // The kernel ends an idle connection by time alone, however few probes it has sent (tcp_keepalive_timer in
  // net/ipv4/tcp_timer.c). One lost packet must not end it, so several probes fit into the second half of the time.
  constexpr Nanos kLeast = 5 * kSecond;        // the kernel counts probes in whole seconds
  constexpr Nanos kLongest = 32767 * kSecond;  // MAX_TCP_KEEPIDLE and MAX_TCP_KEEPINTVL
  const Nanos dead = std::clamp<Nanos>(dead_after, kLeast, INT32_MAX * kMillisecond);
  const auto dead_ms = static_cast<unsigned>(dead / kMillisecond);
  const int idle_s = static_cast<int>(std::min(dead / 2, kLongest) / kSecond);
  const int interval_s = static_cast<int>(std::clamp(dead / 8, kSecond, kLongest) / kSecond);
  setsockopt(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
  setsockopt(fd(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
}

void Channel::reset_at_end() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void Channel::close(const std::string& reason, bool lost) {
  if (closed_) return;
  closed_ = true;
  lost_ = lost;
  reason_ = reason;
}

void Channel::send(const handshake::Frame& frame) {
  if (closed_) return;
  const auto bytes = handshake::encode(frame);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  if (!connecting_) flush();
  if (out_.size() > kMaxUnsent) close("the peer does not read what is sent to it", true);
}

void Channel::on_writable() {
  if (connecting_) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      close(std::strerror(error), true);
      return;
    }
    connecting_ = false;
  }
  flush();
}

void Channel::flush() {
  while (!out_.empty() && !closed_) {
    const ssize_t sent = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) close(std::strerror(errno), true);
      return;
    }
    out_.erase(out_.begin(), out_.begin() + sent);
  }
  out_.shrink_to_fit();  // most channels are idle most of the time
}

std::vector<handshake::Frame> Channel::on_readable() {
  std::array<std::byte, 16384> chunk;
  // A limit, so that a peer that sends without pause cannot fill the memory.
  for (int rounds = 0; rounds < 4 && !closed_; ++rounds) {
    const ssize_t got = ::recv(fd(), chunk.data(), chunk.size(), 0);
    if (got > 0) {
      in_.insert(in_.end(), chunk.begin(), chunk.begin() + got);
      continue;
    }
    if (got == 0) {
      close("the peer closed the connection");
    } else if (errno == EINTR) {
      continue;
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
      close(std::strerror(errno), true);
    }
    break;
  }
  std::vector<handshake::Frame> frames;
  std::size_t offset = 0;
  while (in_.size() - offset >= 4) {
    const std::size_t length = wire::get_u32(in_.data() + offset);
    if (length == 0 || length > handshake::kMaxFrameBytes) {
      close("the peer sent a frame of " + std::to_string(length) + " bytes");
      break;
    }
    if (in_.size() - offset - 4 < length) break;
    auto frame = handshake::decode({in_.data() + offset + 4, length});
    if (!frame) {
      close("the peer sent a malformed frame or speaks another version");
      break;
    }
    frames.push_back(std::move(*frame));
    offset += 4 + length;
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(offset));
  in_.shrink_to_fit();
  return frames;
}

FileDescriptor listen_tcp(const IpAddress& address, std::uint16_t& port) {
  FileDescriptor fd = tcp_socket(family_of(address));
  SocketAddress local(address, 0);
  if (::bind(fd.get(), local.get(), local.length()) != 0 || ::listen(fd.get(), SOMAXCONN) != 0 ||
      getsockname(fd.get(), local.get(), local.length_place()) != 0) {
    throw DeviceError("cannot listen on " + format_address(address) + ": " + std::strerror(errno));
  }
  port = local.port();
  return fd;
}

}  // namespace paralet
