// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>

#include "engine/channel.hpp"

namespace paralet {
namespace {

TEST_CASE("a channel whose peer does not read is closed at a limit") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const FileDescriptor far(ends[1]);
  Channel channel(FileDescriptor(ends[0]), kSecond);
  for (int i = 0; i < 100'000 && !channel.closed(); ++i)
    channel.send(handshake::Reject{.reason = std::string(100, 'x')});
  CHECK(channel.closed());
  CHECK(channel.reason() == "the peer does not read what is sent to it");
}

}  // namespace
}  // namespace paralet
