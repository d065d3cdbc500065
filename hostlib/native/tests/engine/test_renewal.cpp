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

using State = Renewal::State;
using Event = Renewal::Event;

constexpr std::array kStates{State::kAsked,   State::kConnected,   State::kDraining,
                             State::kDrained, State::kPeerDrained, State::kFinished};
constexpr std::array kEvents{Event::kConnected, Event::kPeerConnected, Event::kDrained, Event::kPeerDrained};

Renewal in(State state) {
  Renewal out;
  out.state = state;
  return out;
}

TEST_CASE("renewal: the way through all states") {
  Renewal renewal;
  CHECK(renewal.state == State::kAsked);
  CHECK(renewal.on(Event::kConnected));
  CHECK_FALSE(renewal.switched());
  CHECK(renewal.on(Event::kPeerConnected));
  CHECK(renewal.switched());
  CHECK_FALSE(renewal.drained());
  SUBCASE("this side drains first") {
    CHECK(renewal.on(Event::kDrained));
    CHECK(renewal.state == State::kDrained);
    CHECK(renewal.drained());
    CHECK(renewal.on(Event::kPeerDrained));
  }
  SUBCASE("the peer drains first") {
    CHECK(renewal.on(Event::kPeerDrained));
    CHECK(renewal.state == State::kPeerDrained);
    CHECK_FALSE(renewal.drained());
    CHECK(renewal.on(Event::kDrained));
  }
  CHECK(renewal.state == State::kFinished);
  CHECK(renewal.switched());
  CHECK(renewal.drained());
}

TEST_CASE("renewal: an event that cannot happen in a state is refused, and changes nothing") {
  const auto possible = [](State state, Event event) {
    switch (state) {
      case State::kAsked:
        return event == Event::kConnected;
      case State::kConnected:
        return event == Event::kPeerConnected;
      case State::kDraining:
        return event == Event::kDrained || event == Event::kPeerDrained;
      case State::kDrained:
        return event == Event::kPeerDrained;
      case State::kPeerDrained:
        return event == Event::kDrained;
      case State::kFinished:
        return false;
    }
    return false;
  };
  for (const State state : kStates) {
    for (const Event event : kEvents) {
      CAPTURE(static_cast<int>(state));
      CAPTURE(static_cast<int>(event));
      Renewal renewal = in(state);
      CHECK(renewal.on(event) == possible(state, event));
      if (!possible(state, event)) CHECK(renewal.state == state);
    }
  }
}

TEST_CASE("renewal: the lane posts on the fresh QP once both ends are connected") {
  for (const State state : kStates) {
    CAPTURE(static_cast<int>(state));
    CHECK(in(state).switched() == (state != State::kAsked && state != State::kConnected));
  }
}

TEST_CASE("renewal: a side is drained once it has said so") {
  for (const State state : kStates) {
    CAPTURE(static_cast<int>(state));
    CHECK(in(state).drained() == (state == State::kDrained || state == State::kFinished));
  }
}

/// One end of a renewal, and the frames on their way to the other.
struct End {
  Renewal renewal;
  bool connected = false;  ///< it has said QpReady
  bool drained = false;    ///< it has said QpDrained
  std::deque<Event> frames;

  /// What this end can do by itself.
  [[nodiscard]] bool can_act() const {
    return !connected || (!drained && (renewal.state == State::kDraining || renewal.state == State::kPeerDrained));
  }
  void act() {
    if (!connected) {
      connected = true;
      REQUIRE(renewal.on(Event::kConnected));
      frames.push_back(Event::kPeerConnected);
      return;
    }
    drained = true;
    REQUIRE(renewal.on(Event::kDrained));
    frames.push_back(Event::kPeerDrained);
  }
};

TEST_CASE("renewal: random timing: two ends reach the end, and no frame is out of sequence") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    std::array<End, 2> ends;
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
        const Event frame = ends[i].frames.front();
        ends[i].frames.pop_front();
        REQUIRE(ends[1 - i].renewal.on(frame));
      } else {
        ends[i].act();
      }
      // Neither end destroys its old QP before both have drained it.
      for (const std::size_t j : {0U, 1U}) {
        if (ends[j].renewal.state == State::kFinished) REQUIRE((ends[0].drained && ends[1].drained));
      }
    }
    for (const End& end : ends) {
      CHECK(end.renewal.state == State::kFinished);
      CHECK(end.frames.empty());
    }
  }
}

}  // namespace
}  // namespace paralet
