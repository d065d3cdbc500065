// SPDX-License-Identifier: Apache-2.0
// Many threads that use one device: progress lock, polling callers and the progress thread.
#include <doctest/doctest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "engine/device_fixture.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("many threads may use two devices in both directions") {
  DevicePair pair;
  constexpr std::size_t kThreads = 4;
  std::vector<std::unique_ptr<Joined>> joined;
  for (std::size_t i = 0; i < kThreads; ++i) joined.push_back(std::make_unique<Joined>(pair.a, pair.b));
  std::atomic<unsigned> good{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      SplitMix64 random(t);
      for (int i = 0; i < 50; ++i) {
        const Bytes out = random_fill(random, random.below(30'000));
        const auto received = joined[t]->receive(Bytes(out.size()), static_cast<std::uint32_t>(i));
        const auto sent = joined[t]->send(out, static_cast<std::uint32_t>(i));
        if (wait(sent) == State::kDone && wait(received) == State::kDone && received->memory == out) ++good;
        static_cast<void>(pair.a.counters());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == kThreads * 50);
}

/// Processor time of this thread.
Nanos thread_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

/// Polls both devices until `request` has ended.
State poll_until_done(Device& one, Device& two, const RequestPtr& request) {
  const auto until = std::chrono::steady_clock::now() + kTimeLimit;
  while (request->state == State::kPending && std::chrono::steady_clock::now() < until) {
    one.poll();
    two.poll();
  }
  return request->state;
}

TEST_CASE("threads that poll, submit and wait at the same time all make progress") {
  DeviceOptions polling = options(kA);
  polling.busy_poll = 50 * kMillisecond;
  Device a(polling);
  Device b(options(kB));
  constexpr std::size_t kThreads = 4;
  constexpr unsigned kMessages = 60;
  std::vector<std::unique_ptr<Joined>> links;
  for (std::size_t i = 0; i < kThreads; ++i) links.push_back(std::make_unique<Joined>(a, b));
  std::atomic<unsigned> right{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      // Odd threads only wait, so that the progress thread and the pollers pass the progress lock to each other.
      for (unsigned n = 0; n < kMessages; ++n) {
        const Bytes out = random_fill(1000 * i + n, n % 3 == 0 ? 8 : 20'000 * (n % 5));
        const auto received = links[i]->receive(Bytes(out.size()));
        const auto sent = links[i]->send(out);
        const auto ended = [&received] { return received->state != State::kPending; };
        if (i % 2 == 0) {
          static_cast<void>(poll_until_done(a, b, received));
        } else {
          static_cast<void>(a.wait(ended, 20 * kSecond));
        }
        const bool done = received->state == State::kDone;
        if (done && wait(sent) == State::kDone && received->memory == out) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == kThreads * kMessages);
}

TEST_CASE("requests that are tested in turn all end") {
  DevicePair pair;
  const Joined link(pair.a, pair.b);
  constexpr std::uint32_t kMessages = 8;
  std::vector<MessagePtr> requests;
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    requests.push_back(link.receive(Bytes(200'000), i));
    requests.push_back(link.send(random_fill(i, 200'000), i));
  }
  const auto pending = [](const RequestPtr& request) { return request->state == State::kPending; };
  const auto until = std::chrono::steady_clock::now() + kTimeLimit;
  while (std::ranges::any_of(requests, pending) && std::chrono::steady_clock::now() < until) {
    for (const MessagePtr& request : requests) {
      if (!pending(request)) continue;
      link.one.poll_for(request.get());
      link.two.poll_for(request.get());
    }
  }
  for (const MessagePtr& request : requests) CHECK(request->state == State::kDone);
  for (std::size_t i = 0; i < requests.size(); i += 2) CHECK(requests[i]->memory == requests[i + 1]->memory);
}

/// `soft`, but it counts calls of `settle`.
class SettlesBackend final : public SoftBackend {
 public:
  SettlesBackend(const SoftOptions& options, std::atomic<unsigned>& settled)
      : SoftBackend(options), settled_(settled) {}
  void settle(Nanos t) override {
    ++settled_;
    SoftBackend::settle(t);
  }

 private:
  std::atomic<unsigned>& settled_;
};

TEST_CASE("a long message is acknowledged at once when the receiver has nothing else to wait for" * of_soft()) {
  DeviceOptions polling = options(kB);
  polling.busy_poll = 600 * kSecond;  // its progress thread does not settle
  std::atomic<unsigned> settled{0};
  Device b(polling, std::make_unique<SettlesBackend>(SoftOptions{.address = kB}, settled));
  Device a(options(kA));
  const Joined joined(a, b);
  settled = 0;
  const auto first = joined.receive(Bytes(100'000));
  const auto last = joined.receive(Bytes(100'000));
  require_done(joined.send(Bytes(100'000)));
  require_done(first);
  CHECK(b.counters().messages.receives == 1);
  CHECK(settled == 0);
  const auto sent = joined.send(Bytes(100'000));
  require_done(last);
  CHECK(b.counters().messages.receives == 2);  // takes the lock, so the round that received it is over
  CHECK(settled == 1);
  require_done(sent);
  const auto brief = joined.receive(Bytes(8));
  require_done(joined.send(Bytes(8)));
  require_done(brief);
  CHECK(b.counters().messages.receives == 3);
  CHECK(settled == 1);  // the sender of a short message does not wait
}

/// Runs this thread, and those that it starts, on one core.
class OnOneCore {
 public:
  OnOneCore() : before_{} {
    REQUIRE(::sched_getaffinity(0, sizeof before_, &before_) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one{};
    CPU_SET(first, &one);
    REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;
  ~OnOneCore() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

/// Processor time that one side of a ping-pong spends on a round trip. Its callers spin for `busy_poll` before they
/// sleep.
Nanos time_per_round_trip(Nanos busy_poll) {
  constexpr unsigned kRoundTrips = 60;
  DeviceOptions of_a = options(kA);
  DeviceOptions of_b = options(kB);
  of_a.busy_poll = of_b.busy_poll = busy_poll;
  Device a(of_a);
  Device b(of_b);
  const Joined joined(a, b);
  const auto ends = [](Device& device, const RequestPtr& request) {
    return device.wait([&] { return request->state != State::kPending; }, 20 * kSecond);
  };
  std::atomic<bool> answered{true};
  std::thread other([&] {
    for (unsigned i = 0; i < kRoundTrips; ++i) {
      if (!ends(b, joined.receive(Bytes(8)))) answered = false;
      static_cast<void>(joined.send_back(Bytes(8)));
    }
  });
  const Nanos begin = thread_time();
  for (unsigned i = 0; i < kRoundTrips; ++i) {
    const auto received = joined.receive_back(Bytes(8));
    static_cast<void>(joined.send(Bytes(8)));
    if (!ends(a, received)) answered = false;
  }
  const Nanos spent = thread_time() - begin;
  other.join();
  CHECK(answered);
  return spent / kRoundTrips;
}

TEST_CASE("callers that spin on one core leave it to each other") {
  const OnOneCore core;
  const Nanos sleeping = time_per_round_trip(0);
  const Nanos spinning = time_per_round_trip(600 * kSecond);
  CAPTURE(sleeping);
  CAPTURE(spinning);
  CHECK(spinning < 10 * sleeping);  // a thread that keeps the core spins until its time slice ends: hundredfold
}

TEST_CASE("progress goes on after a polling caller stops") {
  DevicePair pair;
  const Joined link(pair.a, pair.b);
  for (int round = 0; round < 20; ++round) {
    const Bytes out = random_fill(static_cast<std::uint64_t>(round), 300'000);
    const auto received = link.receive(Bytes(out.size()));
    for (int i = 0; i < 10 * round; ++i) {
      link.one.poll();
      link.two.poll();
    }
    if (round % 2 == 0) link.one.stop_polling();
    const auto sent = link.send(out);
    require_done(received);
    require_done(sent);
    CHECK(received->memory == out);
  }
}

}  // namespace
}  // namespace paralet
