// SPDX-License-Identifier: Apache-2.0
// Peers whose process is stopped, while their NIC acknowledges for them.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "verbs_scene.hpp"

namespace paralet {
namespace {

using test::Bytes;
using test::eventually;
using test::VerbsPair;
using State = Request::State;

constexpr std::size_t kSignsAt = 49;  // the byte of a handle that says so (IPv4, one member)

DeviceOptions signs_options(Nanos retry_time) {
  DeviceOptions out = test::verbs_options(2);
  out.retry_time = retry_time;
  return out;
}

/// The process of the second device is stopped until the end of the scope, so that the devices can close.
struct Stopped {
  Stopped() { fake_verbs::stop(1); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  ~Stopped() { fake_verbs::resume(); }
};

void wait(Nanos time) { std::this_thread::sleep_for(std::chrono::nanoseconds(time)); }

TEST_CASE("a peer whose process is stopped is given up, though its NIC acknowledges") {
  fake_verbs::reset();
  VerbsPair pair(signs_options(kSecond));
  pair.check(1000);
  Bytes in(1000);
  const auto waits = VerbsPair::submit(pair.one, pair.to, Request::Kind::kReceive, {.bytes = in});
  const Stopped stopped;
  CHECK(VerbsPair::end(waits) == State::kFailed);
  CHECK(waits->failure == Failure::kTransport);
  CHECK_MESSAGE(waits->error.find("gave no sign of life within the retry time: its process is stopped, or it cannot be "
                                  "reached") != std::string::npos,
                waits->error);
}

TEST_CASE("a peer whose program computes is not given up, and the NICs agree on their own options") {
  fake_verbs::reset();
  constexpr Nanos kRetryTime = 2 * kSecond;  // on a busy machine its engine may wait for a processor
  VerbsPair pair(signs_options(kRetryTime));
  const auto calls = fake_verbs::record().calls;
  CHECK(std::ranges::any_of(calls, [](const auto& call) { return call.starts_with("set_ece"); }));
  CHECK(fake_verbs::record().refused_ece == 0);
  Bytes in(1000);
  const auto waits = VerbsPair::submit(pair.one, pair.to, Request::Kind::kReceive, {.bytes = in});
  wait(kRetryTime + kRetryTime / 2);
  CHECK(waits->state == State::kPending);
  const Bytes out = test::random_fill(1, in.size());
  Bytes sent = out;
  pair.require_done(VerbsPair::submit(pair.two, pair.from, Request::Kind::kSend, {.bytes = sent}));
  pair.require_done(waits);
  CHECK(in == out);
}

TEST_CASE("a listener of an earlier release gets the hello that it knows, and is served as by that release") {
  fake_verbs::reset();
  Device one(signs_options(kSecond));
  Device two(signs_options(kSecond));
  const auto listener = two.listen();
  auto handle = listener->handle;
  REQUIRE(handle[kSignsAt] == std::byte{1});
  handle[kSignsAt] = std::byte{0};
  const auto to = one.connect(handle);
  std::shared_ptr<Connection> from;
  REQUIRE(eventually([&] { return (from = listener->accept()) != nullptr; }));
  REQUIRE(eventually([&] { return test::is_open(*to); }));
  Bytes in(1000);
  const auto waits = VerbsPair::submit(one, to, Request::Kind::kReceive, {.bytes = in});
  const Stopped stopped;
  wait(2 * kSecond);
  CHECK(waits->state == State::kPending);
}

}  // namespace
}  // namespace paralet
