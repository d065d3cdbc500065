// SPDX-License-Identifier: Apache-2.0
// Two devices over the same fake NIC connect to each other, and close, while calls about queue pairs take long.
// Whatever the order, each connection opens that is not closed. The order of steps is drawn; how the devices' threads
// meet them differs from run to run, so a seed that has failed may pass. test_verbs_set_up.cpp holds the very calls.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "verbs_scene.hpp"

namespace paralet {
namespace {

using test::HeldCall;
using test::is_open;

/// One of the devices, and its connections.
struct Side {
  explicit Side(unsigned lanes) : device(options(lanes)), listener(device.listen()) {}

  static DeviceOptions options(unsigned lanes) {
    DeviceOptions out = test::verbs_options(lanes);
    out.retry_time = 100 * kSecond;
    return out;
  }

  Device device;
  std::shared_ptr<Listener> listener;
  std::vector<std::shared_ptr<Connection>> begun;  ///< and not closed
};

constexpr std::array kSlow{fake_verbs::Call::kCreate, fake_verbs::Call::kConnect, fake_verbs::Call::kDestroy};

/// Ten steps that `draw` decides. Returns them as text.
std::string play(std::array<Side, 2>& sides, std::mt19937& draw) {
  const auto one_of = [&draw](unsigned count) { return static_cast<unsigned>(draw() % count); };
  std::string steps;
  for (unsigned step = 0; step < 10; ++step) {
    const unsigned who = one_of(2);
    Side& side = sides.at(who);
    switch (one_of(6)) {
      case 0:
      case 1:
        side.begun.push_back(side.device.connect(sides.at(1 - who).listener->handle));
        steps += who == 0 ? " connect>" : " <connect";
        break;
      case 2: {
        const unsigned call = one_of(kSlow.size());
        const unsigned before = one_of(3);
        HeldCall::release();
        fake_verbs::hold_call(kSlow.at(call), before);
        steps += " hold" + std::to_string(call) + std::to_string(before);
        break;
      }
      case 3:
        HeldCall::release();
        steps += " release";
        break;
      case 4:
        if (side.begun.empty()) break;
        side.device.close_connection(side.begun.back());
        side.begun.pop_back();
        steps += who == 0 ? " close>" : " <close";
        break;
      default: {
        const unsigned ms = one_of(3);
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        steps += " wait" + std::to_string(ms);
        break;
      }
    }
  }
  HeldCall::release();
  return steps;
}

TEST_CASE("connections open whatever the order of connects, closes and slow calls") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    fake_verbs::reset();
    std::mt19937 draw(seed);
    std::array<Side, 2> sides{Side(1 + seed % 2), Side(1 + seed / 2 % 2)};
    const std::string steps = play(sides, draw);
    CAPTURE(steps);
    for (Side& side : sides) {
      for (const auto& connection : side.begun) {
        CHECK(test::eventually([&] { return connection->state != Connection::State::kConnecting; }));
        CHECK_MESSAGE(is_open(*connection), connection->error);
      }
    }
  }
}

}  // namespace
}  // namespace paralet
