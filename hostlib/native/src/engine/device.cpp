// SPDX-License-Identifier: Apache-2.0
#include "engine/device.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/limits.hpp"
#include "base/random.hpp"
#include "base/signal.hpp"
#include "engine/adaptive_spin.hpp"
#include "engine/backend_factory.hpp"
#include "engine/policy_factory.hpp"

namespace paralet {
namespace {

constexpr std::size_t kReceiveBuffers = 2048;
constexpr Nanos kHousekeeping = 5 * kMillisecond;
constexpr Nanos kReleaseSpare = 1 * kSecond;
constexpr Nanos kQuietShare = 4;                   // a waiting device probes a quiet peer after retry_time / 4
constexpr unsigned kEventsEvery = 64;              // rounds between two calls of look
constexpr Nanos kPollInterval = 2 * kMicrosecond;  // longer than a pass of NCCL's proxy thread over its requests

constexpr const char* kInherited = "the device is the parent process's: a forked child opens its own";

}  // namespace

Signal& completion_signal() {
  // Never destroyed: the progress thread of a device that was not closed may outlive static destructors.
  static auto& signal = *new Signal;  // NOLINT(cppcoreguidelines-owning-memory)
  return signal;
}

Device::Device(const DeviceOptions& options) : Device(options, make_backend(options)) {}

Device::Device(const DeviceOptions& options, std::unique_ptr<Backend> backend)
    : options_(options),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      backend_(std::move(backend)),
      receive_buffers_(kReceiveBuffers * sizeof(AdvertisementBatch::bytes)) {
  if (polling_->wake_fd() < 0 || !epoll_.valid()) throw DeviceError("cannot watch sockets: " + error_text(errno));
  const std::uint32_t largest = backend_->max_path_mtu();
  path_mtu_ = options.path_mtu.value_or(largest);
  if (path_mtu_ > largest) {
    throw DeviceError("path MTU " + std::to_string(path_mtu_) + " does not fit the link of " +
                      format_address(options.address) + ": the largest is " + std::to_string(largest));
  }
  if (backend_->members() > 1 && options.policy.lanes < backend_->members()) {
    throw DeviceError("a fused device needs a lane for every member");
  }
  for (unsigned i = 0; i < backend_->members(); ++i) {
    const IpAddress& address = own_address(i);
    nics_.push_back({.interface = interface_of(address).value_or(Interface{}).name,
                     .address = address,
                     .udp_port = backend_->member(i).udp_port()});
  }
  random_bytes(guid_);
  live_counters_ = LiveCounters({.guid = guid_,
                                 .policy = to_string(options.policy.kind),
                                 .nics = nics_,
                                 .path_mtu = path_mtu_,
                                 .lanes = options.policy.lanes,
                                 .line_rate_bps = options.line_rate_bps});
  if (backend_->registers_concurrently()) registrar_ = backend_.get();
  for (std::size_t i = 0; i < kReceiveBuffers; ++i) post_receive_buffer(i);
  watch(polling_->wake_fd(), false);
  watch(backend_->event_fd(), false);
  policy_ = open_policy(options, PeerName(options.address, udp_port()), [this] { wake(); });
  watches_lanes_ = policy_->watches_lanes();
  follows_traffic_ = policy_->follows_traffic();
  thread_ = start_thread([this] { run(); });
}

Device::~Device() { close(0); }

// -- the progress lock -------------------------------------------------------------------------------------------

Device::ProgressLockGuard::ProgressLockGuard(Device& device) : device_(device) {
  device_.check_owner();
  device_.waiting_.fetch_add(1, std::memory_order_relaxed);
  device_.progress_lock_.lock();
  device_.waiting_.fetch_sub(1, std::memory_order_relaxed);
}

Device::ProgressLockGuard::ProgressLockGuard(Device& device, std::adopt_lock_t /*locked*/) : device_(device) {}

Device::ProgressLockGuard::~ProgressLockGuard() { device_.release_progress_lock(); }

/// Starts the requests that other threads left on the stack meanwhile, and wakes the progress thread if something is
/// due before it would wake by itself.
void Device::release_progress_lock() {
  for (;;) {
    if (backend_ && sleeping_until_ != 0 && next_deadline(now()) < sleeping_until_) {
      sleeping_until_ = 0;
      wake();
    }
    const bool finished = std::exchange(finished_, false);
    progress_lock_.unlock();
    if (finished) completion_signal().notify();  // after unlocking, so that a woken thread can take the lock
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (submitted_.load(std::memory_order_relaxed) == nullptr || !progress_lock_.try_lock()) return;
    start_submitted();
    if (backend_) flush(now());
  }
}

void Device::submit(const std::shared_ptr<Request>& request) {
  request->state.store(Request::State::kPending, std::memory_order_relaxed);
  if (closed()) {
    report_failure(*request, Failure::kDevice, inherited() ? kInherited : "the device is closed");
    return;
  }
  if (!register_ahead(*request)) return;
  if (progress_lock_.try_lock()) {
    const ProgressLockGuard guard(*this, std::adopt_lock);
    start_submitted();  // requests that were submitted earlier come first
    start(request);
    if (backend_) flush(now());
    return;
  }
  request->self = request;
  Request* raw = request.get();
  raw->next = submitted_.load(std::memory_order_relaxed);
  while (!submitted_.compare_exchange_weak(raw->next, raw, std::memory_order_release, std::memory_order_relaxed)) {
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // The holder checks the stack after unlocking. If the lock is free, it may have checked before our push.
  if (progress_lock_.try_lock()) {
    const ProgressLockGuard guard(*this, std::adopt_lock);
    start_submitted();
    if (backend_) flush(now());
  }
}

/// Starts the requests on the stack, oldest first.
void Device::start_submitted() {
  if (submitted_.load(std::memory_order_relaxed) == nullptr) return;
  Request* newest = submitted_.exchange(nullptr, std::memory_order_acquire);
  Request* oldest = nullptr;
  while (newest != nullptr) {
    Request* next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest != nullptr) {
    Request* next = oldest->next;
    start(std::move(oldest->self));
    oldest = next;
  }
}

void Device::close(Nanos timeout) {
  if (closed_.exchange(true)) return;
  if (inherited()) {
    progress_lock_.assume_held();  // the child has no other thread
    // The parent goes on using all of it: the child only closes descriptors.
    new std::thread(std::move(thread_));  // NOLINT(cppcoreguidelines-owning-memory): no thread exists to be joined
    static_cast<void>(backend_.release());
    static_cast<void>(policy_.release());
    static_cast<void>(setup_thread_.release());
    static_cast<void>(memory_thread_.release());
    return;
  }
  PathPolicy* policy = nullptr;
  {
    const ProgressLockGuard guard(*this);
    policy = policy_.get();
  }
  policy->stop();  // without the lock: it may wait for the policy's own thread
  {
    const ProgressLockGuard guard(*this);
    begin_call();
    settle(now());  // acknowledge what has arrived, so that peers need not wait for it
    listeners_.clear();
    doors_.clear();
    for (auto& [id, connection] : std::map(connections_.begin(), connections_.end())) begin_close(connection);
  }
  const auto all_closed = [this] {
    const ProgressLockGuard guard(*this);
    begin_call();
    return connections_.empty();
  };
  const Nanos until = now() + timeout;
  while (!all_closed() && now() < until) std::this_thread::sleep_for(std::chrono::microseconds(200));
  {
    const ProgressLockGuard guard(*this);
    begin_call();
    for (std::size_t i = 0; i < peers_.size(); ++i) fail_peer(*peers_[i], Failure::kClosed, "the device was closed");
  }
  stop_ = true;
  wake();
  thread_.join();
  std::unique_ptr<Worker> setup_thread;
  std::unique_ptr<Worker> memory_thread;
  {
    const ProgressLockGuard guard(*this);
    setup_thread = std::move(setup_thread_);
    memory_thread = std::move(memory_thread_);
  }
  setup_thread.reset();  // without the lock, which the end of a job takes
  memory_thread.reset();
  {
    // The caller may keep this object: release its ports and descriptors now.
    const ProgressLockGuard guard(*this);
    incoming_.clear();
    while (Request* fence = fences_.front()) {
      const auto keep = fences_.remove(*fence);
      fail(*fence, Failure::kClosed, "the device was closed");
    }
    live_counters_ = {};
    while (registering_ != 0) std::this_thread::yield();  // they do not need the lock to end
    backend_.reset();
    epoll_.reset();
    polling_->close();
  }
  completion_signal().notify();
}

void Device::check_owner() const {
  if (inherited()) throw DeviceError(kInherited);
}

/// Begins every public call that has waited for the lock. Throws DeviceError when the device is closed.
void Device::begin_call() {
  if (!backend_) throw DeviceError("the device is closed");
  start_submitted();  // requests that the caller submitted before this call come first
}

/// True unless it found nothing to do.
bool Device::poll(Nanos t) {
  if (inherited()) return true;
  polling_->polled(t);
  if (waiting_.load(std::memory_order_relaxed) > 0) {
    std::this_thread::yield();
    return true;
  }
  if (!progress_lock_.try_lock()) return true;
  const ProgressLockGuard guard(*this, std::adopt_lock);
  return backend_ ? step(t) : true;
}

void Device::poll_for(const void* request) {
  const Nanos t = now();
  const void* idle_for = idle_for_.load(std::memory_order_relaxed);
  if (idle_for != nullptr && idle_for != request && t - polling_->polled_at() < kPollInterval) return;
  idle_for_.store(poll(t) ? nullptr : request, std::memory_order_relaxed);
}

/// One round: channels, submitted requests, packets, timers. True when anything was done.
bool Device::step(Nanos t) {
  if (rounds_++ % kEventsEvery == 0) look();
  start_submitted();
  if (policy_->news()) take_news();
  bool any = backend_->progress(t, completions_);
  for (std::size_t i = 0; i < completions_.size(); ++i) on_completion(completions_[i]);
  completions_.clear();
  any = flush(t) || any;
  if (t >= next_housekeeping_) housekeeping(t);
  return any;
}

/// Sends the advertisements and acknowledgements that were kept back to be sent together with more.
void Device::settle(Nanos t) {
  while (!advertising_.empty()) send_advertisements(*advertising_.back());
  backend_->flush(t);
  backend_->settle(t);
}

/// Serves the sockets that are readable or writable, except those of the backend.
void Device::look() {
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == polling_->wake_fd()) {
      polling_->woken();
    } else if (const auto door = std::ranges::find(doors_, fd, [](const Door& d) { return d.socket.get(); });
               door != doors_.end()) {
      on_listen_readable(*door);
    } else if (fd != backend_->event_fd()) {
      on_channel_event(fd, events[static_cast<std::size_t>(i)].events);
    }
  }
}

Nanos Device::next_deadline(Nanos t) const {
  if (!advertising_.empty()) return t;
  return std::min({backend_->deadline(t), next_housekeeping_, policy_->deadline()});
}

// -- the progress thread -----------------------------------------------------------------------------------------

namespace {

/// Sleeps until `fd` is readable, at most until `until` and at most a second.
void sleep_on(int fd, Nanos until) {
  const Nanos rest = std::clamp<Nanos>(until - now(), 0, kSecond);
  const timespec timeout{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
  pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
  ::ppoll(&waited, 1, &timeout, nullptr);
}

}  // namespace

void Device::run() {
  Nanos last_work = now();
  bool slept = true;
  AdaptiveSpin spin;
  while (!stop_) {
    if (polling_->stands_back()) continue;  // it would only contend for the lock and caches
    Nanos until = 0;
    bool spins = false;
    {
      const ProgressLockGuard guard(*this);
      const Nanos t = now();
      if (slept) rounds_ = 0;  // a channel may have woken the thread: look at once
      if (step(t)) {
        spin.worked();
        last_work = now();
      } else if (t - last_work >= options_.busy_poll) {
        spins = spin.keeps_spinning(t - last_work - options_.busy_poll);
        if (!spins) {
          settle(t);
          until = next_deadline(t);
        }
      }
      sleeping_until_ = until;
    }
    slept = until > 0;
    if (slept) {
      sleep_on(epoll_.get(), until);
    } else if (spins || waiting_.load(std::memory_order_relaxed) > 0) {
      std::this_thread::yield();
    }
  }
}

void Device::housekeeping(Nanos t) {
  bool busy = false;
  for (std::size_t p = 0; p < peers_.size(); ++p) {  // by index: a peer that fails may add another (start_connect)
    Peer* const peer = peers_[p].get();
    if (peer->dead()) continue;
    bool any_silent = false;
    bool working = false;
    for (unsigned i = 0; i < peer->lanes.size(); ++i) {
      Lane& lane = peer->lanes[i];
      if (lane.renewal) advance_renewal(*peer, i);
      if (peer->dead()) break;
      if (lane.renewal) busy = true;
      if (lane.unfinished == 0) continue;
      busy = working = true;
      any_silent = any_silent || silent(lane);
      // The policy is asked when a flowlet finishes. On a dead path none does, so timeouts ask it here. A lane of a
      // fused device goes to another member then (leave_silent_members).
      const unsigned member = member_of(lane.qp.qpn);
      const bool goes =
          has_other_path(*peer, member) && !peer->fusion->members[member].delivers() && past_timeout(lane.qp.qpn);
      if (!goes && backend_->statistics(lane.qp.qpn).counters.timeouts > lane.timeouts_seen) consult_policy(*peer, i);
      if (lane.moving_to && policy_->resends_at_once() && silent(lane)) leave_dead_path(*peer, i);
    }
    if (peer->fusion && peer->ready()) watch_members(*peer, t);
    if (peer->dead()) continue;
    if (any_silent) repeat_advertisements(*peer);
    // Work in progress detects a dead peer by its own retransmissions. Otherwise ping.
    const bool heard = std::exchange(peer->heard, false);
    if (heard) peer->heard_at = t;
    if (heard || working) {
      peer->quiet_since = t;
    } else if (t - peer->quiet_since >= options_.retry_time / kQuietShare) {
      peer->quiet_since = t;
      if (peer->ready() && awaits(*peer)) ping(*peer);
    }
  }
  if (std::exchange(listening_paused_, false)) {
    for (const Door& door : doors_) watch(door.socket.get(), false);
  }
  std::erase_if(incoming_, [t](const Incoming& incoming) { return t >= incoming.until; });
  if (follows_traffic_) report_traffic(t);
  reap_peers(t);
  if (live_counters_.due(t)) publish_counters(t);
  if (!busy && t >= next_release_) {
    release_spare();
    next_release_ = t + kReleaseSpare;
  }
  busy = busy || policy_->busy();
  next_housekeeping_ = t + (busy ? kHousekeeping : 20 * kHousekeeping);
}

/// Whether a connection or a request waits for the peer.
bool Device::awaits(const Peer& peer) const {
  return std::ranges::any_of(connections_, [&peer](const auto& entry) {
    const Connection& connection = *entry.second;
    return connection.peer == &peer && under_way(connection);
  });
}

/// Frees the memory of empty queues: of many peers few are busy at a time.
void Device::release_spare() {
  for (const auto& peer : peers_) peer->sending.release();
  for (const auto& [id, connection] : connections_) connection->advertised.release();
}

// -- calls from any thread ---------------------------------------------------------------------------------------

bool Device::set_port(const IpAddress& peer_address, unsigned lane, std::uint16_t port) {
  const ProgressLockGuard guard(*this);
  begin_call();
  bool found = false;
  for (const auto& peer : peers_) {
    if (!peer->ready() || peer->address != peer_address || lane >= peer->lanes.size()) continue;
    found = true;
    peer->lanes[lane].moving_to = port;
    if (may_move(peer->lanes[lane])) move_lane(*peer, lane);
  }
  return found;
}

DeviceCounters Device::counters() {
  if (closed_) return {};
  const ProgressLockGuard guard(*this);
  begin_call();
  return collect();
}

DeviceCounters Device::collect() const {
  DeviceCounters out;
  for (const auto& peer : peers_) {
    if (!peer->ready()) continue;
    for (unsigned i = 0; i < peer->lanes.size(); ++i) {
      const Lane& lane = peer->lanes[i];
      QpStatistics qp = backend_->statistics(lane.qp.qpn);
      if (lane.former) qp.counters += *lane.former;
      if (lane.renewal && lane.renewal->switched()) qp.counters += backend_->statistics(lane.renewal->qp.qpn).counters;
      out.lanes.push_back({.peer = peer->address,
                           .lane = i,
                           .member = member_of(lane.qp.qpn),
                           .qpn = lane.qp.qpn & 0xFFFFFF,
                           .method = backend_->port_method(),
                           .flowlets = lane.flowlets,
                           .moves = lane.moves,
                           .qp = qp,
                           .unfinished = lane.unfinished,
                           .outstanding_bytes = lane.outstanding_bytes,
                           .waiting_since = lane.waiting_since});
    }
  }
  out.messages = messages_;
  out.messages.failed = failed_.load(std::memory_order_relaxed);
  out.discards = backend_->discards();
  out.connections = connections_.size();
  out.peers = peers_.size();
  out.path_client = policy_->counters();
  return out;
}

}  // namespace paralet
