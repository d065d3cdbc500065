// SPDX-License-Identifier: Apache-2.0
// The states of a lane's renewal (docs/protocol.md, section 5), without lanes.
#include <doctest/doctest.h>

#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/renewal.hpp"

namespace paralet {
namespace {

using RenewalState = Renewal::State;
using RenewalEvent = Renewal::Event;

constexpr std::array kRenewalStates{RenewalState::kAsked,   RenewalState::kConnected,   RenewalState::kDraining,
                                    RenewalState::kDrained, RenewalState::kPeerDrained, RenewalState::kFinished};
constexpr std::array kRenewalEvents{RenewalEvent::kConnected, RenewalEvent::kPeerConnected, RenewalEvent::kDrained,
                                    RenewalEvent::kPeerDrained};

Renewal renewal_in(RenewalState state) {
  Renewal out;
  out.state = state;
  return out;
}

TEST_CASE("renewal: the way through all states") {
  Renewal renewal;
  CHECK(renewal.state == RenewalState::kAsked);
  CHECK(renewal.on(RenewalEvent::kConnected));
  CHECK_FALSE(renewal.switched());
  CHECK(renewal.on(RenewalEvent::kPeerConnected));
  CHECK(renewal.switched());
  CHECK_FALSE(renewal.drained());
  SUBCASE("this side drains first") {
    CHECK(renewal.on(RenewalEvent::kDrained));
    CHECK(renewal.state == RenewalState::kDrained);
    CHECK(renewal.drained());
    CHECK(renewal.on(RenewalEvent::kPeerDrained));
  }
  SUBCASE("the peer drains first") {
    CHECK(renewal.on(RenewalEvent::kPeerDrained));
    CHECK(renewal.state == RenewalState::kPeerDrained);
    CHECK_FALSE(renewal.drained());
    CHECK(renewal.on(RenewalEvent::kDrained));
  }
  CHECK(renewal.state == RenewalState::kFinished);
  CHECK(renewal.switched());
  CHECK(renewal.drained());
}

TEST_CASE("renewal: an event that cannot happen in a state is refused, and changes nothing") {
  const auto possible = [](RenewalState state, RenewalEvent event) {
    switch (state) {
      case RenewalState::kAsked:
        return event == RenewalEvent::kConnected;
      case RenewalState::kConnected:
        return event == RenewalEvent::kPeerConnected;
      case RenewalState::kDraining:
        return event == RenewalEvent::kDrained || event == RenewalEvent::kPeerDrained;
      case RenewalState::kDrained:
        return event == RenewalEvent::kPeerDrained;
      case RenewalState::kPeerDrained:
        return event == RenewalEvent::kDrained;
      case RenewalState::kFinished:
        return false;
    }
    return false;
  };
  for (const RenewalState state : kRenewalStates) {
    for (const RenewalEvent event : kRenewalEvents) {
      CAPTURE(static_cast<int>(state));
      CAPTURE(static_cast<int>(event));
      Renewal renewal = renewal_in(state);
      CHECK(renewal.on(event) == possible(state, event));
      if (!possible(state, event)) CHECK(renewal.state == state);
    }
  }
}

TEST_CASE("renewal: the lane posts on the fresh QP once both ends are connected") {
  for (const RenewalState state : kRenewalStates) {
    CAPTURE(static_cast<int>(state));
    CHECK(renewal_in(state).switched() == (state != RenewalState::kAsked && state != RenewalState::kConnected));
  }
}

TEST_CASE("renewal: a side is drained once it has said so") {
  for (const RenewalState state : kRenewalStates) {
    CAPTURE(static_cast<int>(state));
    CHECK(renewal_in(state).drained() == (state == RenewalState::kDrained || state == RenewalState::kFinished));
  }
}

/// One end of a renewal, and the frames on their way to the other.
struct RenewalEnd {
  Renewal renewal;
  bool connected = false;  ///< it has said QpReady
  bool drained = false;    ///< it has said QpDrained
  std::deque<RenewalEvent> frames;

  /// What this end can do by itself.
  [[nodiscard]] bool can_act() const {
    return !connected ||
           (!drained && (renewal.state == RenewalState::kDraining || renewal.state == RenewalState::kPeerDrained));
  }
  void act() {
    if (!connected) {
      connected = true;
      REQUIRE(renewal.on(RenewalEvent::kConnected));
      frames.push_back(RenewalEvent::kPeerConnected);
      return;
    }
    drained = true;
    REQUIRE(renewal.on(RenewalEvent::kDrained));
    frames.push_back(RenewalEvent::kPeerDrained);
  }
};

TEST_CASE("renewal: random timing: two ends reach the end, and no frame is out of sequence") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    std::array<RenewalEnd, 2> ends;
    const auto deliverable = [&](std::size_t from) {
      // A frame waits while the receiving end's fresh QP is being set up (Renewal::held).
      return !ends[from].frames.empty() && ends[1 - from].connected;
    };
    for (unsigned steps = 0; steps < 100; ++steps) {
      std::vector<std::pair<bool, std::size_t>> choices;  // whether to deliver; which end
      for (const std::size_t i : {0U, 1U}) {
        if (ends[i].can_act()) choices.emplace_back(false, i);
        if (deliverable(i)) choices.emplace_back(true, i);
      }
      if (choices.empty()) break;
      const auto [delivers, i] = choices[random.below(choices.size())];
      if (delivers) {
        const RenewalEvent frame = ends[i].frames.front();
        ends[i].frames.pop_front();
        REQUIRE(ends[1 - i].renewal.on(frame));
      } else {
        ends[i].act();
      }
      // Neither end destroys its old QP before both have drained it.
      for (const std::size_t j : {0U, 1U}) {
        if (ends[j].renewal.state == RenewalState::kFinished) REQUIRE((ends[0].drained && ends[1].drained));
      }
    }
    for (const RenewalEnd& end : ends) {
      CHECK(end.renewal.state == RenewalState::kFinished);
      CHECK(end.frames.empty());
    }
  }
}

}  // namespace
}  // namespace paralet
