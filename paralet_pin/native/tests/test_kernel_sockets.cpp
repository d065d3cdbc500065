// SPDX-License-Identifier: Apache-2.0
// Some tests ask the kernel, others a socket whose other end they have.
#include <doctest/doctest.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/socket_address.hpp"
#include "kernel_sockets.hpp"

using namespace paralet;
using namespace paralet::pin;

namespace {

constexpr IpAddress kHere(0x7F000001);

FileDescriptor made(int type) { return FileDescriptor(::socket(AF_INET, type | SOCK_CLOEXEC, 0)); }

SocketAddress name_of(const FileDescriptor& socket) {
  SocketAddress name;
  REQUIRE(::getsockname(socket.get(), name.get(), name.length_place()) == 0);
  return name;
}

/// A listener, and a connection to it.
struct Connected {
  FileDescriptor listener = made(SOCK_STREAM);
  FileDescriptor program = made(SOCK_STREAM);

  Connected() {
    const SocketAddress any(kHere, 0);
    REQUIRE(::bind(listener.get(), any.get(), any.length()) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    const SocketAddress to = name_of(listener);
    REQUIRE(::connect(program.get(), to.get(), to.length()) == 0);
  }
  [[nodiscard]] Connection connection() const {
    return {.local = kHere, .port = name_of(program).port(), .remote = kHere, .remote_port = name_of(listener).port()};
  }
};

/// Takes requests as the kernel does. Answers are written before they are asked for.
class FakeKernel {
 public:
  FakeKernel() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    asked_ = FileDescriptor(ends[0]);
    own_ = FileDescriptor(ends[1]);
    const timeval longest{.tv_sec = 20, .tv_usec = 0};  // so that a fault ends the test
    REQUIRE(::setsockopt(asked_.get(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest) == 0);
  }
  FileDescriptor take() { return std::move(asked_); }
  /// A socket of the answer to request `number`, at this port.
  void socket(std::uint32_t number, std::uint16_t port) {
    inet_diag_msg told{};
    told.idiag_family = AF_INET;
    told.id.idiag_sport = htons(port);
    message(number, SOCK_DIAG_BY_FAMILY, &told, sizeof told);
  }
  void done(std::uint32_t number, int error = 0) { message(number, NLMSG_DONE, &error, sizeof error); }
  void refuses(std::uint32_t number, int error) { message(number, NLMSG_ERROR, &error, sizeof error); }
  /// No more answers.
  void ends() { REQUIRE(::shutdown(own_.get(), SHUT_WR) == 0); }

 private:
  void message(std::uint32_t number, std::uint16_t type, const void* body, std::size_t length) {
    std::array<char, 512> room{};
    const nlmsghdr header{.nlmsg_len = static_cast<std::uint32_t>(NLMSG_LENGTH(length)),
                          .nlmsg_type = type,
                          .nlmsg_flags = 0,
                          .nlmsg_seq = number,
                          .nlmsg_pid = 0};
    std::memcpy(room.data(), &header, sizeof header);
    std::memcpy(room.data() + NLMSG_HDRLEN, body, length);
    REQUIRE(::send(own_.get(), room.data(), header.nlmsg_len, 0) > 0);
  }

  FileDescriptor asked_;
  FileDescriptor own_;
};

}  // namespace

TEST_CASE("the kernel has a connection, lists it with its bytes, and no longer has it once it is closed") {
  Connected both;
  const Connection connection = both.connection();
  KernelSockets kernel;
  CHECK(kernel.find(connection) == Found::kSocket);
  const auto all = kernel.connections();
  REQUIRE(all);
  REQUIRE(all->contains(connection));
  CHECK(all->at(connection).connected);
  const linger reset{.l_onoff = 1, .l_linger = 0};
  REQUIRE(::setsockopt(both.program.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
  both.program.reset();
  both.listener.reset();
  CHECK(kernel.find(connection) == Found::kNone);
}

TEST_CASE("a connection that this side has closed first waits until its ports can be used again") {
  Connected both;
  const Connection connection = both.connection();
  const FileDescriptor accepted(::accept4(both.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  both.program.reset();
  char end = 0;
  REQUIRE(::recv(accepted.get(), &end, 1, 0) == 0);
  REQUIRE(::shutdown(accepted.get(), SHUT_WR) == 0);
  KernelSockets kernel;
  const Nanos by = now() + 20 * kSecond;  // the end of the other side may be on its way
  while (kernel.find(connection) == Found::kSocket && now() < by) ::sched_yield();
  CHECK(kernel.find(connection) == Found::kTimeWait);
  const auto all = kernel.connections();
  REQUIRE(all);
  CHECK_FALSE(all->contains(connection));
  const auto unconnected = kernel.unconnected();
  REQUIRE(unconnected);
  CHECK_FALSE(unconnected->contains({connection.local, connection.port}));
}

TEST_CASE("the ports of datagrams") {
  const FileDescriptor socket = made(SOCK_DGRAM);
  const SocketAddress any(kHere, 0);
  REQUIRE(::bind(socket.get(), any.get(), any.length()) == 0);
  const auto ports = KernelSockets().datagram_ports();
  REQUIRE(ports);
  CHECK(ports->contains(name_of(socket).port()));
}

TEST_CASE("sockets of both families, until the kernel says that these were all") {
  FakeKernel fake;
  fake.socket(1, 5);
  fake.socket(1, 6);
  fake.done(1);
  fake.socket(2, 7);
  fake.done(2);
  CHECK(KernelSockets(fake.take()).datagram_ports() == std::set<std::uint16_t>{5, 6, 7});
}

TEST_CASE("a list that the kernel breaks off is none") {
  SUBCASE("with no more messages") {
    FakeKernel fake;
    fake.socket(1, 5);
    fake.ends();
    CHECK_FALSE(KernelSockets(fake.take()).datagram_ports());
  }
  SUBCASE("with an error at its end") {
    FakeKernel fake;
    fake.socket(1, 5);
    fake.done(1, -ENOMEM);
    CHECK_FALSE(KernelSockets(fake.take()).datagram_ports());
  }
  SUBCASE("with an error in place of sockets") {
    FakeKernel fake;
    fake.refuses(1, -EBUSY);
    CHECK_FALSE(KernelSockets(fake.take()).datagram_ports());
  }
  SUBCASE("of one of the two families") {
    FakeKernel fake;
    fake.done(1);
    fake.refuses(2, -EBUSY);
    CHECK_FALSE(KernelSockets(fake.take()).datagram_ports());
  }
}

TEST_CASE("what comes too late for an earlier request answers no other one") {
  FakeKernel fake;
  fake.refuses(1, -EBUSY);
  KernelSockets kernel(fake.take());
  CHECK_FALSE(kernel.datagram_ports());
  fake.socket(1, 5);
  fake.done(1);
  fake.done(2);
  fake.socket(3, 6);
  fake.done(3);
  CHECK(kernel.datagram_ports() == std::set<std::uint16_t>{6});
  fake.done(3);
  fake.refuses(4, -ENOENT);
  CHECK(kernel.find({.local = kHere, .remote = kHere}) == Found::kNone);
  fake.refuses(5, -EPERM);
  CHECK(kernel.find({.local = kHere, .remote = kHere}) == Found::kUnknown);
}

TEST_CASE("a socket that may retry is found whether it is refused or tries again while others are looked for") {
  const SocketAddress any(kHere, 0);
  std::vector<FileDescriptor> sockets;
  std::vector<Sought> sought;
  for (int count = 0; count < 2; ++count) {
    sockets.push_back(made(SOCK_STREAM));
    REQUIRE(::bind(sockets.back().get(), any.get(), any.length()) == 0);
    const Connection connection{.local = kHere, .port = name_of(sockets.back()).port(), .remote = kHere};
    sought.push_back({.connection = connection, .may_retry = true});
  }
  FakeKernel fake;
  fake.refuses(1, -ENOENT);
  fake.refuses(2, -ENOENT);
  SUBCASE("both have been refused when the kernel lists bound sockets") {
    for (const Sought& each : sought) fake.socket(3, each.connection.port);
    fake.done(3);
    fake.done(4);
    CHECK(KernelSockets(fake.take()).find_all(sought) == std::vector{Found::kBound, Found::kBound});
  }
  SUBCASE("one tries again before the kernel lists bound sockets, the other one's port is that of another socket") {
    fake.done(3);
    fake.done(4);
    fake.socket(5, sought[0].connection.port);
    fake.refuses(6, -ENOENT);
    CHECK(KernelSockets(fake.take()).find_all(sought) == std::vector{Found::kSocket, Found::kNone});
  }
  SUBCASE("the kernel lists no bound sockets") {
    fake.refuses(3, -EBUSY);
    CHECK(KernelSockets(fake.take()).find_all(sought) == std::vector{Found::kBound, Found::kBound});
  }
}

TEST_CASE("a connection has sent what its program has written, and nothing else") {
  Connected both;
  const Connection own = both.connection();
  const FileDescriptor accepted(::accept4(both.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  KernelSockets kernel;
  const auto sent = [&] {
    const auto all = kernel.connections();
    REQUIRE(all);
    return all->at(own).sent_bytes;
  };
  CHECK(sent() == 0);
  const std::array<char, 5> written{};
  REQUIRE(::write(both.program.get(), written.data(), written.size()) == std::ssize(written));
  std::array<char, 5> read{};
  REQUIRE(::recv(accepted.get(), read.data(), read.size(), MSG_WAITALL) == std::ssize(read));
  const Nanos by = now() + 20 * kSecond;  // the acknowledgement may be on its way
  while (sent() == 0 && now() < by) ::sched_yield();
  CHECK(sent() == written.size());
}

TEST_CASE("a socket without a connection has a port until it is closed, also after a connect that has failed") {
  KernelSockets kernel;
  const auto has = [&](const LocalPort& port) {
    const auto all = kernel.unconnected();
    REQUIRE(all);
    return all->contains(port);
  };
  const FileDescriptor nobody = made(SOCK_STREAM);
  const SocketAddress here(kHere, 0);
  REQUIRE(::bind(nobody.get(), here.get(), here.length()) == 0);
  const SocketAddress to = name_of(nobody);
  // Of those that the kernel does not give out by itself. Another process may take one as soon as it is free.
  auto number = static_cast<std::uint16_t>(61001 + ::getpid() % 4000);
  if (!has({IpAddress(kHere), to.port()})) {  // `nobody` is bound, and neither listens nor is connected
    MESSAGE("skipped: this kernel does not list sockets that are bound and not connected, as Linux does since 6.8");
    return;
  }
  bool freed = false;
  for (int tries = 0; tries < 100 && !freed; ++tries) {
    FileDescriptor socket = made(SOCK_STREAM);
    const SocketAddress own(IpAddress(0), ++number);
    if (::bind(socket.get(), own.get(), own.length()) != 0) continue;
    const LocalPort port{IpAddress(), number};
    CHECK(has(port));
    CHECK(::connect(socket.get(), to.get(), to.length()) != 0);
    CHECK(has(port));
    CHECK(is_taken(kHere, number));
    socket.reset();
    freed = !has(port) && !is_taken(kHere, number);
  }
  CHECK(freed);
}
