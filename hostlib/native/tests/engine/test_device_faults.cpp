// SPDX-License-Identifier: Apache-2.0
// Lost, duplicated, reordered and corrupted packets, and silent peers.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "engine/device_fixture.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("messages arrive despite injected faults of every kind in both directions") {
  const std::array<Faults, 5> kinds{{{.drop = 0.05},
                                     {.duplicate = 0.05},
                                     {.reorder = 0.05},
                                     {.corrupt = 0.05},
                                     {.drop = 0.05, .duplicate = 0.05, .reorder = 0.05, .corrupt = 0.05}}};
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    CAPTURE(kind);
    DeviceOptions one = options(kA);
    DeviceOptions other = options(kB);
    one.faults = other.faults = kinds[kind];
    one.faults.seed = 1;
    other.faults.seed = 2;
    Device a(one);
    Device b(other);
    const Joined joined(a, b);
    for (const std::size_t bytes : {0, 100, 200'000}) joined.check(bytes);
    CHECK(a.counters().discards.injected + b.counters().discards.injected > 0);
  }
}

TEST_CASE("a silent peer is given up after retry_time") {
  DeviceOptions deaf = options(kB);
  Device b(deaf);
  DeviceOptions one = options(kA);
  one.retry_time = 500 * kMillisecond;
  one.faults.drop = 1;  // receives nothing: neither acknowledgements nor advertisements
  Device a(one);
  const Joined joined(a, b);
  Bytes in(100);
  Bytes there(100);
  const auto waiting = joined.receive(there);
  const auto receiving = joined.receive_back(in);  // its advertisement is never acknowledged
  REQUIRE(wait(receiving) == State::kFailed);
  CHECK(receiving->failure == Failure::kTransport);
  CHECK(receiving->error.find("the peer did not answer within the retry time") != std::string::npos);
  // The peer has received everything and waits for nothing, so it learns of the failure from the channel.
  REQUIRE(wait(waiting) == State::kFailed);
  CHECK(waiting->failure == Failure::kClosed);
  CHECK(waiting->error == "127.0.0.1 gave up: " + receiving->error);
}

}  // namespace
}  // namespace paralet
