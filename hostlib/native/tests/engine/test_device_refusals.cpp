// SPDX-License-Identifier: Apache-2.0
// Connections that are refused and devices that cannot be opened.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <string>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"
#include "engine/device_fixture.hpp"
#include "engine/handshake.hpp"
#include "free_ports.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("a wrong token is refused, with and without existing QPs") {
  DevicePair pair;
  const auto listener = pair.b.listen();
  handshake::Handle forged = *handshake::decode_handle(listener->handle);
  forged.token[0] ^= std::byte{1};
  CHECK(connect_error(pair.a, handshake::encode(forged)) ==
        "127.0.0.2 refused: nobody listens there any more, or the handle is wrong");
  const Joined joined(pair.a, pair.b);
  CHECK(connect_error(pair.a, handshake::encode(forged)) == "127.0.0.2 refused: nobody listens there any more");
  handshake::Handle elsewhere = *handshake::decode_handle(listener->handle);
  elsewhere.listener += 1000;
  CHECK(connect_error(pair.a, handshake::encode(elsewhere)) == "127.0.0.2 refused: nobody listens there any more");
  joined.check(100);
}

TEST_CASE("a closed listener refuses, and closes connections that were not accepted") {
  DevicePair pair;
  const Joined kept(pair.a, pair.b);
  const auto listener = pair.b.listen();
  const auto waiting = pair.a.connect(listener->handle);
  REQUIRE(open(waiting));
  pair.b.stop_listening(listener);
  pair.b.stop_listening(listener);
  CHECK(eventually([&] { return waiting->failure == Failure::kClosed; }));
  CHECK(connect_error(pair.a, listener->handle) == "127.0.0.2 refused: nobody listens there any more");
  pair.b.stop_listening(kept.listener);
  kept.check(1000);  // accepted connections stay
}

TEST_CASE("connecting to an address where nothing listens reports the reason") {
  Device a(options(kA));
  handshake::Handle nowhere{.address = kB, .tcp_port = 1, .device = {}, .listener = 1, .token = {}};
  CHECK(connect_error(a, handshake::encode(nowhere)) == "cannot connect to 127.0.0.2: Connection refused");
  nowhere.address = 0;  // an address that no socket can connect to
  nowhere.tcp_port = 0;
  CHECK(connect_error(a, handshake::encode(nowhere)).rfind("cannot connect to 0.0.0.0: ", 0) == 0);
  CHECK(eventually([&] { return a.counters().peers == 0; }));
}

TEST_CASE("an invalid handle throws std::invalid_argument") {
  Device a(options(kA));
  CHECK_THROWS_AS(a.connect(Bytes(128)), std::invalid_argument);
  CHECK_THROWS_AS(a.connect(Bytes(3)), std::invalid_argument);
}

TEST_CASE("a device that cannot be opened reports the reason") {
  CHECK_THROWS_WITH_AS(Device(options(0xC0000201)),
                       "no interface of this machine has the address 192.0.2.1 (list them with: ip address)",
                       DeviceError);
  CHECK_THROWS_WITH_AS(Device(options(kA, 0)), "lanes must be 1 to 1024", DeviceError);
}

TEST_CASE("the error for a pinned port that another program holds names the port" * of_soft()) {
  const std::uint16_t port = free_port();
  const FileDescriptor held(::socket(AF_INET, SOCK_DGRAM, 0));
  REQUIRE(::bind(held.get(), SocketAddress(kA, port).get(), SocketAddress::kRoom) == 0);
  DeviceOptions pinned = options(kA, 1);
  pinned.policy.kind = PolicyKind::kPinned;
  pinned.policy.ports[kB] = {port};
  Device a(pinned);
  Device b(options(kB));
  const auto listener = b.listen();
  CHECK(connect_error(a, listener->handle) ==
        "UDP source port " + std::to_string(port) + " of 127.0.0.1 is taken by another program");
  // In the other direction the listening side cannot bind the port, so it refuses.
  const auto mine = a.listen();
  CHECK(connect_error(b, mine->handle) ==
        "127.0.0.1 refused: UDP source port " + std::to_string(port) + " of 127.0.0.1 is taken by another program");
}

}  // namespace
}  // namespace paralet
