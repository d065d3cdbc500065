// SPDX-License-Identifier: Apache-2.0
// Invalid data on the TCP and UDP ports, false claims in a hello.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/random.hpp"
#include "engine/channel.hpp"
#include "engine/device_fixture.hpp"
#include "engine/handshake.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

int connect_tcp(const std::shared_ptr<Listener>& listener) {
  const auto handle = *handshake::decode_handle(listener->handle);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(handle.address.ipv4());
  to.sin_port = htons(handle.tcp_port);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  return fd;
}

bool closed_by_peer(int fd) {
  return eventually([fd] {
    std::array<char, 256> bytes{};
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  });
}

TEST_CASE("invalid data on the TCP port closes that TCP connection and nothing else") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  SplitMix64 random(4);
  const Bytes refused = [] {  // a valid frame, but not a hello
    const auto bytes = handshake::encode(handshake::Close{1});
    return Bytes(bytes.begin(), bytes.end());
  }();
  std::vector<Bytes> greetings{test::from_hex("00000000"), test::from_hex("ffffffff"), test::from_hex("00004001"),
                               refused, Bytes(70'000, std::byte{'x'})};
  for (int i = 0; i < 20; ++i) greetings.push_back(test::random_fill(random, 64));
  for (const Bytes& greeting : greetings) {
    const int fd = connect_tcp(joined.listener);
    [[maybe_unused]] const ssize_t sent = ::send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL);
    // A frame whose length announces more bytes is valid until the deadline of the hello.
    const bool waits = greeting.size() == 64 && wire::get_u32(greeting.data()) <= handshake::kMaxFrameBytes &&
                       wire::get_u32(greeting.data()) > 60;
    if (!waits) CHECK(closed_by_peer(fd));
    ::close(fd);
  }
  // A part of a hello, then a close.
  const int fd = connect_tcp(joined.listener);
  REQUIRE(::send(fd, "\0\0", 2, 0) == 2);
  ::close(fd);
  joined.check(10'000);
  CHECK(pair.b.counters().peers == 1);
}

TEST_CASE("silent TCP connections do not keep peers out: the oldest is closed first") {
  DevicePair pair;
  const auto listener = pair.b.listen();
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.emplace_back(connect_tcp(listener));
    REQUIRE(::send(strangers.back().get(), "\0", 1, MSG_NOSIGNAL) ==
            1);  // a part of a frame does not extend the deadline
  }
  CHECK(open(pair.a.connect(listener->handle)));
  CHECK(closed_by_peer(strangers.front().get()));
  std::array<char, 1> byte{};
  CHECK(::recv(strangers.back().get(), byte.data(), byte.size(), MSG_DONTWAIT) < 0);  // its deadline has not passed
}

TEST_CASE("a hello that claims another address is refused") {
  DevicePair pair;
  const auto listener = pair.b.listen();
  const auto handle = *handshake::decode_handle(listener->handle);
  handshake::Hello hello{.listener = handle.listener, .token = handle.token, .endpoint = {}};
  hello.endpoint = {.device = {}, .address = 0x0A000001, .udp_port = 4791, .path_mtu = 1024, .qps = {{5, 6}}};
  const auto bytes = handshake::encode(hello);
  const int fd = connect_tcp(listener);
  REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  CHECK(closed_by_peer(fd));
  ::close(fd);
  CHECK(pair.b.counters().peers == 0);
}

TEST_CASE("a peer that claims another device's GUID gets none of its connections") {
  DevicePair pair;
  Device c(options(0x7F000003));
  const auto victim = c.listen();
  const auto listener = pair.b.listen();
  const auto handle = *handshake::decode_handle(listener->handle);
  handshake::Hello hello{.listener = handle.listener, .token = handle.token, .endpoint = {}};
  hello.endpoint = {.device = handshake::decode_handle(victim->handle)->device,
                    .address = kA,
                    .udp_port = 4791,
                    .path_mtu = 1024,
                    .qps = std::vector<QpIdentity>(8, {5, 6})};
  const auto bytes = handshake::encode(hello);
  const FileDescriptor liar(connect_tcp(listener));
  REQUIRE(::send(liar.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  REQUIRE(eventually([&] { return pair.b.counters().peers == 1; }));
  CHECK(open(pair.b.connect(victim->handle)));
  CHECK(pair.b.counters().peers == 2);
}

TEST_CASE("an Accept before the Welcome ends the peer, whose queue pairs are not connected yet") {
  DevicePair pair;
  const FileDescriptor server(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(kB);
  socklen_t size = sizeof at;
  REQUIRE(::bind(server.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(::listen(server.get(), 1) == 0);
  REQUIRE(::getsockname(server.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  auto handle = *handshake::decode_handle(pair.b.listen()->handle);
  handle.tcp_port = ntohs(at.sin_port);
  const ConnectionPtr connection = pair.a.connect(handshake::encode(handle));
  const FileDescriptor liar(::accept(server.get(), nullptr, nullptr));
  const auto bytes = handshake::encode(handshake::Accept{.connection = 1, .peer_connection = 7});
  REQUIRE(::send(liar.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  CHECK(!open(connection));
  CHECK(closed_by_peer(liar.get()));
}

TEST_CASE("a Closed that answers no Close ends the peer") {
  DevicePair pair;
  const auto listener = pair.b.listen();
  const auto handle = *handshake::decode_handle(listener->handle);
  Channel peer(kA, handle.address, handle.tcp_port, kSecond);
  REQUIRE(eventually([&] {
    peer.on_writable();
    return !peer.connecting();
  }));
  peer.send(handshake::Hello{
      .listener = handle.listener,
      .token = handle.token,
      .endpoint = {
          .device = {}, .address = kA, .udp_port = 4791, .path_mtu = 1024, .qps = std::vector<QpIdentity>(8, {5, 6})}});
  peer.send(handshake::Connect{.connection = 1, .listener = handle.listener, .token = handle.token});
  std::optional<handshake::Accept> accept;
  REQUIRE(eventually([&] {
    for (const handshake::Frame& frame : peer.on_readable()) {
      if (const auto* found = std::get_if<handshake::Accept>(&frame)) accept = *found;
    }
    return accept.has_value();
  }));
  peer.send(handshake::Closed{accept->peer_connection});
  CHECK(eventually([&] {
    static_cast<void>(peer.on_readable());
    return peer.closed();
  }));
}

/// Sends arbitrary datagrams to a device, from 127.0.0.`last`.
struct RawSender {
  explicit RawSender(std::uint8_t last) : fd(::socket(AF_INET, SOCK_DGRAM, 0)) {
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7F000000U | last);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0);
  }
  RawSender(const RawSender&) = delete;
  RawSender& operator=(const RawSender&) = delete;
  ~RawSender() { ::close(fd); }
  void send(const Bytes& bytes, const Device& to, std::uint32_t address) const {
    sockaddr_in target{};
    target.sin_family = AF_INET;
    target.sin_addr.s_addr = htonl(address);
    target.sin_port = htons(to.udp_port());
    ::sendto(fd, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&target), sizeof target);
  }
  int fd;
};

TEST_CASE("invalid packets on the UDP port are counted by reason and otherwise ignored") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const RawSender from_a(1);
  const RawSender from_elsewhere(9);
  SplitMix64 random(8);
  const Discards before = pair.b.counters().discards;
  constexpr std::uint64_t kEach = 50;
  const std::uint32_t qpn = pair.b.counters().lanes[0].qpn;
  for (std::uint64_t i = 0; i < kEach; ++i) {
    from_a.send(Bytes(1 + random.below(15)), pair.b, kB);  // too short
    Bytes packet(64);
    const auto header = wire::data_header(wire::Opcode::kSendOnly, 1, 0, true, 0, 0, 0, 0, 0);
    std::copy_n(header.bytes.begin(), header.length, packet.begin());
    from_a.send(packet, pair.b, kB);  // unknown QP
    wire::put_u32(packet.data() + 4, qpn);
    from_elsewhere.send(packet, pair.b, kB);
    from_a.send(packet, pair.b, kB);  // known QP and source, wrong ICRC
  }
  CHECK(eventually([&] {
    const Discards now = pair.b.counters().discards;
    return now.malformed - before.malformed == kEach && now.unknown_qp - before.unknown_qp == kEach &&
           now.wrong_source - before.wrong_source == kEach && now.icrc - before.icrc == kEach;
  }));
  for (int i = 0; i < 2000; ++i) from_a.send(test::random_fill(random, 1 + random.below(300)), pair.b, kB);
  joined.check(100'000);
}

}  // namespace
}  // namespace paralet
