// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "path_client/elephants.hpp"

namespace paralet::path_client {
namespace {

constexpr PeerName kPeer = 0x0A000002;
constexpr std::uint64_t kThreshold = 1000;

/// Elephants, and the events that they emitted.
struct Tracked {
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

TEST_CASE("messages without a pause become an elephant at the threshold, announced once and at each doubling") {
  Tracked tracked;
  CHECK(!tracked.start(999));
  CHECK(tracked.said.empty());
  CHECK(tracked.start(1));
  CHECK(!tracked.start(999));
  CHECK(tracked.said.size() == 1);
  CHECK(!tracked.start(1));  // it has grown, it is not new
  CHECK(!tracked.start(1));
  const auto announces = tracked.all<Announce>();
  REQUIRE(announces.size() == 2);
  CHECK(announces[0].bytes == 1000);
  CHECK(announces[1].bytes == 2000);
  CHECK(announces[0].id == announces[1].id);
  CHECK(announces[0].peer == kPeer);
  CHECK(tracked.elephants.open(kPeer) == announces[0].id);
  CHECK(tracked.elephants.open(PeerName(kPeer.address.ipv4() + 1)) == 0);
  CHECK(tracked.elephants.open() == 1);
}

TEST_CASE("a pause separates two bursts") {
  Tracked tracked;
  tracked.start(999);
  tracked.pass(500 * kMillisecond);
  CHECK(!tracked.start(999));
  tracked.pass(499 * kMillisecond);
  CHECK(tracked.start(1));
}

TEST_CASE("an elephant is released after half a second or ten round trips without traffic") {
  Tracked tracked;
  tracked.start(kThreshold);
  tracked.pass(10 * kSecond, {.busy = true, .rtt = 100 * kMillisecond});
  tracked.elephants.delivered(kPeer, 10, tracked.now);
  tracked.pass(999 * kMillisecond, {.rtt = 100 * kMillisecond});
  CHECK(tracked.all<Release>().empty());
  tracked.pass(1 * kMillisecond, {.rtt = 100 * kMillisecond});
  REQUIRE(tracked.all<Release>().size() == 1);
  CHECK(tracked.all<Release>()[0].id == tracked.all<Announce>()[0].id);
  CHECK(tracked.elephants.open() == 0);
  tracked.pass(kSecond);
  CHECK(tracked.all<Release>().size() == 1);
  CHECK(tracked.start(kThreshold));
  CHECK(tracked.all<Announce>()[1].id != tracked.all<Announce>()[0].id);
  tracked.pass(500 * kMillisecond, {.rtt = 1 * kMillisecond});
  CHECK(tracked.all<Release>().size() == 2);
}

TEST_CASE("an elephant ends when its peer disappears") {
  Tracked tracked;
  tracked.start(kThreshold);
  tracked.elephants.tick(tracked.now);
  CHECK(tracked.all<Release>().size() == 1);
  CHECK(tracked.elephants.open(kPeer) == 0);
}

TEST_CASE("several devices at one address count together") {
  Tracked tracked;
  tracked.start(kThreshold);
  tracked.now += kSecond;
  tracked.elephants.observe(kPeer, {.busy = true, .rtt = 1, .retransmits = 2});
  tracked.elephants.observe(kPeer, {.busy = false, .rtt = 5, .retransmits = 3});
  tracked.elephants.tick(tracked.now);
  REQUIRE(tracked.all<Measured>().size() == 1);
  CHECK(tracked.all<Measured>()[0].rtt == 5);
  CHECK(tracked.all<Measured>()[0].retransmits == 5);
  CHECK(tracked.all<Release>().empty());
}

TEST_CASE("an elephant is measured once a second, since the last measurement") {
  Tracked tracked;
  tracked.start(kThreshold);
  tracked.elephants.delivered(kPeer, 300, tracked.now);
  tracked.pass(kSecond - 1, {.busy = true});
  CHECK(tracked.all<Measured>().empty());
  tracked.pass(1, {.busy = true, .rtt = 7, .retransmits = 4});
  tracked.elephants.delivered(kPeer, 500, tracked.now);
  tracked.pass(kSecond, {.busy = true, .rtt = 8, .retransmits = 5});
  tracked.pass(2 * kSecond, {.busy = true, .rtt = 8, .retransmits = 1});  // new QPs count from 0
  const auto measured = tracked.all<Measured>();
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

TEST_CASE("events that found the queue full are emitted later") {
  Tracked tracked;
  tracked.room = false;
  CHECK(!tracked.start(kThreshold));
  CHECK(tracked.elephants.open() == 0);
  tracked.pass(5 * kMillisecond, {.busy = true});
  CHECK(tracked.elephants.dropped() == 2);
  tracked.room = true;
  tracked.pass(5 * kMillisecond, {.busy = true});
  CHECK(tracked.all<Announce>().size() == 1);
  tracked.room = false;
  tracked.pass(500 * kMillisecond);
  CHECK(tracked.elephants.open() == 1);  // the release must reach the service
  tracked.room = true;
  tracked.pass(5 * kMillisecond);
  CHECK(tracked.all<Release>().size() == 1);
}

TEST_CASE("a steady rhythm has a period, an irregular one has none") {
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

TEST_CASE("the fourth announcement carries the period") {
  Tracked tracked;
  for (int i = 0; i < 5; ++i) {
    tracked.start(kThreshold);
    tracked.start(2 * kThreshold);  // growth does not count as a start
    tracked.pass(kSecond);
  }
  const auto announces = tracked.all<Announce>();
  REQUIRE(announces.size() == 10);
  for (std::size_t i = 0; i < announces.size(); ++i) CHECK(announces[i].repeat == (i < 6 ? 0 : kSecond));
}

}  // namespace
}  // namespace paralet::path_client
