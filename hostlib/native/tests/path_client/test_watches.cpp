// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "path_client/watches.hpp"

namespace paralet::path_client {
namespace {

constexpr PeerName kWatchedPeer = 0x0A000102;
constexpr std::uint32_t kOld = 0xAC100001;
constexpr std::uint32_t kNew = 0xAC100002;

/// Watches, a clock, and what has moved.
struct Scenery {
  Watches watches;
  Nanos now = 10 * kSecond;

  bool watch(const std::vector<std::uint16_t>& ports, PeerName peer = kWatchedPeer, std::uint32_t router = kOld) {
    Watch message{.peer = peer, .ttl = 3, .period = kSecond, .ports = {}};
    for (const std::uint16_t port : ports) message.ports.push_back({.port = port, .router = router});
    return watches.set(message, now).has_value();
  }
  std::vector<Watches::Due> leaving() {
    std::vector<Watches::Due> out;
    while (const auto due = watches.next(now)) out.push_back(*due);
    return out;
  }
  static ProbedPort by(std::uint32_t router, std::uint16_t port = 50000) {
    return {.port = port, .answer = PortAnswer::kHop, .router = router, .round_trip = kMillisecond};
  }
  static ProbedPort none(std::uint16_t port = 50000) { return {.port = port, .answer = PortAnswer::kNone}; }
  /// A period later: the one probe that is due then gets this answer. What has moved.
  std::vector<Moved> after(const ProbedPort& answer) {
    now += kSecond;
    const auto due = leaving();
    REQUIRE(due.size() == 1);
    watches.settled(due[0], answer);
    return watches.take_moved();
  }
};

TEST_CASE("a watched port is probed once a period") {
  Scenery scene;
  CHECK(scene.watch({50000}));
  CHECK(scene.after(Scenery::by(kOld)).empty());
  CHECK(scene.leaving().empty());
  CHECK(scene.watches.deadline() > scene.now);
  CHECK(scene.watches.deadline() <= scene.now + kSecond);
  CHECK(scene.after(Scenery::by(kOld)).empty());
}

TEST_CASE("the ports of a watch are spread over the period, since all were measured just before it") {
  Scenery scene;
  scene.watch({50000, 50001, 50002, 50003});
  CHECK(scene.leaving().empty());
  scene.now += kSecond / 4;
  CHECK(scene.leaving().size() == 1);
  scene.now += kSecond / 2;
  CHECK(scene.leaving().size() == 2);
  scene.now += kSecond / 4;
  CHECK(scene.leaving().size() == 1);
}

TEST_CASE("a port that was answered for somebody else is probed a period later") {
  Scenery scene;
  scene.watch({50000, 50001});
  scene.now += kSecond / 4;
  scene.watches.put_off({.peer = kWatchedPeer, .ttl = 3, .port = 50000}, scene.now);
  scene.watches.put_off({.peer = kWatchedPeer, .ttl = 4, .port = 50001}, scene.now);  // which nobody watches there
  scene.now += 3 * kSecond / 4;
  const auto due = scene.leaving();
  REQUIRE(due.size() == 1);
  CHECK(due[0].port == 50001);
  scene.now += kSecond / 4;
  REQUIRE(scene.leaving().size() == 1);
  scene.watches.put_off({.peer = kWatchedPeer, .ttl = 3, .port = 50000}, scene.now);  // it is out already
  scene.watches.settled({.peer = kWatchedPeer, .ttl = 3, .port = 50000}, Scenery::by(kOld));
  scene.now += kSecond;
  CHECK(scene.leaving().size() == 1);
}

TEST_CASE("a port has one probe out at a time, however late that is") {
  Scenery scene;
  scene.watch({50000});
  scene.now += kSecond;
  const auto due = scene.leaving();
  REQUIRE(due.size() == 1);
  scene.now += 10 * kSecond;
  CHECK(scene.leaving().empty());
  CHECK(scene.watches.deadline() == kNever);
  scene.watches.settled(due[0], Scenery::by(kOld));
  CHECK(scene.leaving().size() == 1);  // one, not ten
}

TEST_CASE("another router is told once, and so is the return to the first") {
  Scenery scene;
  scene.watch({50000});
  const auto moved = scene.after(Scenery::by(kNew));
  REQUIRE(moved.size() == 1);
  CHECK(moved[0].peer == kWatchedPeer);
  CHECK(moved[0].answers == std::vector<ProbedPort>{Scenery::by(kNew)});
  CHECK(scene.after(Scenery::by(kNew)).empty());
  CHECK(scene.after(Scenery::by(kOld)).size() == 1);
  CHECK(scene.after(Scenery::by(kOld)).empty());
}

TEST_CASE("silence is told at its third probe, once") {
  Scenery scene;
  scene.watch({50000});
  CHECK(scene.after(Scenery::none()).empty());
  CHECK(scene.after(Scenery::none()).empty());
  const auto moved = scene.after(Scenery::none());
  REQUIRE(moved.size() == 1);
  CHECK(moved[0].answers == std::vector<ProbedPort>{Scenery::none()});
  for (int i = 0; i < 5; ++i) CHECK(scene.after(Scenery::none()).empty());
}

TEST_CASE("an answer between two lost probes ends the count of silence") {
  Scenery scene;
  scene.watch({50000});
  for (int i = 0; i < 4; ++i) {
    CHECK(scene.after(Scenery::none()).empty());
    CHECK(scene.after(Scenery::none()).empty());
    CHECK(scene.after(Scenery::by(kOld)).empty());
  }
}

TEST_CASE("a silent port that is answered again has changed again, even by the same router") {
  Scenery scene;
  scene.watch({50000});
  for (unsigned i = 0; i < Watches::kSilent; ++i) scene.after(Scenery::none());
  CHECK(scene.after(Scenery::by(kOld)).size() == 1);
  CHECK(scene.after(Scenery::by(kOld)).empty());
}

TEST_CASE("a destination that answers in place of the router is a change") {
  Scenery scene;
  scene.watch({50000});
  const ProbedPort arrived{.port = 50000, .answer = PortAnswer::kDestination, .router = kWatchedPeer.address};
  REQUIRE(scene.after(arrived).size() == 1);
  CHECK(scene.after(arrived).empty());
}

TEST_CASE("a probe that this host could not send tells nothing") {
  Scenery scene;
  scene.watch({50000});
  for (int i = 0; i < 5; ++i) CHECK(scene.after({.port = 50000, .answer = PortAnswer::kFailed}).empty());
  CHECK(scene.after(Scenery::none()).empty());
}

TEST_CASE("a watch replaces that of the same peer, and an empty one ends it") {
  Scenery scene;
  const PeerName other(kWatchedPeer.address, 5000);
  scene.watch({50000, 50001});
  scene.watch({50002}, other);
  CHECK(scene.watches.size() == 3);
  scene.watch({50001});
  CHECK(scene.watches.size() == 2);
  scene.watch({});
  CHECK(scene.watches.size() == 1);
  scene.now += kSecond;
  const auto due = scene.leaving();
  REQUIRE(due.size() == 1);
  CHECK(due[0].peer == other);
  scene.watch({}, other);
  CHECK(scene.watches.deadline() == kNever);
}

TEST_CASE("a watch that is sent again and again neither puts probes off nor hides silence") {
  Scenery scene;
  scene.watch({50000});
  unsigned probes = 0;
  std::size_t moved = 0;
  for (int i = 0; i < 40; ++i) {
    for (const auto& due : scene.leaving()) {
      ++probes;
      scene.watches.settled(due, Scenery::none());
    }
    moved += scene.watches.take_moved().size();
    if (moved == 0) scene.watch({50000});
    scene.now += kSecond / 10;
  }
  CHECK(probes == 3);
  CHECK(moved == 1);
}

TEST_CASE("probes of a watch that has ended are given back, and their answers tell nothing") {
  Scenery scene;
  scene.watch({50000});
  scene.now += kSecond;
  const auto due = scene.leaving();
  REQUIRE(due.size() == 1);
  const auto dropped = scene.watches.set({.peer = kWatchedPeer, .ttl = 3, .period = kSecond, .ports = {}}, scene.now);
  REQUIRE(dropped);
  REQUIRE(dropped->size() == 1);
  CHECK(dropped->at(0).port == 50000);
  scene.watches.settled(due[0], Scenery::by(kNew));
  CHECK(scene.watches.take_moved().empty());
  CHECK(scene.watches.deadline() == kNever);
}

TEST_CASE("watches of one peer at several hops do not replace each other, and changes are told of each") {
  Scenery scene;
  const Watch farther{
      .peer = kWatchedPeer, .ttl = 4, .period = 2 * kSecond, .ports = {{.port = 50000, .router = kOld}}};
  scene.watch({50000});
  REQUIRE(scene.watches.set(farther, scene.now));
  CHECK(scene.watches.size() == 2);
  scene.now += 2 * kSecond;
  const auto due = scene.leaving();
  REQUIRE(due.size() == 2);
  CHECK(due[0].ttl == 3);
  CHECK(due[1].ttl == 4);
  scene.watches.settled(due[1], Scenery::by(kNew));
  scene.watches.settled(due[0], Scenery::by(kOld));
  const auto moved = scene.watches.take_moved();
  REQUIRE(moved.size() == 1);
  CHECK(moved[0].ttl == 4);
  CHECK(moved[0].answers == std::vector<ProbedPort>{Scenery::by(kNew)});
  scene.watch({});
  scene.now += 2 * kSecond;
  const auto left = scene.leaving();
  REQUIRE(left.size() == 1);
  CHECK(left[0].ttl == 4);
  // A late answer at the hop that is not watched any more tells nothing.
  scene.watches.settled({.peer = kWatchedPeer, .ttl = 3, .port = 50000}, Scenery::by(kNew));
  CHECK(scene.watches.take_moved().empty());
}

TEST_CASE("at most 4,096 ports are watched: what would be more changes nothing") {
  Scenery scene;
  const auto peer = [](std::uint32_t i) { return PeerName(0x0B000000 + i); };
  std::vector<std::uint16_t> ports;
  for (std::uint16_t i = 0; i < kMaxProbedPorts; ++i) ports.push_back(static_cast<std::uint16_t>(50000 + i));
  for (std::uint32_t i = 0; i < Watches::kMostPorts / kMaxProbedPorts; ++i) REQUIRE(scene.watch(ports, peer(i)));
  CHECK_FALSE(scene.watch({50000}, peer(1000)));
  CHECK(scene.watches.size() == Watches::kMostPorts);
  CHECK(scene.watch(ports, peer(3)));  // in place of as many
  CHECK(scene.watch({50000}, peer(3)));
  CHECK(scene.watch({50000}, peer(1000)));
}

TEST_CASE("many changes make several messages of at most 64 ports, each of one peer") {
  Scenery scene;
  std::vector<std::uint16_t> ports;
  for (std::uint16_t i = 0; i < kMaxProbedPorts; ++i) ports.push_back(static_cast<std::uint16_t>(50000 + i));
  scene.watch(ports);
  scene.watch({50000}, 0x0A000103);
  for (const std::uint32_t router : {kNew, kOld}) {
    scene.now += 2 * kSecond;
    for (const auto& due : scene.leaving()) scene.watches.settled(due, Scenery::by(router, due.port));
  }
  const auto moved = scene.watches.take_moved();
  REQUIRE(moved.size() == 3);
  CHECK(moved[0].answers.size() == 64);
  CHECK(moved[1].answers.size() == 64);
  CHECK(moved[2].answers.size() == 2);
  CHECK(scene.watches.take_moved().empty());
}

}  // namespace
}  // namespace paralet::path_client
