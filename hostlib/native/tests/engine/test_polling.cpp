// SPDX-License-Identifier: Apache-2.0
// Who moves a device's packets: callers that poll, or its progress thread.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "engine/polling.hpp"

namespace paralet {
namespace {

/// A progress thread that counts how often it does not stand back.
class Progress {
 public:
  explicit Progress(Polling& polling) : thread_([this, &polling] { run(polling); }) {}
  ~Progress() {
    stop_ = true;
    thread_.join();
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Waits until the thread has not stood back once more.
  void wait_for_a_round() {
    const unsigned before = rounds_;
    while (rounds_ == before) std::this_thread::yield();
  }

 private:
  void run(Polling& polling) {
    while (!stop_) {
      if (!polling.stands_back()) ++rounds_;
      std::this_thread::yield();
    }
  }
  std::atomic<bool> stop_{false};
  std::atomic<unsigned> rounds_{0};
  std::thread thread_;  // last, as it uses the others
};

TEST_CASE("a thread that waits for another device hands the device it polled back to its progress thread") {
  const auto one = std::make_shared<Polling>();
  const auto two = std::make_shared<Polling>();
  const Nanos far = now() + 3600 * kSecond;  // without a hand-over, the progress thread would stand back for an hour
  one->begin();
  one->polled(far);
  one->begin();
  CHECK(one->polled_at() == far);  // the same device: nothing is handed over
  Progress progress(*one);
  two->begin();
  CHECK(one->polled_at() == 0);
  progress.wait_for_a_round();
  two->polled(far);
  one->begin();
  CHECK(two->polled_at() == 0);
}

TEST_CASE("each thread hands over its own device, and a device that is gone is forgotten") {
  const auto one = std::make_shared<Polling>();
  one->begin();
  one->polled(now());
  std::thread([] {
    auto other = std::make_shared<Polling>();
    other->begin();
    other.reset();
    std::make_shared<Polling>()->begin();
  }).join();
  CHECK(one->polled_at() > 0);
}

TEST_CASE("a closed device releases its descriptor, and stopping it wakes nobody") {
  const auto polling = std::make_shared<Polling>();
  CHECK(polling->wake_fd() >= 0);
  polling->polled(now());
  CHECK(polling->stands_back());  // from now on it counts as standing back
  polling->close();
  CHECK(polling->wake_fd() == -1);
  polling->stop();
}

}  // namespace
}  // namespace paralet
