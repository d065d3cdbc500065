// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <optional>

#include "base/file_descriptor.hpp"
#include "tcp/watcher.hpp"

namespace paralet::tcp {
namespace {

constexpr std::uint32_t kQpn = 7;

/// The number of the socket that an event is of: a copy, because the fields of epoll_event may lie anywhere in memory.
std::uint64_t number_of(const epoll_event& event) { return event.data.u64; }

/// A connection, one end of which is watched.
struct WatchedEnd {
  Watcher watcher;
  FileDescriptor own;
  FileDescriptor other;

  WatchedEnd() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
    own = FileDescriptor(ends[0]);
    other = FileDescriptor(ends[1]);
  }
  void arrive() const { REQUIRE(::write(other.get(), "x", 1) == 1); }
  /// The event since the last call, at most one.
  [[nodiscard]] std::optional<epoll_event> next() const {
    std::array<epoll_event, 4> room{};
    const auto events = watcher.ready(room);
    REQUIRE(events.size() <= 1);
    return events.empty() ? std::nullopt : std::optional(events.front());
  }
};

TEST_CASE("a socket is watched for room to send until it is assigned to a QP that receives") {
  WatchedEnd end;
  const std::uint64_t added = end.watcher.add(end.own.get(), 0);
  const auto room = end.next();
  REQUIRE(room);
  CHECK(number_of(*room) == added);
  CHECK((room->events & EPOLLOUT) != 0);
  const std::uint64_t assigned = end.watcher.assign(end.own.get(), kQpn);
  CHECK(assigned != added);
  CHECK(Watcher::qpn_of(assigned) == kQpn);
  CHECK_FALSE(end.next());
}

TEST_CASE("what arrived before a socket was assigned is an event again, and what arrives later is one") {
  WatchedEnd end;
  REQUIRE(end.watcher.add(end.own.get(), 0) != 0);
  end.arrive();
  REQUIRE(end.next());
  CHECK_FALSE(end.next());
  const std::uint64_t assigned = end.watcher.assign(end.own.get(), kQpn);
  for (int i = 0; i < 2; ++i) {
    const auto arrived = end.next();
    REQUIRE(arrived);
    CHECK(number_of(*arrived) == assigned);
    CHECK((arrived->events & EPOLLIN) != 0);
    CHECK((arrived->events & EPOLLOUT) == 0);
    CHECK_FALSE(end.next());
    end.arrive();
  }
}

}  // namespace
}  // namespace paralet::tcp
