// SPDX-License-Identifier: Apache-2.0
#include "sharded/threaded_backend.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include "base/adaptive_spin.hpp"
#include "base/errors.hpp"
#include "base/limits.hpp"

namespace paralet {
namespace {

constexpr std::size_t kPostedRoom = 1024;             // entries
constexpr std::size_t kBufferRoom = 2048;             // the receive buffers of a device
constexpr std::size_t kCompletionRoom = 4096;         // entries
constexpr std::uint32_t kBufferBatch = 32;            // receive buffers; far fewer than a shard has
constexpr std::uint64_t kRingLookAhead = 256 * 1024;  // bytes that may wait in the ring before lanes pull more flowlets
constexpr Nanos kRefresh = 1 * kMillisecond;          // estimates of QPs with work are at most this old
constexpr Nanos kStandBack = 1 * kMillisecond;  // the thread notices after this time that nobody looks for arrivals

void notify(const FileDescriptor& event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof one);
}

void take_notice(const FileDescriptor& event) {
  std::uint64_t ignored = 0;
  [[maybe_unused]] const ssize_t got = ::read(event.get(), &ignored, sizeof ignored);
}

}  // namespace

class PARALET_SCOPED_CAPABILITY ThreadedBackend::Held {
 public:
  explicit Held(ThreadedBackend& backend) PARALET_ACQUIRE(backend.shard_) : backend_(backend) {
    backend_.lock_shard();
    backend_.take_posted();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  /// The call may have given the thread something to do, or something to wait for.
  ~Held() PARALET_RELEASE() {
    backend_.shard_.unlock();
    backend_.wake();
  }

 private:
  ThreadedBackend& backend_;
};

class PARALET_SCOPED_CAPABILITY ThreadedBackend::Reading {
 public:
  explicit Reading(const ThreadedBackend& backend) PARALET_ACQUIRE(backend.shard_) : backend_(backend) {
    backend_.lock_shard();
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() PARALET_RELEASE() { backend_.shard_.unlock(); }

 private:
  const ThreadedBackend& backend_;
};

ThreadedBackend::ThreadedBackend(std::unique_ptr<Backend> inner)
    : constant_(*inner),
      inner_(std::move(inner)),
      posted_(kPostedRoom),
      buffers_(kBufferRoom),
      completions_(kCompletionRoom),
      to_shard_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      to_front_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!to_shard_.valid() || !to_front_.valid()) throw DeviceError("cannot wake a shard: " + error_text(errno));
  thread_ = start_thread([this] { run(); });
}

ThreadedBackend::~ThreadedBackend() {
  stop_ = true;
  asleep_ = false;
  notify(to_shard_);
  thread_.join();
}

/// For the front, which waits at most until the round in progress has ended.
void ThreadedBackend::lock_shard() const {
  awaited_.fetch_add(1, std::memory_order_relaxed);
  shard_.lock();
  awaited_.fetch_sub(1, std::memory_order_relaxed);
}

// -- a round ----------------------------------------------------------------------------------------------------------

/// Carries out what was posted, receives, serves timers, sends. True when anything was done.
bool ThreadedBackend::round(Nanos t) {
  const Nanos now = round_at_ = std::max(round_at_, t);  // the front's round may have begun before the last one here
  bool any = take_posted();
  any = inner_->progress(now, fresh_) || any;
  any = inner_->flush(now) || any;
  if (settles_.load(std::memory_order_relaxed) && settles_.exchange(false)) inner_->settle(now);
  if (any || now - published_at_ >= kRefresh) publish_busy(now);
  const bool wants = inner_->wants_work(now);
  wants_work_.store(wants, std::memory_order_relaxed);
  const bool news = hand_over();
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before it looks at what the front waits for
  if (news || (wants && refused_.load(std::memory_order_relaxed) && refused_.exchange(false))) signal_front();
  return any;
}

bool ThreadedBackend::take_posted() {
  bool any = false;
  for (ReceiveBuffer buffer; buffers_.pop(buffer); any = true) inner_->post_receive(buffer);
  std::uint64_t bytes = 0;
  for (Posted posted; posted_.pop(posted); any = true) {
    inner_->post(posted.qp->qpn, posted.work);
    ++posted.qp->taken;
    bytes += posted.work.length;
    if (!std::exchange(posted.qp->busy, true)) busy_.push_back(posted.qp);
  }
  if (bytes > 0) {
    taken_bytes_.store(taken_bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
  return any;
}

void ThreadedBackend::publish(Qp& qp) {
  qp.estimate.publish({.path = inner_->estimate(qp.qpn), .taken = qp.taken});
  qp.statistics.publish(inner_->statistics(qp.qpn));
}

/// Before the completions that may make the front look at the estimates.
void ThreadedBackend::publish_busy(Nanos now) {
  published_at_ = now;
  std::erase_if(busy_, [this](Qp* qp) PARALET_REQUIRES(shard_) {
    publish(*qp);
    qp->busy = !qp->statistics.read().all_acknowledged;
    return !qp->busy;
  });
}

/// Passes completions to the front. True when there were any.
bool ThreadedBackend::hand_over() {
  for (const Completion& completion : fresh_) late_.push_back(completion);
  fresh_.clear();
  const std::size_t before = late_.size();
  while (!late_.empty() && completions_.push(late_.front())) late_.pop_front();
  has_late_.store(!late_.empty(), std::memory_order_release);
  return late_.size() < before;
}

void ThreadedBackend::signal_front() {
  if (!front_rests_.load(std::memory_order_relaxed) || !front_rests_.exchange(false)) return;
  notify(to_front_);
  signalled_.store(true, std::memory_order_release);
}

// -- the front ----------------------------------------------------------------------------------------------------

bool ThreadedBackend::take_completions(std::vector<Completion>& completions) {
  if (signalled_.load(std::memory_order_relaxed) && signalled_.exchange(false)) take_notice(to_front_);
  const std::size_t before = completions.size();
  for (Completion one; completions_.pop(one);) completions.push_back(one);
  if (has_late_.load(std::memory_order_acquire)) {
    const Reading held(*this);
    take_late(completions);
  }
  return completions.size() > before;
}

/// The shard may have put some of the late ones into the ring meanwhile.
void ThreadedBackend::take_late(std::vector<Completion>& completions) {
  for (Completion one; completions_.pop(one);) completions.push_back(one);
  for (; !late_.empty(); late_.pop_front()) completions.push_back(late_.front());
  has_late_.store(false, std::memory_order_relaxed);
}

/// Runs a round in place of the thread, which sleeps. False when the shard is held.
bool ThreadedBackend::run_here(Nanos now, bool& worked) {
  if (!shard_.try_lock()) return false;
  worked = round(now);
  // While it stands back the front runs the timers too.
  const bool must_wait_less = !standing_back_.load(std::memory_order_relaxed) && inner_->deadline(now) < asleep_until_;
  shard_.unlock();
  if (must_wait_less) wake();
  return true;
}

bool ThreadedBackend::progress(Nanos now, std::vector<Completion>& completions) {
  looked_at_.store(now, std::memory_order_relaxed);
  if (asleep_.load(std::memory_order_relaxed)) {
    bool worked = false;
    if (run_here(now, worked) && rule_.looked(worked)) wake();
  }
  return take_completions(completions);
}

bool ThreadedBackend::take_arrived(Nanos now, std::vector<Completion>& completions) {
  take_completions(completions);
  const Held held(*this);
  take_late(completions);
  const bool more = inner_->take_arrived(now, completions);
  publish_busy(now);
  return more;
}

bool ThreadedBackend::flush(Nanos now) {
  if (!std::exchange(posted_any_, false)) return false;
  const std::uint64_t bytes = posted_bytes_ - std::exchange(flushed_bytes_, posted_bytes_);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the thread looks at the ring after it has said that it sleeps
  if (!asleep_.load(std::memory_order_relaxed)) return true;
  bool worked = false;
  if (!WakeRule::runs_posted(bytes) || !run_here(now, worked)) wake();
  return true;
}

void ThreadedBackend::settle(Nanos now) {
  settles_ = true;
  bool worked = false;
  run_here(now, worked);  // the thread settles before it sleeps
}

/// The thread must watch for arrivals again, and completions must wake the front.
void ThreadedBackend::rest() {
  looked_at_.store(0, std::memory_order_seq_cst);
  front_rests_.store(true, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // `deadline` looks for completions after this
  if (standing_back_.load(std::memory_order_seq_cst)) wake();
}

void ThreadedBackend::post(std::uint32_t qpn, const WorkRequest& request) {
  Posted posted{.qp = &qps_.at(qpn), .work = request};
  if (!posted_.push(posted)) {
    const Held held(*this);
    posted_.push(posted);
  }
  ++posted.qp->posted;
  posted_bytes_ += request.length;
  posted_any_ = true;
}

void ThreadedBackend::post_receive(const ReceiveBuffer& buffer) {
  if (!buffers_.push(buffer)) {
    const Held held(*this);
    buffers_.push(buffer);
  }
  // The shard has others. Should it wait for buffers, it needs no wake-up for each.
  if (++buffers_given_ % kBufferBatch == 0) posted_any_ = true;
}

PathEstimate ThreadedBackend::estimate(std::uint32_t qpn) const {
  const Qp& qp = qps_.at(qpn);
  Estimate out = qp.estimate.read();
  if (out.taken != qp.posted) {  // more work is on its way to the shard
    out.path.app_limited = false;
    if (out.path.window < 1) out.path.ready_at = kNever;
  }
  return out.path;
}

bool ThreadedBackend::wants_work(Nanos now) const {
  static_cast<void>(now);
  const auto wants = [this] {
    const std::uint64_t waiting = posted_bytes_ - taken_bytes_.load(std::memory_order_relaxed);
    return waiting < kRingLookAhead && wants_work_.load(std::memory_order_relaxed);
  };
  if (wants()) return true;
  refused_.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the shard looks at this after each round
  return wants();
}

// -- calls that wait for the shard ------------------------------------------------------------------------------------

std::uint32_t ThreadedBackend::register_memory(std::byte* base, std::uint64_t length) {
  const Reading held(*this);
  return inner_->register_memory(base, length);
}

void ThreadedBackend::register_as(std::uint32_t rkey, std::byte* base, std::uint64_t length) {
  const Reading held(*this);
  inner_->register_as(rkey, base, length);
}

void ThreadedBackend::deregister_memory(std::uint32_t rkey) {
  const Reading held(*this);
  inner_->deregister_memory(rkey);
}

void ThreadedBackend::retire_memory(std::uint32_t rkey) {
  const Reading held(*this);
  inner_->retire_memory(rkey);
}

QpIdentity ThreadedBackend::create_qp() {
  const Held held(*this);
  const QpIdentity identity = inner_->create_qp();
  qps_.try_emplace(identity.qpn, identity.qpn);
  return identity;
}

Ece ThreadedBackend::ece(std::uint32_t qpn) const {
  const Reading held(*this);
  return inner_->ece(qpn);
}

bool ThreadedBackend::connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) {
  const Held held(*this);
  const bool connected = inner_->connect_qp(qpn, remote, source_port);
  if (connected) publish(qps_.at(qpn));
  return connected;
}

PortChange ThreadedBackend::set_port(std::uint32_t qpn, std::uint16_t source_port) {
  const Held held(*this);
  const PortChange change = inner_->set_port(qpn, source_port);
  publish(qps_.at(qpn));
  return change;
}

void ThreadedBackend::path_changed(std::uint32_t qpn, Nanos now) {
  const Held held(*this);
  inner_->path_changed(qpn, now);
}

void ThreadedBackend::fail_qp(std::uint32_t qpn) {
  const Held held(*this);
  inner_->fail_qp(qpn);
}

void ThreadedBackend::stop_qp(std::uint32_t qpn) {
  const Held held(*this);
  inner_->stop_qp(qpn);
}

std::vector<WorkRequest> ThreadedBackend::take_back(std::uint32_t qpn, std::uint32_t arrived) {
  const Held held(*this);
  return inner_->take_back(qpn, arrived);
}

void ThreadedBackend::destroy_qp(std::uint32_t qpn) {
  const Held held(*this);
  const auto found = qps_.find(qpn);
  if (found == qps_.end()) return;
  std::erase(busy_, &found->second);
  inner_->destroy_qp(qpn);
  qps_.erase(found);
}

QpStatistics ThreadedBackend::statistics(std::uint32_t qpn) const {
  const Reading held(*this);
  return inner_->statistics(qpn);
}

Discards ThreadedBackend::discards() const {
  const Reading held(*this);
  return inner_->discards();
}

// -- the thread -------------------------------------------------------------------------------------------------------

void ThreadedBackend::wake() {
  if (asleep_.load(std::memory_order_relaxed) && asleep_.exchange(false)) notify(to_shard_);
}

void ThreadedBackend::run() {
  AdaptiveSpin spin;
  Nanos last_work = now();
  while (!stop_) {
    if (awaited_.load(std::memory_order_relaxed) > 0) {
      std::this_thread::yield();
      continue;
    }
    bool spins = true;
    Nanos until = 0;
    {
      const MutexLock lock(shard_);
      const Nanos t = now();
      if (round(t)) {
        spin.worked();
        last_work = t;
        continue;
      }
      spins = spin.keeps_spinning(t - last_work);
      if (!spins) {
        inner_->settle(t);
        until = std::min(inner_->deadline(t), t + (busy_.empty() ? kSecond : kRefresh));
        asleep_until_ = until;
        asleep_.store(true, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);  // what is posted from now on comes with a wake-up
        if (!posted_.empty() || !buffers_.empty()) asleep_.store(false, std::memory_order_relaxed);
      }
    }
    if (spins) {
      std::this_thread::yield();
    } else if (asleep_.load(std::memory_order_relaxed)) {
      sleep(until);
    }
  }
}

/// Sleeps until something is posted or arrives, at most until `until`. While the front looks for arrivals itself, the
/// thread leaves them to it: both would only contend for the shard.
void ThreadedBackend::sleep(Nanos until) {
  std::array<pollfd, 2> events{{{.fd = to_shard_.get(), .events = POLLIN, .revents = 0},
                                {.fd = constant_.event_fd(), .events = POLLIN, .revents = 0}}};
  for (bool stood_back = false; !stop_; stood_back = true) {
    standing_back_.store(true, std::memory_order_seq_cst);  // before it asks whether the front looks: see `rest`
    const Nanos t = now();
    const bool stands_back = t - looked_at_.load(std::memory_order_seq_cst) < kStandBack;
    if (!stands_back) standing_back_.store(false, std::memory_order_relaxed);
    if (!stands_back && stood_back) break;  // the deadline may be another one now
    const Nanos rest = stands_back ? kStandBack : std::max<Nanos>(0, until - t);
    const timespec timeout{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
    if (::ppoll(events.data(), stands_back ? 1 : 2, &timeout, nullptr) != 0 || !stands_back) break;
  }
  standing_back_.store(false, std::memory_order_relaxed);
  asleep_.store(false, std::memory_order_relaxed);
  if (events[0].revents != 0) take_notice(to_shard_);
}

}  // namespace paralet
