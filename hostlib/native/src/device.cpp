// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "errors.hpp"
#include "interfaces.hpp"
#include "random.hpp"
#include "signal.hpp"
#include "soft_backend.hpp"

namespace paralet {
namespace {

constexpr std::size_t kReceiveBuffers = 4096;
constexpr std::size_t kReceiveBufferBytes = 64;
constexpr Nanos kHousekeeping = 5 * kMillisecond;
constexpr Nanos kMinTimeout = 67 * kMillisecond;  // what RNICs are usually set to (local ACK timeout 14)
constexpr double kInitialPackets = 4;             // in flight before anything is known of a path, all lanes together
constexpr unsigned kEventsEvery = 64;             // busy rounds between looks at channels

/// Queueing delay to aim at: a dozen packets at line rate, so that slow links keep enough in flight to stay busy, and
/// more than a scheduler takes to run the peer's process.
Nanos default_target_queue(double line_rate_bps) {
  constexpr double kPacketBits = 8 * 4200;
  const Nanos packets = line_rate_bps > 0 ? from_seconds(12 * kPacketBits / line_rate_bps) : 0;
  return std::max(2 * kMillisecond, packets);
}

SoftOptions soft_options(const DeviceOptions& options) {
  const Nanos target = options.target_queue.value_or(default_target_queue(options.line_rate_bps));
  SoftOptions out;
  out.address = options.address;
  out.line_rate_bps = options.line_rate_bps;
  out.min_timeout = options.min_timeout.value_or(std::max(kMinTimeout, 4 * target));
  out.retry_time = options.retry_time;
  out.control.target_queue = target;
  // The lanes of a device start together: what they put on the wire at once should not grow with their number.
  out.control.initial_window = std::max(1.0, kInitialPackets / options.policy.lanes);
  out.faults = options.faults;
  return out;
}

}  // namespace

Signal& completion_signal() {
  static Signal signal;
  return signal;
}

Device::Device(const DeviceOptions& options)
    : options_(options),
      backend_(std::make_unique<SoftBackend>(soft_options(options))),
      policy_(make_policy(options.policy)),
      udp_port_(backend_->udp_port()),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      receive_buffers_(kReceiveBuffers * kReceiveBufferBytes) {
  if (!wake_.valid() || !epoll_.valid())
    throw DeviceError(std::string("cannot watch sockets: ") + std::strerror(errno));
  const std::uint32_t largest = backend_->max_path_mtu();
  path_mtu_ = options.path_mtu.value_or(largest);
  if (path_mtu_ > largest) {
    throw DeviceError("path MTU " + std::to_string(path_mtu_) + " does not fit the link of " +
                      format_ipv4(options.address) + ": the largest is " + std::to_string(largest));
  }
  random_bytes(guid_);
  for (std::size_t i = 0; i < kReceiveBuffers; ++i) post_receive_buffer(i);
  watch(wake_.get(), false);
  watch(backend_->event_fd(), false);
  thread_ = std::thread([this] { run(); });
}

Device::~Device() { close(0); }

void Device::close(Nanos linger) {
  if (closed_.exchange(true)) return;
  execute([this] {
    listeners_.clear();
    listen_socket_.reset();
    for (auto& [id, connection] : std::map(connections_.begin(), connections_.end())) begin_close(connection);
  });
  std::atomic<bool> quiet{false};
  const Nanos until = now() + linger;
  do {
    execute([this, &quiet] { quiet = connections_.empty(); });
    if (!quiet) std::this_thread::sleep_for(std::chrono::microseconds(200));
  } while (!quiet && now() < until);
  execute([this] {
    for (std::size_t i = 0; i < peers_.size(); ++i) fail_peer(*peers_[i], Failure::kClosed, "the device was closed");
  });
  {
    const std::lock_guard lock(tasks_mutex_);  // no task comes after this, so none waits in vain
    stop_ = true;
  }
  wake();
  thread_.join();
  incoming_.clear();
  backend_.reset();  // its ports are free again, though the caller may keep this object
  completion_signal().notify();
}

// -- hand-over ---------------------------------------------------------------------------------------------------

void Device::wake() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!sleeping_.load(std::memory_order_relaxed)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Device::submit(const std::shared_ptr<Request>& request) {
  if (closed()) {
    fail(*request, Failure::kDevice, "the device is closed");
    return;
  }
  request->self = request;
  Request* raw = request.get();
  raw->next_submitted = submitted_.load(std::memory_order_relaxed);
  while (!submitted_.compare_exchange_weak(raw->next_submitted, raw, std::memory_order_release,
                                           std::memory_order_relaxed)) {
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (ended_.load(std::memory_order_relaxed)) drain_submissions();  // too late for the thread: fails here
  wake();
}

void Device::drain_submissions() {
  if (submitted_.load(std::memory_order_relaxed) == nullptr) return;
  Request* newest = submitted_.exchange(nullptr, std::memory_order_acquire);
  Request* oldest = nullptr;
  while (newest != nullptr) {
    Request* next = newest->next_submitted;
    newest->next_submitted = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest != nullptr) {
    Request* next = oldest->next_submitted;
    start(std::move(oldest->self));
    oldest = next;
  }
}

/// Runs `task` on the progress thread and waits for it.
void Device::execute(std::function<void()> task) {
  std::promise<void> done;
  {
    const std::lock_guard lock(tasks_mutex_);
    if (stop_) throw DeviceError("the device is closed");
    tasks_.emplace_back([&done, &task] {
      try {
        task();
        done.set_value();
      } catch (...) {
        done.set_exception(std::current_exception());
      }
    });
    has_tasks_ = true;
  }
  wake();
  done.get_future().get();
}

void Device::drain_tasks() {
  if (!has_tasks_.load(std::memory_order_acquire)) return;
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(tasks_mutex_);
    tasks.swap(tasks_);
    has_tasks_ = false;
  }
  drain_submissions();  // what a caller submitted before its task comes before it
  for (const auto& task : tasks) task();
}

// -- the thread --------------------------------------------------------------------------------------------------

void Device::run() {
  Nanos last_work = now();
  unsigned rounds = 0;
  while (!stop_) {
    drain_tasks();
    drain_submissions();
    const Nanos t = now();
    bool any = backend_->progress(t, completions_);
    for (std::size_t i = 0; i < completions_.size(); ++i) on_completion(completions_[i]);
    completions_.clear();
    any = pump(t) || any;
    if (t >= next_housekeeping_) housekeeping(t);
    if (any) last_work = t;
    if (any || t - last_work < options_.busy_poll) {
      if (++rounds % kEventsEvery == 0) wait(0);
      continue;
    }
    sleeping_.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool pending = submitted_.load(std::memory_order_relaxed) != nullptr || has_tasks_.load() || stop_;
    wait(pending ? 0 : next_deadline(t));
    sleeping_.store(false, std::memory_order_relaxed);
  }
  drain_tasks();
  ended_.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  drain_submissions();  // whatever came too late fails: its connection is gone
}

Nanos Device::next_deadline(Nanos t) const { return std::min(backend_->deadline(t), next_housekeeping_); }

/// Sleeps until something arrives or `until` (0: only looks), then serves the channels.
void Device::wait(Nanos until) {
  std::array<epoll_event, 32> events;
  timespec timeout{};
  if (until > 0) {
    const Nanos rest = std::clamp<Nanos>(until - now(), 0, kSecond);
    timeout = {.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
  }
  const int count = epoll_pwait2(epoll_.get(), events.data(), events.size(), &timeout, nullptr);
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == wake_.get()) {
      std::uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t got = ::read(fd, &ignored, sizeof ignored);
    } else if (fd == listen_socket_.get()) {
      on_listen_readable();
    } else if (fd != backend_->event_fd()) {
      on_channel_event(fd, events[static_cast<std::size_t>(i)].events);
    }
  }
}

void Device::housekeeping(Nanos t) {
  bool busy = false;
  for (const auto& peer : peers_) {
    if (peer->dead) continue;
    for (unsigned lane = 0; lane < peer->lanes.size(); ++lane) {
      const QpStatistics statistics = backend_->statistics(peer->lanes[lane].qp.qpn);
      if (statistics.all_acknowledged) continue;
      busy = true;
      // A lane that hears nothing finishes nothing, neither flowlets nor offers, so the policy would never be asked.
      if (statistics.counters.timeouts > peer->lanes[lane].timeouts_seen) consult_policy(*peer, lane);
    }
  }
  std::erase_if(incoming_, [t](const Incoming& incoming) { return t >= incoming.until; });
  reap_peers(t);
  next_housekeeping_ = t + (busy ? kHousekeeping : 20 * kHousekeeping);
}

// -- calls from any thread ---------------------------------------------------------------------------------------

std::uint32_t Device::register_memory(std::byte* base, std::uint64_t length) {
  std::uint32_t rkey = 0;
  execute([&] { rkey = backend_->register_memory(base, length); });
  return rkey;
}

void Device::deregister_memory(std::uint32_t rkey) {
  if (!closed()) execute([&] { backend_->deregister_memory(rkey); });
}

bool Device::set_port(std::uint32_t peer_address, unsigned lane, std::uint16_t port) {
  bool found = false;
  execute([&] {
    for (const auto& peer : peers_) {
      if (peer->dead || peer->address != peer_address || lane >= peer->lanes.size()) continue;
      found = true;
      peer->lanes[lane].moving_to = port;
      if (peer->lanes[lane].outstanding == 0) move_lane(peer->lanes[lane]);
    }
  });
  return found;
}

DeviceCounters Device::counters() {
  DeviceCounters out;
  if (closed()) return out;
  execute([&] {
    for (const auto& peer : peers_) {
      if (peer->dead) continue;
      for (unsigned i = 0; i < peer->lanes.size(); ++i) {
        const Lane& lane = peer->lanes[i];
        out.lanes.push_back({.peer = peer->address,
                             .lane = i,
                             .qpn = lane.qp.qpn,
                             .method = backend_->port_method(),
                             .flowlets = lane.flowlets,
                             .moves = lane.moves,
                             .qp = backend_->statistics(lane.qp.qpn)});
      }
    }
    out.discards = backend_->discards();
    out.connections = connections_.size();
    out.peers = peers_.size();
  });
  return out;
}

}  // namespace paralet
