// SPDX-License-Identifier: Apache-2.0
// Fused devices of the `verbs` back end whose NICs or paths fail.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fused_verbs_scene.hpp"

namespace paralet {
namespace {

using fake_verbs::record;
using namespace test;  // NOLINT(google-build-using-namespace): the fixture
using State = Request::State;

void pause_past_retries() { std::this_thread::sleep_for(std::chrono::milliseconds(600)); }

TEST_CASE("the lanes of a fused device leave a dead member and return, and no flowlet is lost or counted twice") {
  for (const auto path : {fake_verbs::Path::kDead, fake_verbs::Path::kMute}) {
    for (const unsigned dead : {0U, 1U}) {
      CAPTURE(static_cast<int>(path));
      CAPTURE(dead);
      fake_verbs::reset();
      FusedVerbsPair pair(silent_for(20 * kMillisecond));
      CHECK(members_of(pair.one) == std::vector<unsigned>{0, 1, 0, 1});
      fake_verbs::set_gid(kGids.at(dead), path);
      CHECK(pair.all_on(std::vector<unsigned>(4, 1 - dead)));
      fake_verbs::set_gid(kGids.at(dead), fake_verbs::Path::kGood);
      CHECK(pair.all_on({0, 1, 0, 1}));
      CHECK(eventually([&] { return record().queue_pairs == 8; }));  // replaced ones are gone
    }
  }
}

TEST_CASE("the lanes of a fused device leave a port that goes down, idle ones too, and return") {
  fake_verbs::reset();
  FusedVerbsPair pair(short_retries());
  for (int i = 0; i < 2; ++i) {
    fake_verbs::happen_on(kSecondMember, IBV_EVENT_PORT_ERR, 1);
    pause_past_retries();
    pair.exchange();
    CHECK(members_of(pair.one) == std::vector<unsigned>(4, 0));
    CHECK(members_of(pair.two) == std::vector<unsigned>(4, 0));
    fake_verbs::happen_on(kSecondMember, IBV_EVENT_PORT_ACTIVE, 1);
    CHECK(pair.all_on({0, 1, 0, 1}));
  }
  CHECK(eventually([&] { return record().queue_pairs == 8; }));
}

TEST_CASE("a port stays down, and the lanes of a fused device cannot leave it before the retry time ends") {
  for (const bool idle : {true, false}) {
    CAPTURE(idle);
    fake_verbs::reset();
    FusedVerbsPair pair(short_retries());
    if (!idle) {
      fake_verbs::set_gid(kGids[1], fake_verbs::Path::kDead);
      pair.begin();
    }
    const HeldCall held(fake_verbs::Call::kCreate, 0);
    fake_verbs::happen_on(kSecondMember, IBV_EVENT_PORT_ERR, 1);
    pause_past_retries();
    HeldCall::release();
    if (!idle) pair.finish();
    CHECK(pair.all_on(std::vector<unsigned>(4, 0)));
  }
}

TEST_CASE("a NIC gives requests up, and the lanes of a fused device go over another") {
  fake_verbs::reset();
  FusedVerbsPair pair(silent_for(60 * kSecond));  // the silence is not noticed before
  fake_verbs::set_gid(kGids[1], fake_verbs::Path::kDead);
  pair.begin_with_losses();
  // A slow machine may still send when the path is tried again, a second later.
  const std::jthread nic([](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      fake_verbs::end_retries(kGids[1]);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  pair.finish();
  CHECK(pair.all_on(std::vector<unsigned>(4, 0)));
}

TEST_CASE("a NIC of a fused device fails, and the others carry on, fences and registrations too") {
  for (const unsigned dead : {0U, 1U}) {
    CAPTURE(dead);
    fake_verbs::reset();
    Bytes memory(4096);
    fake_verbs::share_device_memory(901, memory.data(), memory.size());
    FusedVerbsPair pair;
    const auto region = [&] { return pair.one.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0}); };
    const auto fence = [&](std::uint32_t rkey) {
      return VerbsPair::end(
          VerbsPair::submit(pair.one, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey, .offset = 100}));
    };
    const std::uint32_t before = region();
    CHECK(fence(before) == State::kDone);
    CHECK(record().reads == 2);  // of both members
    pair.begin();
    fake_verbs::fail_nic(dead);
    pair.finish();
    CHECK(pair.all_on(std::vector<unsigned>(4, 1 - dead)));
    CHECK(fence(before) == State::kDone);
    const std::uint32_t after = region();
    CHECK(fence(after) == State::kDone);
    CHECK(record().reads == 4);
    for (int i = 0; i < 20; ++i) pair.exchange();
    pair.one.deregister_memory(before);
    pair.one.deregister_memory(after);
  }
}

TEST_CASE("a NIC of a fused device has failed, and new peers are connected over the others") {
  for (const std::size_t context : {0U, 1U, 2U, 3U}) {  // two of the connecting device, two of the listening one
    CAPTURE(context);
    fake_verbs::reset();
    FusedVerbsPair pair(fused_options(), [context] { fake_verbs::fail_nic(context); });
    const std::vector<unsigned> lives(4, context % 2 == 0 ? 1 : 0);
    CHECK(members_of(pair.one) == lives);
    CHECK(members_of(pair.two) == lives);
    for (int i = 0; i < 20; ++i) pair.exchange();
    CHECK(eventually([&] { return record().queue_pairs == 8; }));  // those of other attempts are gone
  }
}

TEST_CASE("a port of a fused device is down, new peers are connected over the others, and lanes go to it later") {
  for (const std::size_t context : {0U, 1U}) {
    CAPTURE(context);
    fake_verbs::reset();
    FusedVerbsPair pair(fused_options(), [context] {
      fake_verbs::happen_on(context, IBV_EVENT_PORT_ERR, 1);
      fake_verbs::refuse_routes(kGids.at(context), 0, 1'000'000);
    });
    CHECK(members_of(pair.one) == std::vector<unsigned>(4, context == 0 ? 1 : 0));
    fake_verbs::refuse_routes(kGids.at(context), 0, 0);
    fake_verbs::happen_on(context, IBV_EVENT_PORT_ACTIVE, 1);
    CHECK(pair.all_on({0, 1, 0, 1}));
  }
}

TEST_CASE("all NICs of a device have failed, and it connects to no peer") {
  fake_verbs::reset();
  Device one(fused_options());
  Device two(fused_options());
  fake_verbs::fail_nic(0);
  fake_verbs::fail_nic(1);
  const auto listener = two.listen();
  const auto to = one.connect(listener->handle);
  REQUIRE(eventually([&] { return to->state == Connection::State::kClosed; }));
  CHECK_MESSAGE(to->failure == Failure::kDevice, to->error);
}

TEST_CASE("all NICs of a fused device fail, and its peers fail at once") {
  fake_verbs::reset();
  FusedVerbsPair pair;
  Bytes in(100);
  const auto receive = VerbsPair::submit(pair.one, pair.to, Request::Kind::kReceive, {.bytes = in});
  fake_verbs::fail_nic(0);
  fake_verbs::fail_nic(1);
  CHECK(VerbsPair::end(receive) == State::kFailed);
  CHECK_MESSAGE(receive->failure == Failure::kDevice, receive->error);
}

/// Counts the paths that a device leaves.
struct Left {
  void operator()(const std::string& sentence) const {
    if (sentence.find(" is down (") != std::string::npos) ++*paths;
  }
  std::shared_ptr<std::atomic<int>> paths = std::make_shared<std::atomic<int>>(0);
};

TEST_CASE("an adaptive lane of a fused device leaves a dead path, and its NIC is not left") {
  for (const bool mlx5 : {false, true}) {
    CAPTURE(mlx5);
    fake_verbs::reset();
    if (mlx5) fake_verbs::nic().sport_error = 0;
    const Left left;
    DeviceOptions options = silent_for(20 * kMillisecond);
    options.policy.kind = PolicyKind::kAdaptive;
    options.log = left;
    FusedVerbsPair pair(options);
    const std::uint16_t bad = pair.one.counters().lanes.at(1).qp.port;
    fake_verbs::set_path(bad, fake_verbs::Path::kDead);
    CHECK(eventually([&] {
      pair.exchange();
      return pair.one.counters().lanes.at(1).qp.port != bad;
    }));
    CHECK(members_of(pair.one) == std::vector<unsigned>{0, 1, 0, 1});
    CHECK(*left.paths == 0);
  }
}

TEST_CASE("a fused device leaves no NIC for a moment in which its peer answers nothing") {
  fake_verbs::reset();
  const Left left;
  DeviceOptions options = silent_for(500 * kMillisecond);
  options.log = left;
  FusedVerbsPair pair(options);
  for (const unsigned first : {0U, 1U}) {
    for (const unsigned gid : kGids) fake_verbs::set_gid(gid, fake_verbs::Path::kDead);
    pair.begin();
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    fake_verbs::set_gid(kGids.at(first), fake_verbs::Path::kGood);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fake_verbs::set_gid(kGids.at(1 - first), fake_verbs::Path::kGood);
    pair.finish();
  }
  CHECK(*left.paths == 0);
}

}  // namespace
}  // namespace paralet
