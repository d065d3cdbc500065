// SPDX-License-Identifier: Apache-2.0
#include "sockets.hpp"

#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/socket_address.hpp"
#include "kept_errno.hpp"

namespace paralet::pin {
namespace {

constexpr int kTries = 4;                 // ports that another socket of this host has, for one connection
constexpr socklen_t kShortestInet6 = 24;  // without the scope, as in RFC 2133; Linux takes it
constexpr std::string_view kBound = "the program has bound its source port";

/// How many calls of `connect` this thread is in. Two: a signal's handler connects while the thread does. It is too
/// high after a handler that leaves by siglongjmp. Then the agent learns later that connections of this thread have
/// ended. Other models of thread-local memory may allocate it, which a handler must not do.
[[gnu::tls_model("initial-exec")]] thread_local unsigned depth = 0;

/// A copy of what the program gave, if it is an address of IP with a port.
std::optional<SocketAddress> inet_address(const sockaddr* given, socklen_t length) {
  sa_family_t family = AF_UNSPEC;
  if (given == nullptr || length < sizeof family) return std::nullopt;
  std::memcpy(&family, &given->sa_family, sizeof family);
  sockaddr_in6 copy{};
  if (family == AF_INET ? length < sizeof(sockaddr_in) : family != AF_INET6 || length < kShortestInet6) {
    return std::nullopt;
  }
  std::memcpy(&copy, given, std::min<std::size_t>(length, sizeof copy));
  return SocketAddress(reinterpret_cast<const sockaddr*>(&copy));
}

/// The same address with a port, in the family of the socket.
sockaddr_in6 with_port(SocketAddress name, std::uint16_t port) {
  sockaddr_in6 made{};
  std::memcpy(&made, name.get(), std::min<std::size_t>(name.length(), sizeof made));
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  made.sin6_port = htons(port);
  return made;
}

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

bool is_tcp_or_udp(int fd) {
  const int protocol = option(fd, SOL_SOCKET, SO_PROTOCOL);
  return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

Text name_of(int fd) {
  Text name = text_of("socket ");
  std::to_chars(name.data() + 7, name.data() + name.size(), fd);
  return name;
}

bool is_wildcard(const IpAddress& address) { return address == IpAddress() || address == IpAddress(0); }

}  // namespace

void Sockets::mark(int fd, std::uint8_t mark, bool on) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kDescriptors) return;
  auto& marks = marks_[static_cast<std::size_t>(fd)];
  if (on) {
    marks.fetch_or(mark, std::memory_order_relaxed);
  } else {
    marks.fetch_and(static_cast<std::uint8_t>(~mark), std::memory_order_relaxed);
  }
}

int Sockets::connect(int fd, const sockaddr* to, socklen_t length) {
  ++depth;
  const std::uint64_t flow = connecting(fd, to, length);
  const int result = calls_.connect(fd, to, length);
  --depth;
  if (result != 0 && flow != 0) {
    const KeptErrno kept;
    agent_.tell({.kind = RequestKind::kTried, .id = flow});
  }
  return result;
}

std::uint64_t Sockets::connecting(int fd, const sockaddr* to, socklen_t length) {
  const KeptErrno kept;
  const auto remote = inet_address(to, length);
  if (!remote || remote->port() == 0 || !networks_.has(remote->address())) return 0;
  const int protocol = option(fd, SOL_SOCKET, SO_PROTOCOL);
  if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) return 0;
  const std::uint64_t flow = pin(fd, protocol == IPPROTO_TCP, to, length);
  return protocol == IPPROTO_TCP ? flow : 0;
}

void Sockets::first_send(int fd, const sockaddr* to, socklen_t length) {
  const KeptErrno kept;
  mark(fd, kUnsent, false);
  const auto remote = inet_address(to, length);
  if (!remote || remote->port() == 0 || !networks_.has(remote->address())) return;
  if (option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDP) pin(fd, false, to, length);
}

std::uint64_t Sockets::pin(int fd, bool tcp, const sockaddr* to, socklen_t length) {
  SocketAddress name;
  if (calls_.getsockname(fd, name.get(), name.length_place()) != 0) return 0;
  const auto remote = inet_address(to, length);
  Request request{.tcp = static_cast<std::uint8_t>(tcp),
                  .remote_port = remote->port(),
                  .local = is_wildcard(name.address()) ? IpAddress() : name.address(),
                  .remote = remote->address(),
                  .wait = wait_,
                  .thread = depth > 1 ? 0 : static_cast<std::uint64_t>(::pthread_self()),
                  .processor = ::sched_getcpu(),
                  .what = name_of(fd)};
  mark(fd, kUnsent, false);
  if (name.port() != 0) {
    if (marked(fd, kTold)) return 0;
    mark(fd, kTold, true);
    request.kind = RequestKind::kNotPinned;
    request.why = text_of(kBound);
    agent_.tell(request);
    return 0;
  }
  for (int tried = 0; tried < kTries; ++tried) {
    const auto reply = agent_.ask(request);
    if (!reply || reply->port == 0) return 0;
    // Connections from one port to several peers are usual. The kernel allows them if all say SO_REUSEADDR. Datagrams
    // of one of two such sockets would reach the other, so UDP does without.
    if (const int on = 1; tcp) calls_.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const sockaddr_in6 planned = with_port(name, reply->port);
    mark(fd, kTold, true);  // bound from here on, by us
    if (calls_.bind(fd, reinterpret_cast<const sockaddr*>(&planned), name.length()) == 0) return reply->id;
    mark(fd, kTold, false);
    if (errno == EINVAL) break;  // meanwhile another thread has asked for its name: it has a port
    request.kind = RequestKind::kAskAgain;
    request.id = reply->id;
  }
  request.kind = RequestKind::kGiveBack;
  agent_.tell(request);
  return 0;
}

int Sockets::bind(int fd, const sockaddr* to, socklen_t length) {
  bool leaves_out = false;
  {
    const KeptErrno kept;
    const auto local = inet_address(to, length);
    const int left_out = local ? option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT) : -1;
    if (left_out == 1) settle(fd);  // it is bound, so this bind fails
    leaves_out = left_out == 0 && local->port() == 0 &&
                 (is_wildcard(local->address()) || networks_.has(local->address())) && is_tcp_or_udp(fd);
    if (leaves_out) {
      const int on = 1;
      mark(fd, kOwnChoice, true);  // another thread that asks for the name now must not bind it
      leaves_out = calls_.setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) == 0;
    }
  }
  const int result = calls_.bind(fd, to, length);
  if (leaves_out) {
    const KeptErrno kept;
    const int off = 0;
    if (result != 0) calls_.setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &off, sizeof off);
    mark(fd, kOwnChoice, false);
  }
  return result;
}

void Sockets::settle(int fd) {
  if (marked(fd, kOwnChoice)) return;
  const KeptErrno kept;
  SocketAddress name;
  if (calls_.getsockname(fd, name.get(), name.length_place()) != 0) return;
  const int family = name.get()->sa_family;
  if ((family != AF_INET && family != AF_INET6) || name.port() != 0) return;
  if (option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT) != 1 || !is_tcp_or_udp(fd)) return;
  const int off = 0;
  calls_.setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &off, sizeof off);
  calls_.bind(fd, name.get(), name.length());
}

}  // namespace paralet::pin
