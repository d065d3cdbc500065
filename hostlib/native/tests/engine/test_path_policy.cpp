// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/errors.hpp"
#include "engine/policy_factory.hpp"

namespace paralet {
namespace {

constexpr std::uint32_t kPeer = 0x0A000002;
constexpr std::uint32_t kStranger = 0x0A000003;

std::vector<std::uint16_t> ports_of(PathPolicy& policy, std::uint32_t peer, unsigned lanes) {
  std::vector<std::uint16_t> out;
  for (unsigned lane = 0; lane < lanes; ++lane) out.push_back(policy.port(peer, lane));
  return out;
}

PolicyOptions ecmp(std::optional<std::uint64_t> seed, unsigned lanes = 64) {
  return {.kind = PolicyKind::kEcmp, .lanes = lanes, .seed = seed, .ports = {}};
}

PolicyOptions pinned(std::vector<std::uint16_t> ports) {
  return {.kind = PolicyKind::kPinned, .lanes = 4, .seed = 1, .ports = {{kPeer, std::move(ports)}}};
}

std::string refusal(const PolicyOptions& options) {
  try {
    make_policy(options);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("ecmp: ports are in the entropy range, the same for every peer, reproducible by seed") {
  const auto one = make_policy(ecmp(1));
  const auto ports = ports_of(*one, kPeer, 64);
  CHECK(std::ranges::all_of(ports, [](std::uint16_t p) { return p >= 0xC000; }));
  CHECK(std::set(ports.begin(), ports.end()).size() > 60);
  CHECK(ports_of(*one, kStranger, 64) == ports);
  CHECK(ports_of(*make_policy(ecmp(1)), kPeer, 64) == ports);
  CHECK(ports_of(*make_policy(ecmp(2)), kPeer, 64) != ports);
  CHECK(ports_of(*make_policy(ecmp(std::nullopt)), kPeer, 64) != ports_of(*make_policy(ecmp(std::nullopt)), kPeer, 64));
}

TEST_CASE("ecmp: ports come from the whole entropy range") {
  const auto ports = ports_of(*make_policy(ecmp(1, 1024)), kPeer, 1024);
  CHECK(std::ranges::min(ports) < 0xC000 + 200);
  CHECK(std::ranges::max(ports) > 0xFFFF - 200);
}

TEST_CASE("ecmp: a taken port is replaced; lanes never move") {
  const auto policy = make_policy(ecmp(1));
  const std::uint16_t taken = policy->port(kPeer, 3);
  const auto other = policy->alternative(kPeer, 3);
  REQUIRE(other);
  CHECK(*other != taken);
  CHECK(policy->port(kStranger, 3) == *other);  // later peers use the new port at once
  CHECK_FALSE(policy->after_flowlet({.peer = kPeer, .lane = 3, .port = *other, .timeouts = 5}, kSecond));
}

TEST_CASE("ecmp: while ports are taken, every port comes once before any comes again") {
  const auto policy = make_policy(ecmp(1, 2));
  for (int round = 0; round < 2; ++round) {
    std::set<std::uint16_t> seen;
    for (int i = 0; i < 16384; ++i) seen.insert(policy->alternative(kPeer, 1).value());
    CHECK(seen.size() == 16384);
    CHECK(*seen.begin() == 0xC000);
  }
}

TEST_CASE("pinned: the table's ports, repeated; other peers get random ports") {
  const auto policy = make_policy(pinned({0xC001, 0xFFFF}));
  CHECK(ports_of(*policy, kPeer, 4) == std::vector<std::uint16_t>{0xC001, 0xFFFF, 0xC001, 0xFFFF});
  CHECK_FALSE(policy->alternative(kPeer, 0));
  const auto strange = ports_of(*policy, kStranger, 4);
  CHECK(std::ranges::all_of(strange, [](std::uint16_t p) { return p >= 0xC000; }));
  CHECK(strange == ports_of(*make_policy(ecmp(1, 4)), kStranger, 4));
  CHECK(policy->alternative(kStranger, 0));
  CHECK_FALSE(policy->after_flowlet({.peer = kPeer, .lane = 0, .port = 0xC001, .timeouts = 5}, kSecond));
}

TEST_CASE("invalid options are refused with a message") {
  CHECK(refusal(ecmp(1, 0)) == "lanes must be 1 to 1024");
  CHECK(refusal(ecmp(1, 1025)) == "lanes must be 1 to 1024");
  CHECK(refusal(pinned({})) == "the list of source ports for peer 10.0.0.2 is empty");
  CHECK(refusal(pinned({0xC000, 4791})) ==
        "source port 4791 for peer 10.0.0.2 is outside 49152..65535, the range RoCEv2 sources use");
  CHECK(refusal(pinned({0xC000})).empty());
}

// -- adaptive ----------------------------------------------------------------------------------------------------

constexpr Nanos kGood = 1 * kMillisecond;
constexpr Nanos kBad = 5 * kMillisecond;

class AdaptiveLane {
 public:
  AdaptiveLane() { port_ = policy_->port(kPeer, 0); }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// A flowlet finishes one second later. Returns whether the lane moved.
  bool flowlet(Nanos rtt, std::uint64_t timeouts = 0, Nanos peer_rtt = kGood, Nanos after = kSecond) {
    now_ += after;
    const auto to = policy_->after_flowlet({.peer = kPeer,
                                            .lane = 0,
                                            .port = port_,
                                            .smoothed_rtt = rtt,
                                            .peer_rtt = peer_rtt,
                                            .timeouts = timeouts,
                                            .retransmits = 0},
                                           now_);
    if (to) port_ = *to;
    return to.has_value();
  }

 private:
  std::unique_ptr<PathPolicy> policy_ =
      make_policy({.kind = PolicyKind::kAdaptive, .lanes = 1, .seed = 1, .ports = {}});
  std::uint16_t port_;
  Nanos now_ = 0;
};

TEST_CASE("adaptive: a lane with a good round trip keeps its port") {
  AdaptiveLane lane;
  for (int i = 0; i < 100; ++i) CHECK_FALSE(lane.flowlet(kGood));
  for (int i = 0; i < 100; ++i) CHECK_FALSE(lane.flowlet(2 * kGood));  // not yet bad
}

TEST_CASE("adaptive: a timeout moves a lane at once, to a port in the entropy range") {
  AdaptiveLane lane;
  const std::uint16_t before = lane.port();
  CHECK(lane.flowlet(kGood, 1));
  CHECK(lane.port() != before);
  CHECK(lane.port() >= 0xC000);
}

TEST_CASE("adaptive: a slow lane moves after three bad flowlets in a row") {
  AdaptiveLane lane;
  CHECK_FALSE(lane.flowlet(kBad));
  CHECK_FALSE(lane.flowlet(kBad));
  CHECK_FALSE(lane.flowlet(kGood));
  CHECK_FALSE(lane.flowlet(kBad));
  CHECK_FALSE(lane.flowlet(kBad));
  CHECK(lane.flowlet(kBad));
}

TEST_CASE("adaptive: after a move a slow lane stays for 8 round trips") {
  AdaptiveLane lane;
  while (!lane.flowlet(kBad)) {
  }
  int flowlets = 0;
  while (!lane.flowlet(kBad, 0, kGood, kMillisecond)) ++flowlets;
  CHECK(flowlets >= 30);  // 8 round trips of 5 ms, a flowlet each millisecond
  CHECK(flowlets <= 50);
}

TEST_CASE("adaptive: without a round trip of the peer, only timeouts move lanes") {
  AdaptiveLane lane;
  for (int i = 0; i < 20; ++i) CHECK_FALSE(lane.flowlet(kBad, 0, 0));
  CHECK(lane.flowlet(0, 1, 0));
}

TEST_CASE("adaptive: good ports are used again, ports that timed out are not") {
  AdaptiveLane lane;
  const std::uint16_t first = lane.port();
  for (int i = 0; i < 10; ++i) CHECK_FALSE(lane.flowlet(kGood));
  for (int i = 0; i < 3; ++i) lane.flowlet(kBad);  // congested, not dead
  const std::uint16_t second = lane.port();
  CHECK(second != first);
  CHECK(lane.flowlet(kGood, 1));
  CHECK(lane.port() == first);  // it performed well before
  // The first port times out: no lane may use it again.
  std::set<std::uint16_t> visited;
  for (int i = 0; i < 50; ++i) {
    CHECK(lane.flowlet(kGood, 1));
    CHECK(visited.insert(lane.port()).second);
  }
  CHECK_FALSE(visited.contains(first));
}

TEST_CASE("adaptive: lanes and peers are judged separately") {
  const auto policy = make_policy({.kind = PolicyKind::kAdaptive, .lanes = 2, .seed = 1, .ports = {}});
  LaneView view{.peer = kPeer, .lane = 0, .port = 0xC000, .smoothed_rtt = kBad, .peer_rtt = kGood};
  CHECK_FALSE(policy->after_flowlet(view, kSecond));
  CHECK_FALSE(policy->after_flowlet(view, 2 * kSecond));
  view.lane = 1;
  CHECK_FALSE(policy->after_flowlet(view, 3 * kSecond));
  view.lane = 0;
  view.peer = kStranger;
  CHECK_FALSE(policy->after_flowlet(view, 4 * kSecond));
  view.peer = kPeer;
  CHECK(policy->after_flowlet(view, 5 * kSecond));
}

/// A policy that knows ports and nothing else.
class PortsOnly final : public PathPolicy {
 public:
  std::uint16_t port(PeerName /*peer*/, unsigned lane) override { return static_cast<std::uint16_t>(50000 + lane); }
  std::optional<std::uint16_t> alternative(PeerName /*peer*/, unsigned /*lane*/) override { return std::nullopt; }
};

TEST_CASE("a policy needs no more than ports: the other hooks let everything go on") {
  PortsOnly policy;
  policy.started(kPeer, 1'000'000, kSecond);
  policy.begin_round();
  CHECK(policy.may_send(kPeer, kSecond));
  policy.sent(kPeer, 4096, 1024);
  policy.delivered(kPeer, 4096, kSecond);
  policy.observe(kPeer, {.busy = true});
  policy.tick(kSecond);
  policy.port_refused();
  CHECK(policy.deadline() == kNever);
  CHECK_FALSE(policy.busy());
  CHECK_FALSE(policy.news());
  CHECK_FALSE(policy.take());
  CHECK_FALSE(policy.after_flowlet({.peer = kPeer, .timeouts = 5}, kSecond));
  CHECK_FALSE(policy.takes_other(kPeer, 0, 50000));
  CHECK_FALSE(policy.counters());
  CHECK_FALSE(policy.watches_lanes());
  CHECK_FALSE(policy.follows_traffic());
  CHECK_FALSE(policy.resends_at_once());
  policy.stop();
}

}  // namespace
}  // namespace paralet
