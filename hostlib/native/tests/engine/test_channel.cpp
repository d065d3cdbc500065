// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

#include "engine/channel.hpp"

namespace paralet {
namespace {

TEST_CASE("a channel whose peer does not read is closed at a limit") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const FileDescriptor far(ends[1]);
  Channel channel(FileDescriptor{ends[0]}, kSecond);
  for (int i = 0; i < 100'000 && !channel.closed(); ++i)
    channel.send(handshake::Reject{.reason = std::string(100, 'x')});
  CHECK(channel.closed());
  CHECK(channel.reason() == "the peer does not read what is sent to it");
}

TEST_CASE("a channel that has closed keeps nothing that is sent over it") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  Channel channel(FileDescriptor{ends[0]}, kSecond);
  FileDescriptor(ends[1]).reset();
  CHECK(channel.on_readable().empty());
  REQUIRE(channel.closed());
  channel.send(handshake::Reject{.reason = "nobody reads it"});
  CHECK_FALSE(channel.wants_write());
}

int option(const Channel& channel, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  REQUIRE(::getsockopt(channel.fd(), IPPROTO_TCP, name, &value, &length) == 0);
  return value;
}

TEST_CASE("an idle channel ends only after several unanswered probes") {
  const IpAddress local(INADDR_LOOPBACK);
  std::uint16_t port = 0;
  const FileDescriptor listener = listen_tcp(local, port);
  for (const Nanos dead_after : {kMillisecond, kSecond, 2 * kSecond, 10 * kSecond, 60 * kSecond, 100'000 * kSecond}) {
    CAPTURE(dead_after);
    const Channel channel(local, local, port, dead_after);
    const int dead_ms = option(channel, TCP_USER_TIMEOUT);
    CHECK(dead_ms * kMillisecond >= dead_after);
    // Probes leave at idle, idle + interval, ..; the connection ends at the first that finds it silent for dead_ms.
    const int probed_ms = dead_ms - 1000 * option(channel, TCP_KEEPIDLE);
    CHECK(probed_ms > 2 * 1000 * option(channel, TCP_KEEPINTVL));
  }
}

}  // namespace
}  // namespace paralet
