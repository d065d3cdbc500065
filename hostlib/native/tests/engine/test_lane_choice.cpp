// SPDX-License-Identifier: Apache-2.0
// The choice of a lane, over lanes and measurements that the tests make up: no device, no sockets.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/lane_choice.hpp"

namespace paralet {
namespace {

constexpr std::uint32_t kLaneMtu = 1000;
constexpr Nanos kChoiceTime = 5 * kSecond;
constexpr Nanos kLaneRtt = 100 * kMicrosecond;

/// Measurements by QP number. Lanes without an entry have no sample.
struct MeasuredLanes {
  [[nodiscard]] PathEstimate estimate(const Lane& lane) const {
    ++asked;
    const auto found = paths.find(lane.qp.qpn);
    return found != paths.end() ? found->second : PathEstimate{};
  }
  [[nodiscard]] Nanos now() const { return time; }

  std::map<std::uint32_t, PathEstimate> paths;
  Nanos time = kChoiceTime;
  mutable unsigned asked = 0;  ///< calls of `estimate`
};

/// Lanes towards one peer, their measurements and the choice between them. They are sending contexts of their own, or
/// share those of a host.
struct LaneScene {
  explicit LaneScene(std::size_t count, SendingContexts* of_host = nullptr) : lanes(count), shared(of_host) {
    for (std::size_t i = 0; i < count; ++i) lanes[i].qp.qpn = static_cast<std::uint32_t>(i);
  }
  /// The index of the lane for a flowlet, -1: none.
  int flowlet() {
    const Lane* lane = found().lane;
    return lane != nullptr ? static_cast<int>(lane - lanes.data()) : -1;
  }
  LaneChoice::Found found() { return choice.for_flowlet(lanes, kLaneMtu, measured, contexts()); }
  int urgent() { return static_cast<int>(&choice.for_urgent(lanes, kLaneMtu, measured) - lanes.data()); }
  int small() { return static_cast<int>(&choice.for_small(lanes, kLaneMtu, measured) - lanes.data()); }
  /// Posts a flowlet on the lane, or a message that takes no turn.
  void post(std::size_t i, std::uint64_t bytes = 4 * kLaneMtu, bool takes_turns = true) {
    contexts().posted(lanes[i], i, bytes, takes_turns);
    ++lanes[i].unfinished;
  }
  void finish(std::size_t i, std::uint64_t bytes = 4 * kLaneMtu, bool takes_turns = true) {
    contexts().finished(lanes[i], i, bytes, takes_turns);
    if (--lanes[i].unfinished == 0) lanes[i].last_estimate = measured.estimate(lanes[i]);
  }
  PathEstimate& path(std::size_t i) { return measured.paths[static_cast<std::uint32_t>(i)]; }
  SendingContexts& contexts() { return shared != nullptr ? *shared : own; }

  std::vector<Lane> lanes;
  SendingContexts own{0};
  SendingContexts* shared;
  MeasuredLanes measured;
  LaneChoice choice;
};

// -- flowlets ------------------------------------------------------------------------------------------------------

TEST_CASE("lane choice: idle lanes without a sample take turns") {
  LaneScene scene(3);
  for (const int expected : {0, 1, 2, 0, 1, 2}) CHECK(scene.flowlet() == expected);
}

TEST_CASE("lane choice: a peer with one lane uses it until it is full") {
  LaneScene scene(1);
  for (unsigned i = 0; i < LaneChoice::kDepth; ++i) {
    REQUIRE(scene.flowlet() == 0);
    scene.post(0);
  }
  CHECK(scene.flowlet() == -1);
  scene.finish(0);
  CHECK(scene.flowlet() == 0);
}

TEST_CASE("lane choice: every lane takes kDepth flowlets, and then they wait") {
  LaneScene scene(4);
  std::vector<unsigned> taken(4);
  for (int lane = scene.flowlet(); lane >= 0; lane = scene.flowlet()) {
    ++taken[static_cast<std::size_t>(lane)];
    scene.post(static_cast<std::size_t>(lane));
    REQUIRE(taken[static_cast<std::size_t>(lane)] <= LaneChoice::kDepth);
  }
  CHECK(taken == std::vector<unsigned>(4, LaneChoice::kDepth));
}

TEST_CASE("lane choice: a full lane that has sent everything takes more") {
  LaneScene scene(2);
  for (const std::size_t i : {0U, 0U, 1U, 1U}) scene.post(i);
  REQUIRE(scene.flowlet() == -1);
  scene.path(1).app_limited = true;
  CHECK(scene.flowlet() == 1);
}

TEST_CASE("lane choice: flowlets wait for the first lane whose next packet may leave, and hold no other") {
  SendingContexts host(3);
  LaneScene scene(3, &host);
  LaneScene other(3, &host);
  for (const std::size_t i : {0U, 1U, 2U}) {
    scene.lanes[i].last_estimate = {.smoothed_rtt = kLaneRtt, .window = 0.25F, .app_limited = true};
  }
  scene.post(0);
  scene.path(0) = {.smoothed_rtt = kLaneRtt, .window = 0.25F, .ready_at = kNever};  // until its acknowledgement
  scene.lanes[1].last_estimate.ready_at = kChoiceTime + 7;
  scene.lanes[2].last_estimate.ready_at = kChoiceTime + 3;
  CHECK(scene.flowlet() == -1);
  CHECK(scene.found().ready_at == kChoiceTime + 3);
  for (const std::size_t i : {1U, 1U, 2U, 2U}) {  // of the host's lanes, the flowlets that wait hold nothing
    REQUIRE(other.flowlet() >= 0);
    other.post(i);
  }
  for (const std::size_t i : {1U, 1U, 2U, 2U}) other.finish(i);
  scene.measured.time = kChoiceTime + 3;
  CHECK(scene.flowlet() == 2);
  scene.lanes[2].moving_to = 50000;
  CHECK(scene.flowlet() == -1);
  CHECK(scene.found().ready_at == kChoiceTime + 7);
  scene.lanes[0].last_estimate.ready_at = kNever;  // from before the last acknowledgement
  scene.finish(0);
  scene.lanes[0].last_estimate.ready_at = kNever;
  CHECK(scene.flowlet() == 0);
}

TEST_CASE("lane choice: short messages without an end keep no flowlet from the only lane") {
  constexpr unsigned kUnderWay = 3;
  constexpr std::uint64_t kShort = 100;
  LaneScene scene(1);
  bool several_packets = false;
  const PathEstimate below{.smoothed_rtt = kLaneRtt, .window = 0.25F, .ready_at = kNever};  // until an acknowledgement
  SUBCASE("a window below one packet") { scene.path(0) = below; }
  SUBCASE("a window below one packet, and messages of several") {
    scene.path(0) = below;
    several_packets = true;
  }
  SUBCASE("a larger one, which is full") { scene.path(0) = {.smoothed_rtt = kLaneRtt, .window = 1.5F}; }
  const auto send = [&] {
    REQUIRE((several_packets ? scene.urgent() : scene.small()) == 0);
    scene.post(0, kShort, false);
  };
  for (unsigned i = 0; i < kUnderWay; ++i) send();
  for (unsigned flowlet = 0; flowlet < 10; ++flowlet) {
    CAPTURE(flowlet);
    unsigned passed = 0;  // short messages that overtake the flowlet
    while (scene.flowlet() < 0) {
      REQUIRE(passed++ < LaneChoice::kStay);
      scene.finish(0, kShort, false);
      send();
    }
    scene.post(0);
    scene.finish(0, kShort, false);  // the next short message comes before the flowlet's turn
    send();
    scene.finish(0);
  }
}

TEST_CASE("lane choice: short messages that came before a flowlet do not bring its turn forward") {
  LaneScene scene(1);
  scene.path(0) = {.smoothed_rtt = kLaneRtt, .window = 0.25F, .ready_at = kNever};
  for (unsigned i = 0; i < 2 * LaneChoice::kStay; ++i) {
    scene.small();
    scene.post(0, 100, false);
  }
  CHECK(scene.flowlet() == -1);
  scene.small();
  CHECK(scene.flowlet() == -1);
}

TEST_CASE("lane choice: lanes of a host take kDepth flowlets of all peers together") {
  SendingContexts host(2);
  std::array<LaneScene, 3> peers = {LaneScene(2, &host), LaneScene(2, &host), LaneScene(2, &host)};
  std::vector<unsigned> taken(2);
  for (std::size_t turn = 0; turn < 100; ++turn) {
    LaneScene& peer = peers[turn % peers.size()];
    const int lane = peer.flowlet();
    if (lane < 0) continue;
    peer.post(static_cast<std::size_t>(lane));
    ++taken[static_cast<std::size_t>(lane)];
  }
  CHECK(taken == std::vector<unsigned>(2, LaneChoice::kDepth));
  for (const LaneScene& peer : peers) CHECK(peer.lanes[0].outstanding + peer.lanes[1].outstanding > 0);
  peers[0].path(0).app_limited = peers[0].path(1).app_limited = true;  // says nothing of the other peers' packets
  CHECK(peers[0].flowlet() == -1);
  const std::size_t ends = peers[0].lanes[0].outstanding > 0 ? 0 : 1;
  peers[0].finish(ends);
  CHECK(peers[1].flowlet() == static_cast<int>(ends));
}

TEST_CASE("lane choice: with one peer, lanes of a host are as lanes of the peer") {
  SendingContexts host(2);
  LaneScene of_host(2, &host);
  LaneScene of_peer(2);
  SplitMix64 random(1);
  for (unsigned step = 0; step < 1000; ++step) {
    const std::size_t i = random.below(2);
    const bool finishes = of_peer.lanes[i].outstanding > 0 && random.below(2) == 0;
    for (LaneScene* scene : {&of_host, &of_peer}) {
      if (finishes) scene->finish(i);
      scene->path(i).app_limited = step % 3 == 0;
    }
    const int lane = of_peer.flowlet();
    REQUIRE(of_host.flowlet() == lane);
    if (lane < 0) continue;
    for (LaneScene* scene : {&of_host, &of_peer}) scene->post(static_cast<std::size_t>(lane));
  }
}

TEST_CASE("lane choice: a peer that has ended takes nothing of the host's lanes") {
  SendingContexts host(1);
  LaneScene ended(1, &host);
  LaneScene other(1, &host);
  ended.post(0);
  other.post(0);
  REQUIRE(other.flowlet() == -1);
  host.drop(ended.lanes);
  CHECK(other.flowlet() == 0);
  other.post(0);
  CHECK(other.flowlet() == -1);
}

TEST_CASE("lane choice: short messages of other peers never keep flowlets from the host's lanes") {
  constexpr std::size_t kLanes = 8;
  constexpr std::uint64_t kShort = 100;
  SendingContexts host(kLanes);
  struct Talker {
    LaneScene scene;
    std::deque<std::size_t> under_way{};  ///< the lanes of its short messages, oldest first
  };
  std::deque<Talker> talkers;
  const auto send = [](Talker& talker) {
    talker.under_way.push_back(static_cast<std::size_t>(talker.scene.urgent()));
    talker.scene.post(talker.under_way.back(), kShort, false);
  };
  const auto finish = [](Talker& talker) {
    talker.scene.finish(talker.under_way.front(), kShort, false);
    talker.under_way.pop_front();
  };
  for (std::size_t i = 0; i < 3 * kLanes; ++i) {
    talkers.push_back({.scene = LaneScene(kLanes, &host)});
    send(talkers.back());
  }
  LaneScene other(kLanes, &host);
  SplitMix64 random(1);
  for (unsigned step = 0; step < 2000; ++step) {
    Talker& talker = talkers[random.below(talkers.size())];
    if (talker.under_way.size() == 1) {
      send(talker);
    } else {
      finish(talker);
    }
    const int lane = other.flowlet();
    REQUIRE(lane >= 0);
    if (step % 2 == 0) {
      other.post(static_cast<std::size_t>(lane));
      other.finish(static_cast<std::size_t>(lane));
    }
  }
  // The ends of short messages, and of peers that have them, give flowlets no more room than there is.
  for (std::size_t i = 0; i < talkers.size(); ++i) {
    if (i % 2 == 0) {
      host.drop(talkers[i].scene.lanes);
    } else {
      while (!talkers[i].under_way.empty()) finish(talkers[i]);
    }
  }
  for (std::size_t i = 0; i < kLanes * LaneChoice::kDepth; ++i) {
    const int lane = other.flowlet();
    REQUIRE(lane >= 0);
    other.post(static_cast<std::size_t>(lane));
  }
  CHECK(other.flowlet() == -1);
}

TEST_CASE("lane choice: no flowlets for a lane that is about to have another port, or that is shunned") {
  LaneScene scene(2);
  Lane& lane = scene.lanes[0];
  SUBCASE("it waits to move") { lane.moving_to = 50000; }
  SUBCASE("the back end changes its port") { lane.changing_to = 50000; }
  SUBCASE("its member may have failed") { lane.shunned = true; }
  scene.path(1) = {.smoothed_rtt = kSecond};
  scene.post(1);
  CHECK(scene.flowlet() == 1);
  scene.post(1);
  CHECK(scene.flowlet() == -1);
  lane.moving_to.reset();
  lane.changing_to.reset();
  lane.shunned = false;
  CHECK(scene.flowlet() == 0);
}

TEST_CASE("lane choice: the shorter round trip is preferred") {
  LaneScene scene(3);
  for (const std::size_t i : {0U, 1U, 2U}) {
    scene.post(i);
    scene.path(i) = {.smoothed_rtt = kLaneRtt * static_cast<Nanos>(3 - i), .window = 100};
  }
  CHECK(scene.flowlet() == 2);
}

TEST_CASE("lane choice: what does not fit the window takes further round trips") {
  LaneScene scene(2);
  scene.post(0, 40 * kLaneMtu);
  scene.post(1, 10 * kLaneMtu);
  scene.path(0) = {.smoothed_rtt = kLaneRtt, .window = 10};      // 41 packets: 4.1 round trips
  scene.path(1) = {.smoothed_rtt = 3 * kLaneRtt, .window = 11};  // 11 packets: one
  CHECK(scene.flowlet() == 1);
  scene.path(0).window = 20;  // 2.05 round trips
  CHECK(scene.flowlet() == 0);
}

TEST_CASE("lane choice: of equal round trips, the lane with fewer bytes under way") {
  LaneScene scene(3);
  for (const std::size_t i : {0U, 1U, 2U}) scene.path(i) = {.smoothed_rtt = kLaneRtt, .window = 100};
  scene.post(0, 3 * kLaneMtu);
  scene.post(1, 1 * kLaneMtu);
  scene.post(2, 2 * kLaneMtu);
  CHECK(scene.flowlet() == 1);
}

TEST_CASE("lane choice: equal lanes are chosen in turn, also where the search begins in the middle") {
  LaneScene scene(4);
  for (const std::size_t i : {0U, 1U, 2U, 3U}) {
    scene.post(i);
    scene.path(i) = {.smoothed_rtt = kLaneRtt, .window = 100};
  }
  for (const int expected : {0, 1, 2, 3, 0}) CHECK(scene.flowlet() == expected);
}

TEST_CASE("lane choice: a failed search does not change whose turn it is") {
  LaneScene scene(3);
  CHECK(scene.flowlet() == 0);
  for (Lane& lane : scene.lanes) lane.moving_to = 50000;
  CHECK(scene.flowlet() == -1);
  for (Lane& lane : scene.lanes) lane.moving_to.reset();
  CHECK(scene.flowlet() == 1);
}

TEST_CASE("lane choice: idle lanes cost no look at the back end") {
  LaneScene scene(64);
  for (Lane& lane : scene.lanes) lane.last_estimate = {.smoothed_rtt = kLaneRtt, .window = 10};
  scene.post(5);
  scene.flowlet();
  CHECK(scene.measured.asked == 1);
}

TEST_CASE("lane choice: an idle lane has the estimate of its last work until that is stale") {
  LaneScene scene(2);
  scene.lanes[0].last_estimate = {.smoothed_rtt = kLaneRtt, .fresh_until = kChoiceTime + 1, .window = 10};
  scene.lanes[1].last_estimate = {.smoothed_rtt = 2 * kLaneRtt, .fresh_until = kChoiceTime + 10, .window = 10};
  CHECK(scene.flowlet() == 0);
  scene.lanes[1].last_estimate.smoothed_rtt = kLaneRtt / 2;
  CHECK(scene.flowlet() == 1);
  scene.measured.time = kChoiceTime + 1;  // lane 0 counts as one without a sample, which costs nothing
  CHECK(scene.flowlet() == 0);
}

TEST_CASE("lane choice: a busy lane whose round trip grew is left for others") {
  LaneScene scene(4);
  for (const std::size_t i : {0U, 1U, 2U, 3U}) scene.path(i) = {.smoothed_rtt = kLaneRtt, .window = 8};
  scene.post(2);
  scene.path(2).smoothed_rtt = 50 * kLaneRtt;
  for (Lane& lane : scene.lanes) lane.last_estimate = {.smoothed_rtt = kLaneRtt, .window = 8};
  for (unsigned i = 0; i < 6; ++i) {
    const int lane = scene.flowlet();
    REQUIRE(lane >= 0);
    CHECK(lane != 2);
    scene.post(static_cast<std::size_t>(lane));
  }
  CHECK(scene.flowlet() == 2);  // the others are full
}

// -- urgent messages -----------------------------------------------------------------------------------------------

TEST_CASE("lane choice: what must not wait takes full lanes, and lanes that are about to move") {
  LaneScene scene(2);
  for (const std::size_t i : {0U, 0U, 0U, 1U, 1U}) scene.post(i);
  scene.lanes[1].moving_to = 50000;
  REQUIRE(scene.flowlet() == -1);
  CHECK(scene.urgent() == 1);  // fewer bytes
}

TEST_CASE("lane choice: a shunned lane is the last choice, but a choice") {
  LaneScene scene(2);
  scene.lanes[0].shunned = true;
  scene.post(1, 100 * kLaneMtu);
  scene.path(1) = {.smoothed_rtt = 10 * kSecond, .window = 4};
  CHECK(scene.urgent() == 1);
  scene.lanes[1].shunned = true;
  CHECK(scene.urgent() == 0);
}

// -- small messages ------------------------------------------------------------------------------------------------

TEST_CASE("lane choice: consecutive small messages share a lane, kStay of them") {
  LaneScene scene(3);
  for (const int expected : {0, 1, 2, 0}) {
    for (unsigned i = 0; i < LaneChoice::kStay; ++i) REQUIRE(scene.small() == expected);
  }
}

TEST_CASE("lane choice: small messages leave their lane") {
  LaneScene scene(2);
  REQUIRE(scene.small() == 0);
  REQUIRE(scene.small() == 0);
  SUBCASE("when it is about to move") { scene.lanes[0].moving_to = 50000; }
  SUBCASE("when its port changes") { scene.lanes[0].changing_to = 50000; }
  SUBCASE("when its member may have failed") { scene.lanes[0].shunned = true; }
  SUBCASE("when kStay are under way") { scene.lanes[0].outstanding = LaneChoice::kStay; }
  SUBCASE("when its round trip has more than doubled") { scene.path(0).smoothed_rtt = 2 * LaneChoice::kAssumedRtt + 1; }
  SUBCASE("when they are told to") { scene.choice.leave_small(); }
  CHECK(scene.small() == 1);
}

TEST_CASE("lane choice: small messages stay while the round trip is at most twice what it was") {
  LaneScene scene(2);
  SUBCASE("without a sample it is taken for kAssumedRtt") {
    REQUIRE(scene.small() == 0);
    scene.path(0).smoothed_rtt = 2 * LaneChoice::kAssumedRtt;
  }
  SUBCASE("measured") {
    for (const std::size_t i : {0U, 1U}) {
      scene.post(i);
      scene.path(i) = {.smoothed_rtt = 10 * LaneChoice::kAssumedRtt};
    }
    REQUIRE(scene.small() == 0);
    scene.path(0).smoothed_rtt *= 2;
  }
  CHECK(scene.small() == 0);
}

// -- random cases --------------------------------------------------------------------------------------------------

/// Lanes in a random state.
LaneScene random_lanes(SplitMix64& random) {
  LaneScene scene(1 + random.below(16));
  for (std::size_t i = 0; i < scene.lanes.size(); ++i) {
    Lane& lane = scene.lanes[i];
    PathEstimate path{.smoothed_rtt = static_cast<Nanos>(random.below(4)) * kLaneRtt,
                      .fresh_until = kChoiceTime - 1 + static_cast<Nanos>(random.below(3)),
                      .window = 1.0F + static_cast<float>(random.below(8)),
                      .app_limited = random.below(8) == 0,
                      .ready_at = random.below(8) == 0 ? kChoiceTime + static_cast<Nanos>(random.below(2)) : 0};
    lane.last_estimate = path;
    scene.path(i) = path;
    for (std::uint64_t n = random.below(4); n > 0; --n) scene.post(i, random.below(9) * kLaneMtu);
    if (random.below(8) == 0) lane.moving_to = 50000;
    if (random.below(8) == 0) lane.changing_to = 50000;
    if (random.below(8) == 0) lane.shunned = true;
  }
  return scene;
}

/// What the lane would cost, written down a second time: when a packet after all that is under way would have
/// arrived.
std::pair<double, std::uint64_t> lane_cost(const LaneScene& scene, const Lane& lane) {
  const bool idle = lane.unfinished == 0;
  const PathEstimate path = idle ? lane.last_estimate : scene.measured.paths.at(lane.qp.qpn);
  const bool stale = idle && path.fresh_until <= scene.measured.time;
  const double round_trips =
      std::max(1.0, (static_cast<double>(lane.outstanding_bytes) + kLaneMtu) / (path.window * kLaneMtu));
  return {(stale ? 0.0 : round_trips * static_cast<double>(path.smoothed_rtt)), lane.outstanding_bytes};
}

bool takes_flowlets(const LaneScene& scene, const Lane& lane) {
  const PathEstimate path = lane.unfinished == 0 ? lane.last_estimate : scene.measured.paths.at(lane.qp.qpn);
  return !lane.moving_to && !lane.changing_to && !lane.shunned && path.ready_at <= kChoiceTime &&
         (lane.outstanding < LaneChoice::kDepth || path.app_limited);
}

TEST_CASE("lane choice: random lanes: the cheapest that takes flowlets, none only where none does") {
  unsigned chosen = 0;
  unsigned waited = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    LaneScene scene = random_lanes(random);
    const int index = scene.flowlet();
    if (index < 0) {
      ++waited;
      REQUIRE(std::ranges::none_of(scene.lanes, [&](const Lane& lane) { return takes_flowlets(scene, lane); }));
      continue;
    }
    ++chosen;
    const Lane& taken = scene.lanes[static_cast<std::size_t>(index)];
    REQUIRE(takes_flowlets(scene, taken));
    for (const Lane& lane : scene.lanes) {
      if (!takes_flowlets(scene, lane)) continue;
      const auto [delay, bytes] = lane_cost(scene, lane);
      const auto [least, fewest] = lane_cost(scene, taken);
      // Delays are compared in whole nanoseconds.
      REQUIRE(delay > least - 1);
      if (delay == least) REQUIRE(bytes >= fewest);
    }
  }
  CHECK(chosen > 1000);
  CHECK(waited > 50);
}

TEST_CASE("lane choice: random lanes: urgent messages shun lanes only while there are others") {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    LaneScene scene = random_lanes(random);
    const Lane& taken = scene.lanes[static_cast<std::size_t>(scene.urgent())];
    const bool all_shunned = std::ranges::all_of(scene.lanes, &Lane::shunned);
    REQUIRE(taken.shunned == all_shunned);
    for (const Lane& lane : scene.lanes) {
      if (lane.shunned == all_shunned) REQUIRE(lane_cost(scene, lane).first > lane_cost(scene, taken).first - 1);
    }
  }
}

TEST_CASE("lane choice: random lanes: equal states give equal choices") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    SplitMix64 once(seed);
    SplitMix64 again(seed);
    LaneScene a = random_lanes(once);
    LaneScene b = random_lanes(again);
    for (unsigned i = 0; i < 20; ++i) {
      REQUIRE(a.flowlet() == b.flowlet());
      REQUIRE(a.small() == b.small());
      REQUIRE(a.urgent() == b.urgent());
    }
  }
}

/// Sends `count` flowlets over lanes that carry one flowlet at a time, each in `service[i]`, and acknowledge it at
/// once. Returns how many each lane carried.
std::vector<unsigned> carried(const std::vector<Nanos>& service, unsigned count) {
  LaneScene scene(service.size());
  std::vector<unsigned> out(service.size());
  std::vector<Nanos> done(service.size(), kNever);  // when the lane's oldest flowlet will be
  std::vector<unsigned> queued(service.size());
  for (std::size_t i = 0; i < service.size(); ++i) scene.path(i) = {.smoothed_rtt = service[i], .window = 4};
  for (unsigned left = count; left > 0 || scene.measured.time < kNever;) {
    for (int lane = left > 0 ? scene.flowlet() : -1; lane >= 0; lane = --left > 0 ? scene.flowlet() : -1) {
      const auto i = static_cast<std::size_t>(lane);
      scene.post(i);
      ++out[i];
      if (queued[i]++ == 0) done[i] = scene.measured.time + service[i];
    }
    const auto first = std::ranges::min_element(done);
    if (*first == kNever) break;
    const auto i = static_cast<std::size_t>(first - done.begin());
    scene.measured.time = *first;
    scene.finish(i);
    *first = --queued[i] > 0 ? scene.measured.time + service[i] : kNever;
  }
  return out;
}

TEST_CASE("lane choice: a long message spreads evenly over equal lanes") {
  for (const std::size_t lanes : {2, 3, 8, 16}) {
    CAPTURE(lanes);
    const auto shares = carried(std::vector<Nanos>(lanes, kLaneRtt), 1000);
    CHECK(std::ranges::max(shares) - std::ranges::min(shares) <= LaneChoice::kDepth);
  }
}

TEST_CASE("lane choice: random speeds: lanes carry flowlets in proportion to their speed") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    std::vector<Nanos> service(2 + random.below(7));
    double speed = 0;
    for (Nanos& lane_time : service) {
      lane_time = kLaneRtt * static_cast<Nanos>(1 + random.below(10));
      speed += 1.0 / static_cast<double>(lane_time);
    }
    constexpr unsigned kCount = 2000;
    const auto shares = carried(service, kCount);
    for (std::size_t i = 0; i < service.size(); ++i) {
      // While flowlets wait no lane is idle, and none has more than kDepth. So when the last one is posted, lane i has
      // carried T / service[i] and up to kDepth, and the sum over all lanes is kCount.
      const double part = 1 / (speed * static_cast<double>(service[i]));
      const auto count = static_cast<double>(service.size());
      CHECK(shares[i] > (kCount - LaneChoice::kDepth * count) * part - 1);
      CHECK(shares[i] < (kCount + count) * part + LaneChoice::kDepth + 1);
    }
  }
}

}  // namespace
}  // namespace paralet
