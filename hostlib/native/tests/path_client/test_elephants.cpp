// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "path_client/elephants.hpp"

namespace paralet::controller {
namespace {

constexpr PeerName kPeer = 0x0A000002;
constexpr std::uint64_t kThreshold = 1000;

/// Elephants with what they said.
struct Zoo {
  std::vector<Event> said;
  bool room = true;
  Elephants elephants{kThreshold, [this](const Event& event) {
                        if (room) said.push_back(event);
                        return room;
                      }};
  Nanos now = 10 * kSecond;

  bool start(std::uint64_t bytes, PeerName peer = kPeer) { return elephants.started(peer, bytes, now); }
  void pass(Nanos time, const PeerView& view = {}) {
    now += time;
    elephants.observe(kPeer, view);
    elephants.tick(now);
  }
  template <typename T>
  std::vector<T> all() const {
    std::vector<T> out;
    for (const Event& event : said) {
      if (const auto* found = std::get_if<T>(&event)) out.push_back(*found);
    }
    return out;
  }
};

TEST_CASE("messages in a row are an elephant from the threshold on, told once and when they double") {
  Zoo zoo;
  CHECK(!zoo.start(999));
  CHECK(zoo.said.empty());
  CHECK(zoo.start(1));
  CHECK(!zoo.start(999));
  CHECK(zoo.said.size() == 1);
  CHECK(!zoo.start(1));  // grown, not new
  CHECK(!zoo.start(1));
  const auto announces = zoo.all<Announce>();
  REQUIRE(announces.size() == 2);
  CHECK(announces[0].bytes == 1000);
  CHECK(announces[1].bytes == 2000);
  CHECK(announces[0].id == announces[1].id);
  CHECK(announces[0].peer == kPeer);
  CHECK(zoo.elephants.open(kPeer) == announces[0].id);
  CHECK(zoo.elephants.open(PeerName(kPeer.address + 1)) == 0);
  CHECK(zoo.elephants.open() == 1);
}

TEST_CASE("a pause parts one burst from the next") {
  Zoo zoo;
  zoo.start(999);
  zoo.pass(500 * kMillisecond);
  CHECK(!zoo.start(999));
  zoo.pass(499 * kMillisecond);
  CHECK(zoo.start(1));
}

TEST_CASE("released after half a second or ten round trips without anything under way") {
  Zoo zoo;
  zoo.start(kThreshold);
  zoo.pass(10 * kSecond, {.busy = true, .rtt = 100 * kMillisecond});
  zoo.elephants.delivered(kPeer, 10, zoo.now);
  zoo.pass(999 * kMillisecond, {.rtt = 100 * kMillisecond});
  CHECK(zoo.all<Release>().empty());
  zoo.pass(1 * kMillisecond, {.rtt = 100 * kMillisecond});
  REQUIRE(zoo.all<Release>().size() == 1);
  CHECK(zoo.all<Release>()[0].id == zoo.all<Announce>()[0].id);
  CHECK(zoo.elephants.open() == 0);
  zoo.pass(kSecond);
  CHECK(zoo.all<Release>().size() == 1);
  CHECK(zoo.start(kThreshold));
  CHECK(zoo.all<Announce>()[1].id != zoo.all<Announce>()[0].id);
  zoo.pass(500 * kMillisecond, {.rtt = 1 * kMillisecond});
  CHECK(zoo.all<Release>().size() == 2);
}

TEST_CASE("a peer that is gone has no elephant") {
  Zoo zoo;
  zoo.start(kThreshold);
  zoo.elephants.tick(zoo.now);
  CHECK(zoo.all<Release>().size() == 1);
  CHECK(zoo.elephants.open(kPeer) == 0);
}

TEST_CASE("several devices at one address count together") {
  Zoo zoo;
  zoo.start(kThreshold);
  zoo.now += kSecond;
  zoo.elephants.observe(kPeer, {.busy = true, .rtt = 1, .retransmits = 2});
  zoo.elephants.observe(kPeer, {.busy = false, .rtt = 5, .retransmits = 3});
  zoo.elephants.tick(zoo.now);
  REQUIRE(zoo.all<Measured>().size() == 1);
  CHECK(zoo.all<Measured>()[0].rtt == 5);
  CHECK(zoo.all<Measured>()[0].retransmits == 5);
  CHECK(zoo.all<Release>().empty());
}

TEST_CASE("measured once a second, since the last time") {
  Zoo zoo;
  zoo.start(kThreshold);
  zoo.elephants.delivered(kPeer, 300, zoo.now);
  zoo.pass(kSecond - 1, {.busy = true});
  CHECK(zoo.all<Measured>().empty());
  zoo.pass(1, {.busy = true, .rtt = 7, .retransmits = 4});
  zoo.elephants.delivered(kPeer, 500, zoo.now);
  zoo.pass(kSecond, {.busy = true, .rtt = 8, .retransmits = 5});
  zoo.pass(2 * kSecond, {.busy = true, .rtt = 8, .retransmits = 1});  // new QPs count from 0
  const auto measured = zoo.all<Measured>();
  REQUIRE(measured.size() == 3);
  CHECK(measured[0].bytes == 300);
  CHECK(measured[0].duration == kSecond);
  CHECK(measured[0].retransmits == 4);
  CHECK(measured[1].bytes == 500);
  CHECK(measured[1].rtt == 8);
  CHECK(measured[1].retransmits == 1);
  CHECK(measured[2].duration == 2 * kSecond);
  CHECK(measured[2].retransmits == 0);
}

TEST_CASE("without room in the queue it is said later") {
  Zoo zoo;
  zoo.room = false;
  CHECK(!zoo.start(kThreshold));
  CHECK(zoo.elephants.open() == 0);
  zoo.pass(5 * kMillisecond, {.busy = true});
  CHECK(zoo.elephants.dropped() == 2);
  zoo.room = true;
  zoo.pass(5 * kMillisecond, {.busy = true});
  CHECK(zoo.all<Announce>().size() == 1);
  zoo.room = false;
  zoo.pass(500 * kMillisecond);
  CHECK(zoo.elephants.open() == 1);  // the service must hear of the end
  zoo.room = true;
  zoo.pass(5 * kMillisecond);
  CHECK(zoo.all<Release>().size() == 1);
}

TEST_CASE("a steady rhythm has a period, an unsteady one has not") {
  Rhythm rhythm;
  for (const Nanos t : {0, 100, 205}) {
    rhythm.started(t);
    CHECK(rhythm.period() == 0);
  }
  rhythm.started(300);
  CHECK(rhythm.period() == 100);
  rhythm.started(500);
  CHECK(rhythm.period() == 0);
  for (const Nanos t : {700, 900, 1100}) rhythm.started(t);
  CHECK(rhythm.period() == 200);
}

TEST_CASE("the period is told with the fourth elephant") {
  Zoo zoo;
  for (int i = 0; i < 5; ++i) {
    zoo.start(kThreshold);
    zoo.start(2 * kThreshold);  // growth is no start
    zoo.pass(kSecond);
  }
  const auto announces = zoo.all<Announce>();
  REQUIRE(announces.size() == 10);
  for (std::size_t i = 0; i < announces.size(); ++i) CHECK(announces[i].repeat == (i < 6 ? 0 : kSecond));
}

}  // namespace
}  // namespace paralet::controller
