// SPDX-License-Identifier: Apache-2.0
#include "verbs/verbs_backend.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "backend/rc_timing.hpp"
#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "base/interfaces.hpp"
#include "base/mutex.hpp"
#include "base/worker.hpp"
#include "verbs/completion_queue.hpp"
#include "verbs/connector.hpp"
#include "verbs/memory.hpp"
#include "verbs/port.hpp"
#include "verbs/receive_queue.hpp"
#include "verbs/send_queue.hpp"
#include "verbs/verbs_library.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace verbs {
namespace {

constexpr std::uint32_t kReceiveDepth = 8192;        // of the shared receive queue
constexpr int kCompletions = 65536;                  // of the completion queue, where the NIC can
constexpr Nanos kDrainTime = 100 * kMillisecond;     // for a queue pair in the error state to return what it holds
constexpr Nanos kLookForEvents = 10 * kMillisecond;  // interval of looks at the device's events while no thread sleeps

class VerbsBackend final : public Backend {
 public:
  explicit VerbsBackend(const VerbsOptions& options);

  [[nodiscard]] std::uint16_t udp_port() const override { return wire::kRocePort; }
  [[nodiscard]] std::uint32_t max_path_mtu() const override { return path_mtu_; }
  [[nodiscard]] double port_rate_bps() const override {
    return link_rate_bps(attributes_.active_width, attributes_.active_speed);
  }

  std::uint32_t register_memory(std::byte* base, std::uint64_t length) override {
    return memory_.register_target(base, length);
  }
  std::uint32_t register_source(const std::byte* base, std::uint64_t length) override {
    return memory_.register_source(base, length);
  }
  std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) override {
    return memory_.register_device_memory(base, length, dmabuf);
  }
  void deregister_memory(std::uint32_t rkey) override { memory_.deregister(rkey); }
  [[nodiscard]] bool registers_concurrently() const override { return true; }
  [[nodiscard]] std::uint32_t remote_key(std::uint32_t rkey) const override { return memory_.remote_key(rkey); }
  [[nodiscard]] std::uint64_t remote_address(std::uint32_t rkey) const override { return memory_.remote_address(rkey); }
  void post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) override;

  [[nodiscard]] bool sets_up_concurrently() const override { return true; }
  QpIdentity create_qp() override { return create_qp(IBV_ACCESS_REMOTE_WRITE).identity; }
  [[nodiscard]] Ece ece(std::uint32_t qpn) const override;
  [[nodiscard]] std::uint16_t max_ip_id() const override { return UINT16_MAX; }
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) override;
  void adopt_qp(std::uint32_t qpn) override;
  PortChange set_port(std::uint32_t qpn, std::uint16_t source_port) override;
  [[nodiscard]] PortMethod port_method() const override { return connector_.method(); }
  void fail_qp(std::uint32_t qpn) override { qps_.at(qpn)->sends.fail(); }
  void stop_qp(std::uint32_t qpn) override;
  std::vector<WorkRequest> take_back(std::uint32_t qpn, std::uint32_t arrived) override {
    return qps_.at(qpn)->sends.take_back(arrived);
  }
  void destroy_qp(std::uint32_t qpn) override;
  void post(std::uint32_t qpn, const WorkRequest& request) override;
  void post_receive(const ReceiveBuffer& buffer) override { receives_.post(buffer); }
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override { return qps_.at(qpn)->sends.estimate(); }
  [[nodiscard]] QpStatistics statistics(std::uint32_t qpn) const override;
  [[nodiscard]] Discards discards() const override { return {}; }  // the NIC does not report them
  [[nodiscard]] bool port_down() const override { return sends_.port_down; }
  [[nodiscard]] bool lost() const override { return lost_; }
  [[nodiscard]] std::string port_trouble(Nanos now) const override;

  [[nodiscard]] bool wants_work(Nanos) const override { return true; }
  bool progress(Nanos now, std::vector<Completion>& completions) override;
  bool flush(Nanos now) override;
  void settle(Nanos now) override;
  [[nodiscard]] Nanos deadline(Nanos now) const override;
  [[nodiscard]] int event_fd() const override { return epoll_.get(); }

 private:
  struct Qp {
    Qp(Connector::Created created, SendContext& context)
        : identity(created.identity),
          sends(context, created.handle.get(), created.inline_bytes),
          handle(std::move(created.handle)) {}
    QpIdentity identity;
    std::uint16_t port = 0;
    bool active = false;     ///< listed in active_
    bool connected = false;  ///< may take receives
    bool last_wqe = false;   ///< in the error state: takes no more receives
    Nanos stop_by = 0;       ///< deadline of stop_qp, or of the end after destroy_qp
    std::uint64_t received_packets = 0;
    std::uint64_t received_bytes = 0;
    SendQueue sends;
    QpHandle handle;  ///< last, so that it is destroyed first: the NIC releases memory before its registrations end
  };

  /// The queue pair of fences, or why there is none.
  struct FenceQp {
    std::uint32_t qpn = 0;
    std::string error;  ///< empty: it is connected
  };
  /// Results of slow calls.
  struct Results {
    bool destroyed = false;
    std::size_t held = 0;  ///< requests of destroyed queue pairs, SendContext::held
    std::vector<Completion> port_changes;
    std::optional<FenceQp> fence_qp;
  };

  Qp& create_qp(int access);
  [[nodiscard]] Qp* fresh(std::uint32_t qpn) const;
  void call_slowly(std::function<void(Results&)> call);
  void take_results(Nanos now);
  [[nodiscard]] FenceQp create_fence_qp();
  void start_fences(const FenceQp& qp);
  bool poll(Nanos now);
  void take_events(Nanos now);
  void on_port(bool up, Nanos now);
  void lose_paths(Status why);
  [[nodiscard]] bool ends_now(Qp& qp);
  void end(Qp& qp);
  void finish_ending(Nanos now);
  void finish_stopping(Nanos now);
  [[nodiscard]] bool drained(const Qp& qp) const { return qp.last_wqe || !tells_last_wqe_; }

  const VerbsLibrary& library_;
  const VerbsOptions options_;
  OpenPort port_;
  ibv_port_attr attributes_{};
  std::uint32_t path_mtu_ = 0;  ///< payload bytes of the largest packet
  ibv_device_attr limits_{};
  Connector connector_;
  PdHandle pd_;
  CompletionQueue completion_queue_;
  Memory memory_;
  SharedReceiveQueue receives_;
  FileDescriptor epoll_;
  std::byte fenced_{};  ///< where the READs of fences go
  std::uint32_t fence_memory_ = 0;
  std::uint32_t fence_qpn_ = 0;  ///< of the QP that reads this device's own memory, 0: none
  bool creating_fence_qp_ = false;
  std::vector<WorkRequest> fences_;  ///< wait for that QP
  std::vector<Completion> completions_;
  SendContext sends_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Qp>> qps_;
  mutable Mutex fresh_mutex_;
  /// Created and not adopted. Only the thread that sets it up uses such a queue pair.
  std::unordered_map<std::uint32_t, std::unique_ptr<Qp>> fresh_ PARALET_GUARDED_BY(fresh_mutex_);
  std::vector<Qp*> active_;        ///< with requests that the NIC does not have yet
  std::vector<Qp*> stopping_;      ///< stop_qp
  std::vector<Qp*> ending_;        ///< destroy_qp: in the error state, until the NIC has returned what it holds
  bool tells_last_wqe_ = true;     ///< the driver raises IBV_EVENT_QP_LAST_WQE_REACHED
  std::atomic<bool> lost_{false};  ///< the device has failed
  Nanos port_down_at_ = 0;
  std::optional<Nanos> port_up_at_;  ///< when it came back last
  Nanos port_deadline_ = kNever;     ///< when the queue pairs of a port that is down fail
  Nanos next_look_ = 0;              ///< for events of the device
  FileDescriptor results_event_;     ///< readable while there are results
  std::atomic<bool> has_results_{false};
  Mutex results_mutex_;
  Results results_ PARALET_GUARDED_BY(results_mutex_);
  /// Makes slow calls one after another; nullptr until the first. Last, so that it ends before what it uses.
  std::unique_ptr<Worker> slow_thread_;
};

// -- opening -----------------------------------------------------------------------------------------------------

/// Throws DeviceError when the port is down.
ibv_port_attr query_active_port(const OpenPort& port, const VerbsOptions& options) {
  ibv_port_attr attributes{};
  const int error = VerbsLibrary::load().query_port(port.context.get(), port.number, &attributes);
  if (error != 0) fail("cannot query the port", error);
  if (attributes.state != IBV_PORT_ACTIVE) {
    throw DeviceError("the RDMA port of " + format_address(options.address) + " is down");
  }
  return attributes;
}

ibv_device_attr query_limits(ibv_context* context) {
  ibv_device_attr out{};
  if (const int error = VerbsLibrary::load().query_device(context, &out); error != 0) {
    fail("cannot query the device", error);
  }
  return out;
}

PdHandle allocate_pd(ibv_context* context) {
  PdHandle out(VerbsLibrary::load().alloc_pd(context));
  if (!out) fail("cannot allocate a protection domain", errno);
  return out;
}

/// Receives that are posted at a time: at most half of the completion queue's entries.
std::uint32_t receive_depth(const ibv_device_attr& limits, const CompletionQueue& queue) {
  return std::min({kReceiveDepth, static_cast<std::uint32_t>(limits.max_srq_wr), queue.capacity() / 2});
}

VerbsBackend::VerbsBackend(const VerbsOptions& options)
    : library_(VerbsLibrary::load()),
      options_(options),
      port_(open_port(options)),
      attributes_(query_active_port(port_, options)),
      path_mtu_(bytes_of(attributes_.active_mtu)),
      limits_(query_limits(port_.context.get())),
      connector_(options, port_, path_mtu_),
      pd_(allocate_pd(port_.context.get())),
      completion_queue_(port_.context.get(), std::min(limits_.max_cqe, kCompletions)),
      memory_(pd_.get(), port_.device, options.page_bytes),
      receives_(pd_.get(), memory_, receive_depth(limits_, completion_queue_)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      // The completion queue needs room for everything that the NIC holds: an overflow breaks it and all QPs.
      sends_{.memory = memory_,
             .completions = completions_,
             .limit = completion_queue_.capacity() - receives_.depth(),
             .min_timeout = options.min_timeout.value_or(kMinAckTimeout),
             .retry_time = options.retry_time},
      results_event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  const int events = port_.context->async_fd;
  ::fcntl(events, F_SETFL, ::fcntl(events, F_GETFL) | O_NONBLOCK);
  if (!epoll_.valid() || !results_event_.valid()) fail("cannot watch the device", errno);
  for (const int fd : {events, completion_queue_.fd(), results_event_.get()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail("cannot watch the device", errno);
  }
}

// -- slow calls --------------------------------------------------------------------------------------------------
//
// Calls that wait for the NIC's firmware or the kernel's memory management run without the progress lock, in the order
// in which they were asked for: a queue pair's port changes before the queue pair is destroyed.

void VerbsBackend::call_slowly(std::function<void(Results&)> call) {
  if (!slow_thread_) slow_thread_ = std::make_unique<Worker>();
  slow_thread_->add([this, call = std::move(call)] {
    Results own;
    call(own);
    {
      const MutexLock lock(results_mutex_);
      results_.destroyed = results_.destroyed || own.destroyed;
      results_.held += own.held;
      results_.port_changes.insert(results_.port_changes.end(), own.port_changes.begin(), own.port_changes.end());
      if (own.fence_qp) results_.fence_qp = std::move(own.fence_qp);
      has_results_ = true;
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(results_event_.get(), &one, sizeof one);
  });
}

void VerbsBackend::take_results(Nanos now) {
  if (!has_results_) return;
  std::uint64_t ignored = 0;
  [[maybe_unused]] const ssize_t got = ::read(results_event_.get(), &ignored, sizeof ignored);
  Results results;
  {
    const MutexLock lock(results_mutex_);
    std::swap(results, results_);
    has_results_ = false;
  }
  // Some drivers leave the completions of a destroyed QP in the queue. They occupy entries, and the QP number may be
  // used again.
  if (results.destroyed) poll(now);
  sends_.held -= results.held;
  for (const Completion& change : results.port_changes) {
    const auto found = qps_.find(change.qpn);
    if (found == qps_.end()) continue;
    if (change.status == Status::kSuccess) found->second->port = static_cast<std::uint16_t>(change.imm);
    completions_.push_back(change);
  }
  if (results.fence_qp) start_fences(*results.fence_qp);
}

// -- fences ------------------------------------------------------------------------------------------------------

/// The fence is a READ of the region through the NIC. On its way to memory it does not overtake the writes that the NIC
/// made before it (PCI Express base specification, 2.4.1).
void VerbsBackend::post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) {
  const WorkRequest fence{.kind = WorkKind::kRead,
                          .cookie = cookie,
                          .data = &fenced_,
                          .length = sizeof fenced_,
                          .remote_address = memory_.remote_address(rkey) + offset,
                          .rkey = memory_.remote_key(rkey)};
  fences_.push_back(fence);
  if (creating_fence_qp_) return;
  if (fence_qpn_ != 0 && qps_.at(fence_qpn_)->sends.failed()) destroy_qp(std::exchange(fence_qpn_, 0));
  if (fence_qpn_ != 0) {
    start_fences({.qpn = fence_qpn_, .error = {}});
    return;
  }
  creating_fence_qp_ = true;
  call_slowly([this](Results& results) { results.fence_qp = create_fence_qp(); });
}

VerbsBackend::FenceQp VerbsBackend::create_fence_qp() {
  FenceQp out;
  try {
    if (fence_memory_ == 0) fence_memory_ = memory_.register_sink(&fenced_, sizeof fenced_);
    Qp& qp = create_qp(IBV_ACCESS_REMOTE_READ);
    out.qpn = qp.identity.qpn;
    connector_.connect_to_itself(qp.handle.get(), qp.identity);
    qp.connected = true;
    qp.sends.set_path_mtu(path_mtu_);
  } catch (const DeviceError& error) {
    out.error = error.what();
  }
  return out;
}

/// Posts the fences that wait for the queue pair. Without it they fail.
void VerbsBackend::start_fences(const FenceQp& qp) {
  if (std::exchange(creating_fence_qp_, false) && qp.qpn != 0) adopt_qp(qp.qpn);
  if (!qp.error.empty()) {
    options_.log("received data cannot be flushed to device memory: " + qp.error);
    if (qp.qpn != 0) destroy_qp(qp.qpn);
  }
  fence_qpn_ = qp.error.empty() ? qp.qpn : 0;
  for (WorkRequest& fence : std::exchange(fences_, {})) {
    fence.memory = fence_memory_;
    if (fence_qpn_ != 0) {
      post(fence_qpn_, fence);
    } else {
      completions_.push_back({.kind = Completion::Kind::kFenced, .status = Status::kLocal, .cookie = fence.cookie});
    }
  }
}

// -- queue pairs -------------------------------------------------------------------------------------------------

VerbsBackend::Qp& VerbsBackend::create_qp(int access) {
  auto qp =
      std::make_unique<Qp>(connector_.create(pd_.get(), completion_queue_.get(), receives_.get(), access), sends_);
  const std::uint32_t qpn = qp->identity.qpn;
  const MutexLock lock(fresh_mutex_);
  return *fresh_.emplace(qpn, std::move(qp)).first->second;
}

VerbsBackend::Qp* VerbsBackend::fresh(std::uint32_t qpn) const {
  const MutexLock lock(fresh_mutex_);
  const auto found = fresh_.find(qpn);
  return found != fresh_.end() ? found->second.get() : nullptr;
}

Ece VerbsBackend::ece(std::uint32_t qpn) const {
  const Qp* qp = fresh(qpn);
  return connector_.ece((qp != nullptr ? qp : qps_.at(qpn).get())->handle.get());
}

void VerbsBackend::adopt_qp(std::uint32_t qpn) {
  take_results(now());  // of an earlier queue pair with this number
  const MutexLock lock(fresh_mutex_);
  const auto found = fresh_.find(qpn);
  if (found == fresh_.end()) return;
  if (lost_) found->second->sends.lose_path(Status::kDeviceLost);
  qps_.insert(fresh_.extract(found));
}

bool VerbsBackend::connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) {
  Qp& qp = *fresh(qpn);
  const auto port = connector_.connect(qp.handle.get(), qp.identity, remote, source_port);
  if (!port) return false;
  qp.port = *port;
  qp.connected = true;
  qp.sends.set_path_mtu(remote.path_mtu);
  return true;
}

PortChange VerbsBackend::set_port(std::uint32_t qpn, std::uint16_t source_port) {
  Qp& qp = *qps_.at(qpn);
  if (qp.port == source_port) return PortChange::kDone;
  if (qp.sends.failed() || !connector_.moves(source_port)) return PortChange::kRefused;
  call_slowly([this, handle = qp.handle.get(), qpn, source_port](Results& results) {
    results.port_changes.push_back({.kind = Completion::Kind::kPortChanged,
                                    .status = connector_.move(handle, source_port) ? Status::kSuccess : Status::kLocal,
                                    .qpn = qpn,
                                    .imm = source_port});
  });
  return PortChange::kStarted;
}

/// Moves the queue pair to the error state, waits for its last receive, polls, and then destroys it. Some drivers
/// (mlx5) discard the completions of a destroyed queue pair, and their receives would be lost. In the error state the
/// NIC accepts nothing from the peer, and the engine ignores completions of a queue pair that it has dropped. So other
/// peers do not wait for the NIC: progress destroys the queue pair when it has returned everything.
void VerbsBackend::destroy_qp(std::uint32_t qpn) {
  adopt_qp(qpn);
  const auto found = qps_.find(qpn);
  if (found == qps_.end()) return;
  Qp& qp = *found->second;
  std::erase(active_, &qp);
  std::erase(stopping_, &qp);
  if (ends_now(qp)) {
    end(qp);
  } else if (std::ranges::find(ending_, &qp) == ending_.end()) {
    qp.stop_by = now() + kDrainTime;
    ending_.push_back(&qp);
  }
}

bool VerbsBackend::ends_now(Qp& qp) {
  if (!qp.connected || lost_) return true;
  qp.sends.fail();
  const Nanos t = now();
  take_events(t);
  poll(t);
  return drained(qp) && qp.sends.idle();
}

void VerbsBackend::end(Qp& qp) {
  poll(now());  // receives that ended before the event
  std::shared_ptr<Qp> ended = std::move(qps_.extract(qp.identity.qpn).mapped());
  call_slowly([ended = std::move(ended)](Results& results) mutable {
    results.held = ended->sends.held();
    results.destroyed = true;
    ended.reset();
  });
}

/// Destroys the queue pairs that have returned everything after destroy_qp.
void VerbsBackend::finish_ending(Nanos now) {
  for (std::size_t i = 0; i < ending_.size();) {
    Qp& qp = *ending_[i];
    const bool over = drained(qp) && qp.sends.idle();
    if (!over && !lost_ && now < qp.stop_by) {
      ++i;
      continue;
    }
    if (!over) tells_last_wqe_ = tells_last_wqe_ && qp.last_wqe;  // do not wait for it again
    ending_.erase(ending_.begin() + static_cast<std::ptrdiff_t>(i));
    end(qp);
  }
}

void VerbsBackend::stop_qp(std::uint32_t qpn) {
  Qp& qp = *qps_.at(qpn);
  std::erase(active_, &qp);
  qp.active = false;
  qp.sends.stop();
  qp.stop_by = now() + kDrainTime;
  stopping_.push_back(&qp);
}

/// Reports the queue pairs that have returned everything after stop_qp.
void VerbsBackend::finish_stopping(Nanos now) {
  std::erase_if(stopping_, [&](Qp* qp) {
    if (!(drained(*qp) && qp->sends.stopped()) && !lost_ && now < qp->stop_by) return false;
    if (!qp->sends.stopped()) qp->sends.abandon();
    poll(now);  // receives that ended before the event
    completions_.push_back({.kind = Completion::Kind::kStopped,
                            .qpn = qp->identity.qpn,
                            .imm = static_cast<std::uint32_t>(qp->received_packets)});
    return true;
  });
}

QpStatistics VerbsBackend::statistics(std::uint32_t qpn) const {
  const Qp& qp = *qps_.at(qpn);
  QpCounters counters;
  counters.tx_packets = qp.sends.packets();
  counters.tx_bytes = qp.sends.bytes();
  counters.rx_packets = qp.received_packets;
  counters.rx_bytes = qp.received_bytes;
  counters.timeouts = qp.sends.timeouts();
  return {.counters = counters,
          .port = qp.port,
          .smoothed_rtt = qp.sends.latency(),
          .min_rtt = qp.sends.min_latency(),
          .window = kSendDepth,
          .all_acknowledged = qp.sends.idle(),
          .busy = qp.sends.holds_long(),
          .path_rtt = qp.sends.path_latency(),
          .byte_time = qp.sends.byte_time()};
}

// -- progress ----------------------------------------------------------------------------------------------------

void VerbsBackend::post(std::uint32_t qpn, const WorkRequest& request) {
  Qp& qp = *qps_.at(qpn);
  qp.sends.post(request);
  if (qp.active || !qp.sends.waiting()) return;
  qp.active = true;
  active_.push_back(&qp);
}

bool VerbsBackend::flush(Nanos /*now*/) {
  bool any = false;
  for (Qp* qp : active_) {
    while (!qp->sends.failed() && qp->sends.hand_over(now())) any = true;
  }
  std::erase_if(active_, [](Qp* qp) {
    qp->active = qp->sends.waiting();
    return !qp->active;
  });
  return any;
}

bool VerbsBackend::poll(Nanos now) {
  const bool any = completion_queue_.poll([&](const ibv_wc& wc, Nanos seen) {
    const auto found = qps_.find(wc.qp_num);
    if (!SharedReceiveQueue::owns(wc)) {
      if (found != qps_.end()) found->second->sends.finish(wc, seen);
      return;
    }
    std::optional<Completion> completion = receives_.finish(wc);
    if (!completion) return;
    if (found == qps_.end()) completion->qpn = 0;  // destroyed: a fresh queue pair may have its number
    completions_.push_back(*completion);
    if (found == qps_.end()) return;
    found->second->received_bytes += wc.byte_len;
    ++found->second->received_packets;
  });
  sends_.polled_at = now;
  receives_.post_waiting();
  return any;
}

/// Queue pairs survive a short failure of the link: the NIC retransmits what was lost.
void VerbsBackend::on_port(bool up, Nanos now) {
  if (up == !sends_.port_down) return;
  sends_.port_down = !up;
  const std::string name =
      "port " + std::to_string(port_.number) + " of " + port_.device + " (" + format_address(options_.address) + ")";
  const auto seconds = [](Nanos time) {
    const Nanos milliseconds = time / kMillisecond;
    return std::to_string(static_cast<double>(milliseconds) / 1e3).substr(0, 5);
  };
  if (up) {
    options_.log(name + " is up again after " + seconds(now - port_down_at_) + " s");
    port_deadline_ = kNever;
    port_up_at_ = now;
  } else {
    options_.log(name + " went down: connections over it fail unless it comes back within " +
                 seconds(options_.retry_time) + " s (retry_time_s)");
    port_down_at_ = now;
    port_deadline_ = now + options_.retry_time;
  }
}

std::string VerbsBackend::port_trouble(Nanos now) const {
  if (sends_.port_down) return "the RDMA port is down";
  if (port_up_at_ && now - *port_up_at_ < options_.retry_time) return "the RDMA port was down";
  return {};
}

/// The port did not come back, or the device has failed. The queue pairs keep their requests, which may go over another
/// NIC.
void VerbsBackend::lose_paths(Status why) {
  for (const auto& [qpn, qp] : qps_) {
    if (qpn == fence_qpn_) {
      qp->sends.lose(why);
    } else {
      qp->sends.lose_path(why);
    }
  }
}

void VerbsBackend::take_events(Nanos now) {
  ibv_async_event event{};
  while (library_.get_async_event(port_.context.get(), &event) == 0) {
    Qp* affected = nullptr;
    const auto find = [&]() -> Qp* {
      const auto found = qps_.find(event.element.qp->qp_num);
      return found != qps_.end() ? found->second.get() : nullptr;
    };
    switch (event.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        affected = find();
        break;
      case IBV_EVENT_QP_LAST_WQE_REACHED:
        if (Qp* qp = find(); qp != nullptr) qp->last_wqe = true;
        break;
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_PORT_ACTIVE:
        if (event.element.port_num == port_.number) on_port(event.event_type == IBV_EVENT_PORT_ACTIVE, now);
        break;
      case IBV_EVENT_DEVICE_FATAL:
      case IBV_EVENT_CQ_ERR:
      case IBV_EVENT_SRQ_ERR:
        if (!lost_.exchange(true)) lose_paths(Status::kDeviceLost);
        break;
      default:
        break;
    }
    library_.ack_async_event(&event);
    if (affected != nullptr) affected->sends.lose(Status::kDeviceLost);
  }
}

bool VerbsBackend::progress(Nanos now, std::vector<Completion>& completions) {
  completion_queue_.take_event();
  if (completion_queue_.armed() || now >= next_look_ || !stopping_.empty() || !ending_.empty()) {
    take_events(now);
    next_look_ = now + kLookForEvents;
  }
  bool any = poll(now);
  take_results(now);
  if (!stopping_.empty()) finish_stopping(now);
  if (!ending_.empty()) finish_ending(now);
  if (now >= port_deadline_) {
    port_deadline_ = kNever;
    lose_paths(Status::kPortDown);
  }
  if (!completions_.empty()) {
    completions.insert(completions.end(), completions_.begin(), completions_.end());
    completions_.clear();
    any = true;
  }
  return any;
}

void VerbsBackend::settle(Nanos now) {
  completion_queue_.arm();
  poll(now);
}

Nanos VerbsBackend::deadline(Nanos now) const {
  if (!completions_.empty()) return now;
  if (std::ranges::any_of(active_, [](const Qp* qp) { return qp->sends.ready(); })) return now;
  Nanos when = port_deadline_;
  for (const auto* list : {&stopping_, &ending_}) {
    for (const Qp* qp : *list) when = std::min(when, qp->stop_by);
  }
  return when;
}

}  // namespace
}  // namespace verbs

std::unique_ptr<Backend> open_verbs(const VerbsOptions& options) {
  return std::make_unique<verbs::VerbsBackend>(options);
}

}  // namespace paralet
