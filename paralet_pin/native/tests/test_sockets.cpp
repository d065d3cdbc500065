// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/socket_address.hpp"
#include "fake_agent.hpp"
#include "sockets.hpp"

using namespace paralet;
using namespace paralet::pin;

namespace {

const IpAddress kServer(0x7F000002);  // 127.0.0.2
const IpAddress kClient(0x7F000001);

std::uint16_t port_of(int fd) {
  SocketAddress name;
  REQUIRE(::getsockname(fd, name.get(), name.length_place()) == 0);
  return name.port();
}

/// An IPv4 address, for a socket of IPv6.
sockaddr_in6 mapped(SocketAddress address) {
  sockaddr_in6 made{};
  made.sin6_family = AF_INET6;
  made.sin6_port = htons(address.port());
  std::memcpy(&made.sin6_addr, address.address().bytes().data(), 16);
  return made;
}

/// A port that is free now, of those that the kernel does not give out by itself.
std::uint16_t some_port() {
  static std::uint16_t next = static_cast<std::uint16_t>(61001 + ::getpid() % 4000);
  return next = next >= 65500 ? std::uint16_t{61001} : static_cast<std::uint16_t>(next + 1);
}

/// Those of a program that asks this agent, by the C library's functions.
std::unique_ptr<Sockets> sockets_of(const FakeAgent& agent) {
  return std::make_unique<Sockets>(AgentLink(agent.path()), Networks("127.0.0.0/8,::ffff:127.0.0.0/104"),
                                   Calls{.bind = &::bind, .getsockname = &::getsockname, .setsockopt = &::setsockopt},
                                   10 * kSecond);
}

/// A server, a fake agent that plans these ports one after another, and sockets of a program.
struct Program {
  explicit Program(std::vector<std::uint16_t> planned, int type = SOCK_STREAM)
      : server(::socket(AF_INET, type | SOCK_CLOEXEC, 0)),
        ports(std::move(planned)),
        agent([this](const Request& request) {
          const bool asks = request.kind == RequestKind::kAsk || request.kind == RequestKind::kAskAgain;
          if (!asks || given == ports.size()) return std::optional<Reply>(Reply{});
          const std::size_t number = given++;
          return std::optional<Reply>(Reply{.port = ports[number], .id = number + 1, .local = kClient});
        }),
        sockets(sockets_of(agent)) {
    const SocketAddress at(kServer, 0);
    REQUIRE(::bind(server.get(), at.get(), at.length()) == 0);
    if (type == SOCK_STREAM) REQUIRE(::listen(server.get(), 1024) == 0);
  }

  [[nodiscard]] SocketAddress to() const { return {kServer, port_of(server.get())}; }
  int connect(int fd) {
    const SocketAddress there = to();
    sockets->connecting(fd, there.get(), there.length());
    return ::connect(fd, there.get(), there.length());
  }
  FileDescriptor socket(int type = SOCK_STREAM) {
    FileDescriptor made(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
    sockets->made(made.get(), AF_INET, type);
    return made;
  }

  FileDescriptor server;
  std::vector<std::uint16_t> ports;
  std::atomic<std::size_t> given{0};
  FakeAgent agent;
  std::unique_ptr<Sockets> sockets;
};

}  // namespace

TEST_CASE("a connection gets the planned port, and errno stays") {
  const std::uint16_t port = some_port();
  Program program({port});
  const FileDescriptor socket = program.socket();
  errno = EXDEV;
  const SocketAddress to = program.to();
  program.sockets->connecting(socket.get(), to.get(), to.length());
  CHECK(errno == EXDEV);
  REQUIRE(program.connect(socket.get()) == 0);
  CHECK(port_of(socket.get()) == port);
  const auto requests = program.agent.requests();
  CHECK(requests.size() == 1);  // the second look found it bound
  CHECK(requests[0].remote == kServer);
  CHECK(requests[0].tcp == 1);
}

TEST_CASE("a non-blocking connect gets it too") {
  const std::uint16_t port = some_port();
  Program program({port});
  const FileDescriptor socket = program.socket();
  REQUIRE(::fcntl(socket.get(), F_SETFL, O_NONBLOCK) == 0);
  const int result = program.connect(socket.get());
  CHECK((result == 0 || errno == EINPROGRESS));
  CHECK(port_of(socket.get()) == port);
}

TEST_CASE("the agent learns that connect was called where it has not connected, and errno stays") {
  Program program({some_port()});
  const auto fails_later = [](int, const sockaddr*, socklen_t) {
    errno = EINPROGRESS;
    return -1;
  };
  Sockets sockets(
      AgentLink(program.agent.path()), Networks("127.0.0.0/8"),
      Calls{.connect = fails_later, .bind = &::bind, .getsockname = &::getsockname, .setsockopt = &::setsockopt},
      10 * kSecond);
  const FileDescriptor socket = program.socket();
  const SocketAddress to = program.to();
  CHECK(sockets.connect(socket.get(), to.get(), to.length()) == -1);
  CHECK(errno == EINPROGRESS);
  const Nanos by = now() + 30 * kSecond;
  while (program.agent.requests().size() < 2 && now() < by) std::this_thread::yield();
  const auto requests = program.agent.requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].kind == RequestKind::kTried);
  CHECK(requests[1].id == 1);
}

TEST_CASE("an IPv6 socket that connects to an IPv4 address") {
  const std::uint16_t port = some_port();
  Program program({port});
  const FileDescriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    MESSAGE("skipped: this machine has no IPv6");
    return;
  }
  const sockaddr_in6 to = mapped(program.to());
  program.sockets->connecting(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  CHECK(port_of(socket.get()) == port);
  CHECK(program.agent.requests()[0].remote == kServer);
}

TEST_CASE("a port that is in use is given up for the next one") {
  const std::uint16_t taken = some_port();
  const std::uint16_t port = some_port();
  const FileDescriptor other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress at(kClient, taken);
  REQUIRE(::bind(other.get(), at.get(), at.length()) == 0);
  REQUIRE(::listen(other.get(), 1) == 0);
  Program program({taken, port});
  const FileDescriptor socket = program.socket();
  REQUIRE(program.connect(socket.get()) == 0);
  CHECK(port_of(socket.get()) == port);
  const auto requests = program.agent.requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].kind == RequestKind::kAskAgain);
  CHECK(requests[1].id == 1);
}

TEST_CASE("without a free port the program connects as if nothing were loaded") {
  const std::uint16_t taken = some_port();
  const FileDescriptor other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress at(kClient, taken);
  REQUIRE(::bind(other.get(), at.get(), at.length()) == 0);
  REQUIRE(::listen(other.get(), 1) == 0);
  Program program({taken, taken, taken, taken});
  const FileDescriptor socket = program.socket();
  REQUIRE(program.connect(socket.get()) == 0);
  CHECK(port_of(socket.get()) != taken);
}

TEST_CASE("what the program has bound itself stays, and the agent is told once") {
  Program program({some_port()});
  const FileDescriptor socket = program.socket();
  const std::uint16_t own = some_port();
  const SocketAddress at(kClient, own);
  REQUIRE(program.sockets->bind(socket.get(), at.get(), at.length()) == 0);
  for (int i = 0; i < 3; ++i) program.connect(socket.get());
  CHECK(port_of(socket.get()) == own);
  const FileDescriptor next = program.socket();
  REQUIRE(program.connect(next.get()) == 0);  // so that the agent has served what came before
  const auto requests = program.agent.requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].kind == RequestKind::kNotPinned);
}

TEST_CASE("a program that binds an address without a port gets the planned one, and any other if it asks before") {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    for (const IpAddress& address : {kClient, IpAddress(0)}) {
      CAPTURE(type);
      CAPTURE(format_address(address));
      const std::uint16_t port = some_port();
      Program program({port}, type);
      const SocketAddress at(address, 0);
      const FileDescriptor first = program.socket(type);
      REQUIRE(program.sockets->bind(first.get(), at.get(), at.length()) == 0);
      REQUIRE(program.connect(first.get()) == 0);
      CHECK(port_of(first.get()) == port);

      const FileDescriptor second = program.socket(type);
      REQUIRE(program.sockets->bind(second.get(), at.get(), at.length()) == 0);
      program.sockets->settle(second.get());
      const std::uint16_t chosen = port_of(second.get());
      CHECK(chosen != 0);
      REQUIRE(program.connect(second.get()) == 0);
      CHECK(port_of(second.get()) == chosen);
    }
  }
}

TEST_CASE("a socket that is bound without a port has one for whoever asks, by any descriptor") {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    for (const IpAddress& address : {kClient, IpAddress(0)}) {
      CAPTURE(type);
      CAPTURE(format_address(address));
      Program program({}, type);
      const SocketAddress at(address, 0);
      const FileDescriptor socket = program.socket(type);
      REQUIRE(program.sockets->bind(socket.get(), at.get(), at.length()) == 0);
      const FileDescriptor other(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
      program.sockets->settle(other.get());
      CHECK(port_of(socket.get()) != 0);
    }
  }
}

TEST_CASE("who asks for the name while the agent is asked for the port gets the one that the socket keeps") {
  Program program({}, SOCK_DGRAM);
  std::atomic<int> bound{-1};
  std::atomic<std::uint16_t> seen{0};
  FakeAgent agent([&](const Request&) {
    const int fd = bound;
    program.sockets->settle(fd);
    if (seen == 0) seen = port_of(fd);
    return std::optional<Reply>(Reply{.port = some_port(), .id = 1, .local = kClient});
  });
  program.sockets = sockets_of(agent);
  const FileDescriptor socket = program.socket(SOCK_DGRAM);
  bound = socket.get();
  const SocketAddress any(IpAddress(0), 0);
  REQUIRE(program.sockets->bind(socket.get(), any.get(), any.length()) == 0);
  const SocketAddress to = program.to();
  program.sockets->sending(socket.get(), to.get(), to.length());
  CHECK(seen != 0);
  CHECK(port_of(socket.get()) == seen);
  const Nanos by = now() + 30 * kSecond;
  while (agent.requests().size() < 2 && now() < by) std::this_thread::yield();
  const auto requests = agent.requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].kind == RequestKind::kGiveBack);
}

TEST_CASE("a second bind fails, and the socket keeps its port") {
  Program program({});
  const SocketAddress at(kClient, 0);
  const SocketAddress elsewhere(kClient, some_port());
  for (const SocketAddress& second : {at, elsewhere}) {
    const FileDescriptor socket = program.socket();
    REQUIRE(program.sockets->bind(socket.get(), at.get(), at.length()) == 0);
    errno = 0;
    CHECK(program.sockets->bind(socket.get(), second.get(), second.length()) == -1);
    CHECK(errno == EINVAL);
    program.sockets->settle(socket.get());
    CHECK(port_of(socket.get()) != 0);
    CHECK(port_of(socket.get()) != elsewhere.port());
  }
}

TEST_CASE("the port of a program that leaves it out itself is left out until it connects") {
  const std::uint16_t port = some_port();
  Program program({port});
  const int on = 1;
  const FileDescriptor socket = program.socket();
  program.sockets->leaving_port_out(socket.get());
  REQUIRE(::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) == 0);
  program.sockets->settle(socket.get());
  CHECK(port_of(socket.get()) == 0);
  const SocketAddress at(kClient, 0);
  REQUIRE(program.sockets->bind(socket.get(), at.get(), at.length()) == 0);
  program.sockets->settle(socket.get());
  CHECK(port_of(socket.get()) == 0);
  REQUIRE(program.connect(socket.get()) == 0);
  CHECK(port_of(socket.get()) == port);
}

TEST_CASE("a program that says too late that its port may be left out has got one") {
  Program program({});
  const FileDescriptor socket = program.socket();
  const SocketAddress at(kClient, 0);
  REQUIRE(program.sockets->bind(socket.get(), at.get(), at.length()) == 0);
  program.sockets->leaving_port_out(socket.get());
  CHECK(port_of(socket.get()) != 0);
}

TEST_CASE("an IPv6 socket that binds any address without a port gets the planned one") {
  const std::uint16_t port = some_port();
  Program program({port});
  const FileDescriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    MESSAGE("skipped: this machine has no IPv6");
    return;
  }
  const SocketAddress any(IpAddress(), 0);
  REQUIRE(program.sockets->bind(socket.get(), any.get(), any.length()) == 0);
  const sockaddr_in6 to = mapped(program.to());
  program.sockets->connecting(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  CHECK(port_of(socket.get()) == port);
}

TEST_CASE("datagrams of a socket that binds any address without a port leave from the planned one") {
  const std::uint16_t port = some_port();
  Program program({port}, SOCK_DGRAM);
  const FileDescriptor socket = program.socket(SOCK_DGRAM);
  const SocketAddress any(IpAddress(0), 0);
  REQUIRE(program.sockets->bind(socket.get(), any.get(), any.length()) == 0);
  const SocketAddress to = program.to();
  program.sockets->sending(socket.get(), to.get(), to.length());
  CHECK(::sendto(socket.get(), "x", 1, 0, to.get(), to.length()) == 1);
  CHECK(port_of(socket.get()) == port);
}

TEST_CASE("connections outside of the networks, and other families, are left alone") {
  Program program({some_port()});
  const FileDescriptor socket = program.socket();
  const SocketAddress elsewhere(IpAddress(0x0A000001), 80);
  program.sockets->connecting(socket.get(), elsewhere.get(), elsewhere.length());
  const SocketAddress no_port(kServer, 0);
  program.sockets->connecting(socket.get(), no_port.get(), no_port.length());
  const SocketAddress there = program.to();
  program.sockets->connecting(socket.get(), there.get(), 3);
  program.sockets->connecting(socket.get(), nullptr, 16);
  program.sockets->connecting(-1, there.get(), there.length());
  sockaddr unknown{};
  unknown.sa_family = AF_UNSPEC;
  program.sockets->connecting(socket.get(), &unknown, sizeof unknown);
  CHECK(program.agent.requests().empty());
  CHECK(port_of(socket.get()) == 0);
}

TEST_CASE("datagrams: planned at the first send or at connect, and once") {
  const std::uint16_t first = some_port();
  const std::uint16_t second = some_port();
  Program program({first, second}, SOCK_DGRAM);
  const SocketAddress to = program.to();
  const FileDescriptor unconnected = program.socket(SOCK_DGRAM);
  for (int i = 0; i < 2; ++i) {
    program.sockets->sending(unconnected.get(), to.get(), to.length());
    CHECK(::sendto(unconnected.get(), "x", 1, 0, to.get(), to.length()) == 1);
  }
  CHECK(port_of(unconnected.get()) == first);
  const FileDescriptor connected = program.socket(SOCK_DGRAM);
  REQUIRE(program.connect(connected.get()) == 0);
  program.sockets->sending(connected.get(), nullptr, 0);
  CHECK(port_of(connected.get()) == second);
  CHECK(program.agent.requests().size() == 2);
}

TEST_CASE("a descriptor that is used again for something else is left alone") {
  Program program({some_port()});
  int number = -1;
  {
    const FileDescriptor datagrams = program.socket(SOCK_DGRAM);
    number = datagrams.get();
  }
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const FileDescriptor out(pipe[0]);
  const FileDescriptor in(pipe[1]);
  CHECK(number == pipe[0]);
  const SocketAddress to = program.to();
  program.sockets->sending(number, to.get(), to.length());
  program.sockets->connecting(number, to.get(), to.length());
  program.sockets->settle(number);
  CHECK(program.agent.requests().empty());
}

TEST_CASE("1,024 sockets of eight threads, each with a port of its own or the kernel's") {
  std::vector<std::uint16_t> planned(512);
  std::generate(planned.begin(), planned.end(), some_port);
  Program program(planned);
  std::vector<std::vector<FileDescriptor>> made(8);
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    threads.reserve(made.size());
    for (auto& own : made) {
      threads.emplace_back([&] {
        for (int i = 0; i < 128; ++i) {
          own.push_back(program.socket());
          if (program.connect(own.back().get()) != 0) ++failed;
        }
      });
    }
  }
  CHECK(failed == 0);
  std::set<std::uint16_t> ports;
  for (const auto& own : made) {
    for (const auto& socket : own) ports.insert(port_of(socket.get()));
  }
  CHECK(ports.size() == 1024);
}

TEST_CASE("forked children connect like their parent, also after they have closed all descriptors") {
  const std::uint16_t port = some_port();
  const std::uint16_t next = some_port();
  Program program({port, next});
  const SocketAddress to = program.to();
  for (const std::uint16_t expected : {port, next}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (expected == next) ::syscall(SYS_close_range, 3, ~0U, 0);
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      program.sockets->connecting(fd, to.get(), to.length());
      SocketAddress name;
      const bool right = ::connect(fd, to.get(), to.length()) == 0 &&
                         ::getsockname(fd, name.get(), name.length_place()) == 0 && name.port() == expected;
      ::_exit(right ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}
