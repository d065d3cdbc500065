// SPDX-License-Identifier: Apache-2.0
// The sending half of a QP towards a peer that the test plays. Time is an argument.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.hpp"
#include "base/socket_address.hpp"
#include "bytes.hpp"
#include "tcp/sender.hpp"

namespace paralet::tcp {
namespace {

using test::Bytes;

constexpr std::uint32_t kOwn = 0x7F000001;
constexpr std::uint32_t kPeer = 0x7F000002;
constexpr int kTimeLimitMs = 30'000;

/// What the peer says after a hello.
struct Says {
  Bytes first;
  bool ends = false;  ///< it closes the connection then
};

void add(Bytes& to, const Notice& notice) {
  const auto bytes = encode(notice);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

Bytes welcome(std::uint64_t frames = 0) {
  Bytes out;
  add(out, {.kind = Notice::Kind::kWelcome, .frames = frames});
  return out;
}

struct SenderScene {
  SenderScene() {
    settings.address = IpAddress(kOwn);
    REQUIRE(listener.valid());
    SocketAddress local(IpAddress(kPeer), 0);
    REQUIRE(::bind(listener.get(), local.get(), local.length()) == 0);
    REQUIRE(::listen(listener.get(), SOMAXCONN) == 0);
    REQUIRE(::getsockname(listener.get(), local.get(), local.length_place()) == 0);
    remote.address = IpAddress(kPeer);
    remote.udp_port = local.port();
    remote.qpn = 9;
    remote.path_mtu = 1024;
    remote.ece.options = kAnswersPings;
    while (sender.connect(remote, any_port(), time) != 0) {
    }
  }
  static std::uint16_t any_port() { return static_cast<std::uint16_t>(0xC000 + random_u32() % 0x4000); }

  /// Waits for the peer's next event, and shows the sender all that are due.
  void serve() {
    pollfd due{.fd = watcher.fd(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&due, 1, kTimeLimitMs) == 1);
    std::array<epoll_event, 16> room;
    for (const epoll_event& event : watcher.ready(room)) sender.on_event(event.data.u64, event.events, time);
  }
  /// The peer takes the next connection and its hello.
  FileDescriptor accept() {
    pollfd due{.fd = listener.get(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&due, 1, kTimeLimitMs) == 1);
    FileDescriptor out(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(out.valid());
    serve();  // it is connected, and says hello
    std::array<std::byte, kHelloBytes> hello;
    REQUIRE(::recv(out.get(), hello.data(), hello.size(), MSG_WAITALL) == static_cast<ssize_t>(hello.size()));
    return out;
  }
  /// The same, and answers. One event of the sender's tells of all that it says.
  FileDescriptor meet(const Says& says) {
    FileDescriptor out = accept();
    REQUIRE(::send(out.get(), says.first.data(), says.first.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(says.first.size()));
    if (says.ends) out.reset();
    serve();
    return out;
  }
  /// Whether the sender opens another connection before this time.
  bool connects_before(Nanos until) {
    for (; time < until; time += kMillisecond) {
      sender.tick(time);
      pollfd due{.fd = listener.get(), .events = POLLIN, .revents = 0};
      if (::poll(&due, 1, 0) == 1) return true;
    }
    return false;
  }

  SocketSettings settings;
  Watcher watcher;
  std::vector<Completion> completions;
  Batch batch;
  SendContext context{settings, 5 * kMillisecond, watcher, completions, batch};
  Sender sender{context, {.qpn = 7, .first_psn = 1}};
  FileDescriptor listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  RemoteQp remote;
  Nanos time = kSecond;
};

TEST_CASE("a sender notices an end that comes together with the welcome") {
  SenderScene scene;
  const FileDescriptor ended = scene.meet({.first = welcome(), .ends = true});
  CHECK(scene.connects_before(2 * kSecond));
}

TEST_CASE("a sender notices an end that comes together with a part of a notice") {
  SenderScene scene;
  FileDescriptor connection = scene.meet({.first = welcome()});
  REQUIRE_FALSE(scene.connects_before(2 * kSecond));
  const Bytes part(kNoticeBytes / 2);
  REQUIRE(::send(connection.get(), part.data(), part.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(part.size()));
  connection.reset();
  scene.serve();
  CHECK(scene.connects_before(3 * kSecond));
}

TEST_CASE("a sender takes a refusal that comes together with the welcome") {
  SenderScene scene;
  Says says{.first = welcome()};
  add(says.first, {.kind = Notice::Kind::kRefused, .status = Status::kRemoteAccess});
  const FileDescriptor connection = scene.meet(says);
  CHECK(scene.sender.failed());
  REQUIRE(scene.completions.size() == 1);
  CHECK(scene.completions.front().status == Status::kRemoteAccess);
}

TEST_CASE("a sender takes a refusal that has come when a new port replaces its connection") {
  SenderScene scene;
  const FileDescriptor connection = scene.meet({.first = welcome()});
  while (scene.sender.set_port(SenderScene::any_port(), scene.time) != PortChange::kStarted) {
  }
  pollfd due{.fd = scene.listener.get(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&due, 1, kTimeLimitMs) == 1);
  std::array<epoll_event, 16> room;
  const auto connected = scene.watcher.ready(room);
  REQUIRE(connected.size() == 1);
  Bytes refusal;
  add(refusal, {.kind = Notice::Kind::kRefused, .status = Status::kRemoteInvalid});
  REQUIRE(::send(connection.get(), refusal.data(), refusal.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(refusal.size()));
  scene.sender.on_event(connected[0].data.u64, connected[0].events, scene.time);
  CHECK(scene.sender.failed());
  CHECK(std::ranges::count(scene.completions, Status::kRemoteInvalid, &Completion::status) == 1);
}

TEST_CASE("a refusal in place of the welcome ends the lane with its reason") {
  SenderScene scene;
  Says says;
  add(says.first, {.kind = Notice::Kind::kRefused, .status = Status::kRemoteAccess});
  const FileDescriptor connection = scene.meet(says);
  CHECK(scene.sender.failed());
  REQUIRE(scene.completions.size() == 1);
  CHECK(scene.completions.front().status == Status::kRemoteAccess);
}

TEST_CASE("a peer that ends each connection as soon as it has welcomed it is tried ever more rarely") {
  SenderScene scene;
  std::vector<Nanos> pauses;
  for (int i = 0; i < 5; ++i) {
    const FileDescriptor ended = scene.meet({.first = welcome(), .ends = true});
    const Nanos before = scene.time;
    REQUIRE(scene.connects_before(before + 2 * kSecond));
    pauses.push_back(scene.time - before);
  }
  CHECK(std::ranges::is_sorted(pauses));
  CHECK(pauses.front() > 0);
  CHECK(pauses.back() >= 100 * pauses.front());
}

TEST_CASE("a connection that has lasted is followed by another one at once") {
  SenderScene scene;
  for (int i = 0; i < 3; ++i) {
    FileDescriptor connection = scene.meet({.first = welcome()});
    scene.time += kSecond;
    connection.reset();
    scene.serve();
    CHECK(scene.connects_before(scene.time + 1));
  }
}

TEST_CASE("a new port is given up as early after a connection of use as if none before it had failed") {
  SenderScene scene;
  for (int i = 0; i < 3; ++i) {
    scene.meet({.ends = true});
    REQUIRE(scene.connects_before(scene.time + 2 * kSecond));
  }
  const FileDescriptor connection = scene.meet({.first = welcome()});
  scene.time += kSecond;
  while (scene.sender.set_port(SenderScene::any_port(), scene.time) != PortChange::kStarted) {
  }
  scene.sender.tick(scene.time + 251 * kMillisecond);
  REQUIRE(scene.completions.size() == 1);
  CHECK(scene.completions.front().kind == Completion::Kind::kPortChanged);
  CHECK(scene.completions.front().status == Status::kRetryExceeded);
}

TEST_CASE("a sender looks for the acknowledgement of a SEND when a thread that sleeps would, of a WRITE at once") {
  SenderScene scene;
  const FileDescriptor connection = scene.meet({.first = welcome()});
  const Bytes payload(100);
  const auto send = [&](WorkKind kind) {
    scene.sender.post({.kind = kind, .data = payload.data(), .length = 100}, scene.time);
    Bytes got(kFrameBytes + payload.size());
    for (std::size_t sent = 0; sent < got.size();) sent += scene.sender.send(got.size());
    REQUIRE(::recv(connection.get(), got.data(), got.size(), MSG_WAITALL) == static_cast<ssize_t>(got.size()));
  };
  send(WorkKind::kSend);
  const Nanos next = scene.sender.deadline();
  CHECK(next > scene.time + 2 * kMicrosecond);
  for (; scene.time < next; scene.time += kMicrosecond) {
    scene.sender.tick(scene.time);
    CHECK_FALSE(scene.sender.queue().empty());
  }
  for (int i = 0; i < kTimeLimitMs && !scene.sender.queue().empty(); ++i) {
    scene.time = scene.sender.deadline();
    scene.sender.tick(scene.time);
    ::poll(nullptr, 0, 1);
  }
  CHECK(scene.completions.size() == 1);
  send(WorkKind::kWriteImm);
  for (int i = 0; i < kTimeLimitMs && !scene.sender.queue().empty(); ++i) {
    scene.time += 2 * kMicrosecond;
    scene.sender.tick(scene.time);
    ::poll(nullptr, 0, 1);
  }
  CHECK(scene.completions.size() == 2);
}

}  // namespace
}  // namespace paralet::tcp
