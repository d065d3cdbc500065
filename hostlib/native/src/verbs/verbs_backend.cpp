// SPDX-License-Identifier: Apache-2.0
#include "verbs/verbs_backend.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "backend/rc_timing.hpp"
#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "verbs/completion_queue.hpp"
#include "verbs/connector.hpp"
#include "verbs/fences.hpp"
#include "verbs/link_state.hpp"
#include "verbs/memory.hpp"
#include "verbs/port.hpp"
#include "verbs/queue_pairs.hpp"
#include "verbs/receive_queue.hpp"
#include "verbs/routes.hpp"
#include "verbs/send_queue.hpp"
#include "verbs/slow_calls.hpp"
#include "verbs/verbs_library.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace verbs {
namespace {

constexpr std::uint32_t kReceiveDepth = 8192;        // of the shared receive queue
constexpr int kCompletions = 65536;                  // of the completion queue, where the NIC can
constexpr Nanos kLookForEvents = 10 * kMillisecond;  // interval of looks at the device's events while no thread sleeps
constexpr Nanos kLookAtRoutes = 250 * kMillisecond;  // the same at the routes of lanes without an answer

class VerbsBackend final : public Backend {
 public:
  explicit VerbsBackend(const VerbsOptions& options);

  [[nodiscard]] std::uint16_t udp_port() const override { return wire::kRocePort; }
  [[nodiscard]] std::uint32_t max_path_mtu() const override { return connector_.path_mtu(); }
  [[nodiscard]] std::uint32_t path_mtu_to(unsigned /*member*/, const IpAddress& remote) const override {
    return routes_.path_mtu_to(remote, max_path_mtu());
  }
  [[nodiscard]] double port_rate_bps() const override {
    return link_rate_bps(attributes_.common.active_width, attributes_.speed);
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
  void post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) override {
    fences_.post(rkey, offset, cookie);
  }

  [[nodiscard]] bool sets_up_concurrently() const override { return true; }
  QpIdentity create_qp() override { return qps_.create(); }
  [[nodiscard]] Ece ece(std::uint32_t qpn) const override { return qps_.ece(qpn); }
  [[nodiscard]] std::uint16_t max_ip_id() const override { return UINT16_MAX; }
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) override {
    return qps_.connect(qpn, remote, source_port);
  }
  void adopt_qp(std::uint32_t qpn) override { qps_.adopt(qpn); }
  PortChange set_port(std::uint32_t qpn, std::uint16_t source_port) override { return qps_.set_port(qpn, source_port); }
  [[nodiscard]] PortMethod port_method() const override { return connector_.method(); }
  void fail_qp(std::uint32_t qpn) override { qps_.at(qpn).sends.fail(); }
  void stop_qp(std::uint32_t qpn) override { qps_.stop(qpn); }
  std::vector<WorkRequest> take_back(std::uint32_t qpn, std::uint32_t arrived) override {
    return qps_.at(qpn).sends.take_back(arrived);
  }
  void destroy_qp(std::uint32_t qpn) override;
  void post(std::uint32_t qpn, const WorkRequest& request) override { qps_.post(qpn, request); }
  void post_receive(const ReceiveBuffer& buffer) override { receives_.post(buffer); }
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override { return qps_.at(qpn).sends.estimate(); }
  [[nodiscard]] QpStatistics statistics(std::uint32_t qpn) const override { return qps_.at(qpn).statistics(); }
  [[nodiscard]] Discards discards() const override { return {}; }  // the NIC does not report them
  [[nodiscard]] bool port_down() const override { return link_.down(); }
  [[nodiscard]] bool lost() const override { return qps_.lost(); }
  [[nodiscard]] std::string port_trouble(Nanos now) const override { return link_.trouble(now); }

  [[nodiscard]] bool wants_work(Nanos) const override { return true; }
  bool progress(Nanos now, std::vector<Completion>& completions) override;
  bool flush(Nanos /*now*/) override { return qps_.flush(); }
  void settle(Nanos now) override;
  [[nodiscard]] Nanos deadline(Nanos now) const override;
  [[nodiscard]] int event_fd() const override { return epoll_.get(); }

 private:
  void take_events(Nanos now);

  const VerbsLibrary& library_;
  OpenPort port_;
  PortAttributes attributes_;
  ibv_device_attr limits_{};
  Routes routes_;
  Connector connector_;
  PdHandle pd_;
  CompletionQueue completion_queue_;
  Memory memory_;
  SharedReceiveQueue receives_;
  FileDescriptor epoll_;
  std::vector<Completion> completions_;
  SendContext sends_;
  LinkState link_;
  Nanos next_look_ = 0;  ///< for events of the device
  Nanos next_route_look_ = 0;
  QueuePairs qps_;
  Fences fences_;
  SlowCalls slow_calls_;  ///< last, so that its thread ends before what it uses
};

// -- opening -----------------------------------------------------------------------------------------------------

/// Throws DeviceError when the port is down.
PortAttributes query_active_port(const OpenPort& port, const VerbsOptions& options) {
  const auto attributes = query_port(port.context.get(), port.number);
  if (!attributes) fail("cannot query the port", errno);
  if (attributes->common.state != IBV_PORT_ACTIVE) {
    throw DeviceError("the RDMA port of " + format_address(options.address) + " is down");
  }
  return *attributes;
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

/// The name of a port in the log.
std::string name_of(const OpenPort& port, const IpAddress& address) {
  return "port " + std::to_string(port.number) + " of " + port.device + " (" + format_address(address) + ")";
}

VerbsBackend::VerbsBackend(const VerbsOptions& options)
    : library_(VerbsLibrary::load()),
      port_(open_port(options)),
      attributes_(query_active_port(port_, options)),
      limits_(query_limits(port_.context.get())),
      routes_(options),
      connector_(options, port_, bytes_of(attributes_.common.active_mtu)),
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
      link_(name_of(port_, options.address), options.retry_time, options.log),
      qps_({.connector = connector_,
            .pd = pd_.get(),
            .completion_queue = completion_queue_,
            .receives = receives_,
            .sends = sends_,
            .slow_calls = slow_calls_,
            .routes = routes_}),
      fences_(qps_, memory_, slow_calls_, completions_, options.log) {
  const int events = port_.context->async_fd;
  ::fcntl(events, F_SETFL, ::fcntl(events, F_GETFL) | O_NONBLOCK);
  if (!epoll_.valid()) fail("cannot watch the device", errno);
  for (const int fd : {events, completion_queue_.fd(), slow_calls_.fd()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail("cannot watch the device", errno);
  }
}

// -- events of the device ----------------------------------------------------------------------------------------

void VerbsBackend::take_events(Nanos now) {
  ibv_async_event event{};
  while (library_.get_async_event(port_.context.get(), &event) == 0) {
    QueuePair* affected = nullptr;
    const auto find = [&] { return qps_.find(event.element.qp->qp_num); };
    switch (event.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        affected = find();
        break;
      case IBV_EVENT_QP_LAST_WQE_REACHED:
        if (QueuePair* qp = find(); qp != nullptr) qp->last_wqe = true;
        break;
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_PORT_ACTIVE:
        if (event.element.port_num != port_.number) break;
        link_.set(event.event_type == IBV_EVENT_PORT_ACTIVE, now);
        sends_.port_down = link_.down();
        break;
      case IBV_EVENT_DEVICE_FATAL:
      case IBV_EVENT_CQ_ERR:
      case IBV_EVENT_SRQ_ERR:
        if (!qps_.lost()) qps_.lose_paths(Status::kDeviceLost);
        break;
      default:
        break;
    }
    library_.ack_async_event(&event);
    if (affected != nullptr) affected->sends.lose(Status::kDeviceLost);
  }
}

// -- progress and the end of queue pairs --------------------------------------------------------------------------

void VerbsBackend::destroy_qp(std::uint32_t qpn) {
  qps_.destroy(qpn);
  if (!qps_.ending()) return;
  // Often the NIC has returned everything by now.
  const Nanos t = now();
  take_events(t);
  qps_.poll(t);
  qps_.finish(t);
}

bool VerbsBackend::progress(Nanos now, std::vector<Completion>& completions) {
  completion_queue_.take_event();
  if (completion_queue_.armed() || now >= next_look_ || qps_.ending()) {
    take_events(now);
    next_look_ = now + kLookForEvents;
  }
  bool any = qps_.poll(now);
  if (now >= next_route_look_) {
    qps_.look_at_routes();
    next_route_look_ = now + kLookAtRoutes;
  }
  slow_calls_.finish();
  qps_.finish(now);
  if (link_.expire(now)) qps_.lose_paths(Status::kPortDown);
  if (!completions_.empty()) {
    completions.insert(completions.end(), completions_.begin(), completions_.end());
    completions_.clear();
    any = true;
  }
  return any;
}

void VerbsBackend::settle(Nanos now) {
  completion_queue_.arm();
  qps_.poll(now);
}

Nanos VerbsBackend::deadline(Nanos now) const {
  if (!completions_.empty()) return now;
  return std::min({link_.deadline(), qps_.deadline(now), sends_.held > 0 ? next_route_look_ : kNever});
}

}  // namespace
}  // namespace verbs

std::unique_ptr<Backend> open_verbs(const VerbsOptions& options) {
  return std::make_unique<verbs::VerbsBackend>(options);
}

}  // namespace paralet
