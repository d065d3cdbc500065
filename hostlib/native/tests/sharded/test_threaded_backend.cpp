// SPDX-License-Identifier: Apache-2.0
// A back end on a thread of its own, over a fake that completes what was posted.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "bytes.hpp"
#include "sharded/threaded_backend.hpp"

namespace paralet {
namespace {

constexpr auto kLimit = std::chrono::seconds(20);
constexpr std::uint64_t kLong = WakeRule::kShortBytes + 1;

template <typename Condition>
bool holds_in_time(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + kLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

bool readable(int fd, int timeout_ms) {
  pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&waited, 1, timeout_ms) == 1;
}

/// Completes whatever was posted in the next round, unless it is told to keep it.
class RecordingBackend final : public Backend {
 public:
  struct Said {
    std::atomic<bool> keeps{false};  ///< completes nothing
    std::atomic<bool> wants{true};
    std::atomic<unsigned> rounds{0};
    std::atomic<unsigned> rounds_of_thread{0};  ///< those of another thread than the test's
    std::atomic<unsigned> settled{0};
    std::atomic<Nanos> timer{kNever};
    std::atomic<unsigned> timers{0};  ///< that were due in a round
    std::atomic<std::size_t> buffers{0};
    const FileDescriptor arrivals{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    const std::thread::id test = std::this_thread::get_id();
  };
  explicit RecordingBackend(std::shared_ptr<Said> said) : said_(std::move(said)) {}

  [[nodiscard]] std::uint16_t udp_port() const override { return 4791; }
  [[nodiscard]] std::uint32_t max_path_mtu() const override { return 4096; }
  std::uint32_t register_memory(std::byte* /*base*/, std::uint64_t /*length*/) override { return 0; }
  void register_as(std::uint32_t rkey, std::byte* /*base*/, std::uint64_t length) override { regions_[rkey] = length; }
  void deregister_memory(std::uint32_t rkey) override { regions_.erase(rkey); }
  QpIdentity create_qp() override { return {.qpn = ++last_qpn_, .first_psn = 0}; }
  bool connect_qp(std::uint32_t /*qpn*/, const RemoteQp& /*remote*/, std::uint16_t port) override { return port != 1; }
  PortChange set_port(std::uint32_t /*qpn*/, std::uint16_t /*port*/) override { return PortChange::kDone; }
  [[nodiscard]] PortMethod port_method() const override { return PortMethod::kSocket; }
  void fail_qp(std::uint32_t /*qpn*/) override {}
  void stop_qp(std::uint32_t /*qpn*/) override {}
  std::vector<WorkRequest> take_back(std::uint32_t /*qpn*/, std::uint32_t /*arrived*/) override {
    std::vector<WorkRequest> out;
    for (const auto& [qpn, work] : std::exchange(posted_, {})) out.push_back(work);
    return out;
  }
  void destroy_qp(std::uint32_t /*qpn*/) override {}
  void post(std::uint32_t qpn, const WorkRequest& request) override { posted_.emplace_back(qpn, request); }
  void post_receive(const ReceiveBuffer& /*buffer*/) override { ++said_->buffers; }
  [[nodiscard]] PathEstimate estimate(std::uint32_t /*qpn*/) const override {
    return {.smoothed_rtt = static_cast<Nanos>(1 + done_), .app_limited = true};
  }
  [[nodiscard]] QpStatistics statistics(std::uint32_t /*qpn*/) const override {
    QpStatistics out;
    out.acknowledged_packets = done_;
    out.all_acknowledged = posted_.empty();
    return out;
  }
  [[nodiscard]] Discards discards() const override { return {}; }
  [[nodiscard]] bool wants_work(Nanos /*now*/) const override { return said_->wants; }
  bool progress(Nanos now, std::vector<Completion>& completions) override {
    ++said_->rounds;
    if (std::this_thread::get_id() != said_->test) ++said_->rounds_of_thread;
    if (now >= said_->timer) {
      said_->timer = kNever;
      ++said_->timers;
    }
    std::uint64_t arrived = 0;
    if (::read(said_->arrivals.get(), &arrived, sizeof arrived) == sizeof arrived) {
      completions.push_back({.kind = Completion::Kind::kReceivedWriteImm, .imm = static_cast<std::uint32_t>(arrived)});
      return true;
    }
    if (said_->keeps || posted_.empty()) return false;
    for (const auto& [qpn, work] : posted_) {
      completions.push_back({.qpn = qpn, .cookie = work.cookie, .byte_length = work.length});
      ++done_;
    }
    posted_.clear();
    return true;
  }
  bool flush(Nanos /*now*/) override { return false; }
  void settle(Nanos /*now*/) override { ++said_->settled; }
  [[nodiscard]] Nanos deadline(Nanos /*now*/) const override { return said_->timer; }
  [[nodiscard]] int event_fd() const override { return said_->arrivals.get(); }

 private:
  std::shared_ptr<Said> said_;
  std::uint32_t last_qpn_ = 0;
  std::vector<std::pair<std::uint32_t, WorkRequest>> posted_;
  std::map<std::uint32_t, std::uint64_t> regions_;
  std::uint64_t done_ = 0;
};

struct ThreadedScene {
  std::shared_ptr<RecordingBackend::Said> said = std::make_shared<RecordingBackend::Said>();
  ThreadedBackend backend{std::make_unique<RecordingBackend>(said)};
  std::uint32_t qpn = backend.create_qp().qpn;
  std::vector<Completion> completions;

  void post(std::uint64_t cookie, std::uint64_t bytes = 1) {
    backend.post(qpn, {.cookie = cookie, .length = static_cast<std::uint32_t>(bytes)});
  }
  bool take() { return backend.progress(now(), completions); }
  /// Until this many completions have come.
  bool taken(std::size_t count) {
    return holds_in_time([&] {
      take();
      return completions.size() >= count;
    });
  }
  void arrive(std::uint64_t number) const {
    REQUIRE(::write(said->arrivals.get(), &number, sizeof number) == sizeof number);
  }
};

TEST_CASE("what is posted is carried out in order, and each completion comes once") {
  ThreadedScene scene;
  constexpr std::uint64_t kMany = 20'000;  // more than the rings hold
  std::uint64_t posted = 0;
  REQUIRE(holds_in_time([&] {
    for (int i = 0; i < 3000 && posted < kMany; ++i) scene.post(++posted);
    scene.backend.flush(now());
    if (posted % 2 == 0 || posted == kMany) scene.take();  // sometimes late, so that the ring of completions fills
    return scene.completions.size() == kMany;
  }));
  for (std::uint64_t i = 0; i < kMany; ++i) REQUIRE(scene.completions[i].cookie == i + 1);
  CHECK_FALSE(scene.take());
}

TEST_CASE("completions that find the ring full are not lost") {
  ThreadedScene scene;
  constexpr std::uint64_t kMany = 10'000;
  for (std::uint64_t i = 0; i < kMany; ++i) scene.post(i);  // waits for the shard whenever the ring of posts is full
  scene.backend.flush(now());
  REQUIRE(holds_in_time([&] { return scene.backend.statistics(scene.qpn).acknowledged_packets == kMany; }));
  REQUIRE(scene.taken(kMany));
  for (std::uint64_t i = 0; i < kMany; ++i) REQUIRE(scene.completions[i].cookie == i);
}

TEST_CASE("a sleeping thread is woken for long work") {
  ThreadedScene scene;
  scene.post(1, kLong);
  const unsigned before = scene.said->rounds_of_thread;
  scene.backend.flush(now());
  CHECK(holds_in_time([&] { return scene.said->rounds_of_thread > before; }));
  CHECK(scene.taken(1));
  CHECK_FALSE(scene.backend.flush(now()));  // nothing is left
}

TEST_CASE("the front carries out short work itself while the thread sleeps") {
  ThreadedScene scene;
  REQUIRE(holds_in_time([&] {  // the thread may be awake at first
    const std::size_t completed = scene.completions.size();
    const unsigned before = scene.said->rounds_of_thread;
    scene.post(1);
    scene.backend.flush(now());
    scene.take();
    return scene.completions.size() > completed && scene.said->rounds_of_thread == before;
  }));
}

TEST_CASE("its thread serves its timers and looks at what arrives while the front rests") {
  ThreadedScene scene;
  scene.said->timer = now() + kMillisecond;
  scene.backend.set_port(scene.qpn, 2);  // any call that may have changed the deadline
  CHECK(holds_in_time([&] { return scene.said->timers == 1; }));
  scene.backend.rest();
  CHECK_FALSE(readable(scene.backend.event_fd(), 0));
  scene.arrive(7);
  REQUIRE(readable(scene.backend.event_fd(), 20'000));
  CHECK(scene.backend.deadline(5) == 5);  // there is something to take
  REQUIRE(scene.taken(1));
  CHECK(scene.completions[0].imm == 7);
  CHECK(holds_in_time([&] {
    scene.take();
    return !readable(scene.backend.event_fd(), 0);
  }));
  CHECK(scene.backend.deadline(5) == kNever);
}

TEST_CASE("a front that rests is woken when the shard wants work that it was refused") {
  ThreadedScene scene;
  CHECK(scene.backend.wants_work(now()));
  scene.said->wants = false;
  REQUIRE(holds_in_time([&] {
    scene.arrive(1);  // a round
    scene.take();
    return !scene.backend.wants_work(now());
  }));
  REQUIRE(holds_in_time([&] {
    scene.take();
    scene.backend.rest();
    return scene.backend.deadline(0) == kNever && !readable(scene.backend.event_fd(), 20);
  }));
  CHECK_FALSE(scene.backend.wants_work(now()));
  scene.said->wants = true;
  scene.post(1, kLong);
  scene.said->keeps = true;  // no completion wakes the front
  scene.backend.flush(now());
  CHECK(readable(scene.backend.event_fd(), 20'000));
}

TEST_CASE("a lane with work on its way to the shard does not seem idle") {
  ThreadedScene scene;
  REQUIRE(scene.backend.connect_qp(scene.qpn, {}, 2));
  CHECK(scene.backend.estimate(scene.qpn).app_limited);
  CHECK(scene.backend.estimate(scene.qpn).smoothed_rtt == 1);
  scene.post(1);
  CHECK_FALSE(scene.backend.estimate(scene.qpn).app_limited);
  scene.backend.flush(now());
  REQUIRE(scene.taken(1));
  CHECK(scene.backend.estimate(scene.qpn).app_limited);
  CHECK(scene.backend.estimate(scene.qpn).smoothed_rtt == 2);  // published before the completion
  CHECK(scene.backend.recent_statistics(scene.qpn).acknowledged_packets == 1);
}

TEST_CASE("calls that wait for the shard find what was posted before") {
  ThreadedScene scene;
  scene.said->keeps = true;
  scene.post(1);
  scene.post(2);
  const auto works = scene.backend.take_back(scene.qpn, 0);
  REQUIRE(works.size() == 2);
  CHECK(works[0].cookie == 1);
  CHECK(works[1].cookie == 2);
  CHECK_FALSE(scene.backend.connect_qp(scene.qpn, {}, 1));
  scene.backend.register_as(5, nullptr, 10);
  scene.backend.deregister_memory(5);
  scene.backend.destroy_qp(scene.qpn);
}

TEST_CASE("what has arrived is taken at once, in order") {
  ThreadedScene scene;
  scene.post(1);
  scene.backend.flush(now());
  scene.post(2);
  std::vector<Completion> arrived;
  REQUIRE(holds_in_time([&] {
    scene.backend.take_arrived(now(), arrived);
    return arrived.size() >= 2;
  }));
  REQUIRE(arrived.size() == 2);
  CHECK(arrived[0].cookie == 1);
  CHECK(arrived[1].cookie == 2);
}

TEST_CASE("receive buffers reach the shard, and settling too") {
  ThreadedScene scene;
  constexpr std::size_t kBuffers = 5000;  // more than the ring holds
  for (std::size_t i = 0; i < kBuffers; ++i) scene.backend.post_receive({.cookie = i});
  REQUIRE(holds_in_time([&] {
    scene.take();
    return scene.said->buffers == kBuffers;
  }));
  const unsigned before = scene.said->settled;
  scene.backend.settle(now());
  CHECK(holds_in_time([&] { return scene.said->settled > before; }));
}

TEST_CASE("while the front looks for arrivals, the thread leaves them to it") {
  ThreadedScene scene;
  REQUIRE(holds_in_time([&] {  // it stands back once it has nothing to do
    scene.take();
    const unsigned before = scene.said->rounds_of_thread;
    for (std::uint64_t i = 1; i <= 5; ++i) {
      scene.take();
      scene.arrive(i);
      scene.take();
    }
    return scene.said->rounds_of_thread == before && scene.completions.size() >= 5;
  }));
}

}  // namespace
}  // namespace paralet
