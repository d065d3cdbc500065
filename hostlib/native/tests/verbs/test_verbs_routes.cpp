// SPDX-License-Identifier: Apache-2.0
// Lanes of fused devices of the `verbs` back end that move to a member without a route, or while their QP is renewed.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "fused_verbs_scene.hpp"

namespace paralet {
namespace {

using fake_verbs::record;
using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("a lane of an adaptive fused device leaves a member without a route") {
  fake_verbs::reset();
  DeviceOptions options = silent_for(20 * kMillisecond);
  options.policy.kind = PolicyKind::kAdaptive;
  FusedVerbsPair pair(options);
  for (int i = 0; i < 2; ++i) {
    fake_verbs::refuse_routes(kGids[1], 0, 1'000'000);
    fake_verbs::set_gid(kGids[1], fake_verbs::Path::kDead);
    CHECK(pair.all_on(std::vector<unsigned>(4, 0)));
    fake_verbs::refuse_routes(kGids[1], 0, 0);
    fake_verbs::set_gid(kGids[1], fake_verbs::Path::kGood);
    CHECK(pair.all_on({0, 1, 0, 1}));
  }
}

TEST_CASE("the lanes of a fused device return to a member that loses its route again") {
  // The side that answers connects first.
  for (const auto& routes : std::vector<std::pair<unsigned, unsigned>>{{0, 1}, {1, 1}, {0, 2}, {2, 1}, {3, 1}}) {
    const unsigned before = routes.first;  // Clang 14 does not let CAPTURE use a structured binding
    const unsigned count = routes.second;
    CAPTURE(before);
    CAPTURE(count);
    fake_verbs::reset();
    FusedVerbsPair pair(short_retries());
    fake_verbs::happen_on(kSecondMember, IBV_EVENT_PORT_ERR, 1);
    CHECK(pair.all_on(std::vector<unsigned>(4, 0)));
    fake_verbs::refuse_routes(kGids[1], before, count);
    fake_verbs::happen_on(kSecondMember, IBV_EVENT_PORT_ACTIVE, 1);
    CHECK(pair.all_on({0, 1, 0, 1}));
    CHECK(eventually([&] { return record().queue_pairs == 8; }));
  }
}

TEST_CASE("both sides of fused devices may ask for a fresh queue pair on different members") {
  for (const bool initiator_moves : {true, false}) {
    CAPTURE(initiator_moves);
    fake_verbs::reset();
    FusedVerbsPair pair(silent_for(60 * kSecond));  // nobody leaves a member
    Device& moves = initiator_moves ? pair.one : pair.two;
    Device& breaks = initiator_moves ? pair.two : pair.one;
    const HeldCall held(fake_verbs::Call::kCreate, 0);
    REQUIRE(moves.set_port(fake_verbs::kAddress, 1, 0xE333));
    REQUIRE(HeldCall::holds());
    const std::uint16_t port = breaks.counters().lanes.at(1).qp.port;
    fake_verbs::set_path(port, fake_verbs::Path::kDead);
    pair.begin_with_losses();
    fake_verbs::break_queue_pairs(port);
    fake_verbs::set_path(port, fake_verbs::Path::kGood);
    CHECK(eventually([] { return record().queue_pairs == 9; }));
    HeldCall::release();
    pair.finish();
    CHECK(eventually([&] {
      pair.exchange();
      return members_of(pair.one) == members_of(pair.two) && record().queue_pairs == 8;
    }));
    for (int i = 0; i < 20; ++i) pair.exchange();
  }
}

}  // namespace
}  // namespace paralet
