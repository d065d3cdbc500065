// SPDX-License-Identifier: Apache-2.0
#include "engine/device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "base/errors.hpp"
#include "base/worker.hpp"
#include "engine/backend_factory.hpp"
#include "engine/front.hpp"
#include "engine/handshake.hpp"
#include "engine/memory_return.hpp"
#include "engine/progress_lock.hpp"
#include "engine/progress_thread.hpp"
#include "engine/shard.hpp"

namespace paralet {
namespace {

/// Whether every page of a range is mapped. msync(2) with MS_ASYNC only walks the list of mappings: it reads no page.
bool mapped(const std::byte* base, std::uint64_t length) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(base);
  if (length > UINTPTR_MAX - first) return false;
  const std::uintptr_t start = first / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): rounded down to a page
  return ::msync(reinterpret_cast<void*>(start), first + length - start, MS_ASYNC) == 0 || errno != ENOMEM;
}

}  // namespace

/// The lock with what it guards, and the threads and callers that take it.
struct Device::Inside final : ProgressLock::Holder {
  Inside(const DeviceOptions& options, std::unique_ptr<Backend> backend)
      : context(options, *backend),
        lock(*this),
        shard(context, std::move(backend)),
        front(context, lock, shard),
        poller(context, lock, shard, front),
        memory_return(context, lock, shard, front.parts(), front, poller),
        thread(context, lock, front) {}

  // ProgressLock::Holder
  void start(std::shared_ptr<Request> request) override PARALET_REQUIRES(progress_lock) {
    front.start(std::move(request));
  }
  void flush() override PARALET_REQUIRES(progress_lock) {
    if (shard.open()) front.flush(now());
  }
  bool let_go() override PARALET_REQUIRES(progress_lock) {
    if (shard.open()) thread.wake_in_time();
    return std::exchange(context.finished, false);
  }

  /// Begins every public call that has waited for the lock. Throws DeviceError when the device is closed.
  void begin_call() PARALET_REQUIRES(progress_lock) {
    shard.require_open();
    lock.start_submitted();  // requests that the caller submitted before this call come first
  }
  void leave_to_parent();

  Context context;
  ProgressLock lock;
  Shard shard;
  Front front;
  Poller poller;
  MemoryReturn memory_return;
  ProgressThread thread;
};

Device::Device(const DeviceOptions& options) : Device(options, make_backend(options)) {}

Device::Device(const DeviceOptions& options, std::unique_ptr<Backend> backend)
    : inside_(std::make_unique<Inside>(options, std::move(backend))),
      context_(&inside_->context),
      poller_(&inside_->poller) {
  inside_->thread.start();
}

Device::~Device() { close(0); }

bool Device::closed() const { return context_->closed.load() || inherited(); }

bool Device::inherited() const { return inside_->lock.inherited(); }

void Device::check_owner() const { inside_->lock.check_owner(); }

// -- closing -------------------------------------------------------------------------------------------------------

/// In a forked child: the parent goes on using all of it, and the child only closes descriptors.
void Device::Inside::leave_to_parent() {
  progress_lock.assume_held();  // the child has no other thread
  thread.leave_to_parent();
  shard.leave_to_parent();
  Parts& parts = front.parts();
  static_cast<void>(parts.policy.release());
  static_cast<void>(parts.set_up.take_thread().release());
  static_cast<void>(parts.registrations.take_thread().release());
}

void Device::close(Nanos timeout) {
  if (context_->closed.exchange(true)) return;
  Inside& inside = *inside_;
  if (inside.lock.inherited()) {
    inside.leave_to_parent();
    return;
  }
  Parts& parts = inside.front.parts();
  PathPolicy* policy = nullptr;
  {
    const ProgressGuard guard(inside.lock);
    policy = parts.policy.get();
  }
  policy->stop();  // without the lock: it may wait for the policy's own thread
  {
    const ProgressGuard guard(inside.lock);
    inside.begin_call();
    inside.front.settle(now());  // acknowledge what has arrived, so that peers need not wait for it
    parts.listeners.close();
    const std::map<std::uint32_t, std::shared_ptr<Connection>> open(parts.peers.connections.begin(),
                                                                    parts.peers.connections.end());
    for (const auto& [id, connection] : open) parts.closes.begin(connection);
  }
  const auto all_closed = [&inside, &parts] {
    const ProgressGuard guard(inside.lock);
    inside.begin_call();
    return parts.peers.connections.empty();
  };
  const Nanos until = now() + timeout;
  while (!all_closed() && now() < until) std::this_thread::sleep_for(std::chrono::microseconds(200));
  {
    const ProgressGuard guard(inside.lock);
    inside.begin_call();
    parts.ends.fail_all(Failure::kClosed, "the device was closed");
  }
  inside.thread.join();
  std::unique_ptr<Worker> setup_thread;
  std::unique_ptr<Worker> memory_thread;
  {
    const ProgressGuard guard(inside.lock);
    setup_thread = parts.set_up.take_thread();
    memory_thread = parts.registrations.take_thread();
  }
  setup_thread.reset();  // without the lock, which the end of a job takes
  memory_thread.reset();
  {
    // The caller may keep this object: release its ports and descriptors now.
    const ProgressGuard guard(inside.lock);
    parts.listeners.drop_incoming();
    parts.fences.fail_all();
    parts.observation.close();
    parts.registrations.wait_for_others();  // they do not need the lock to end
    inside.shard.close();
    parts.sockets.close();
    context_->polling->close();
  }
  completion_signal().notify();
}

// -- connections ---------------------------------------------------------------------------------------------------

std::shared_ptr<Listener> Device::listen() {
  const ProgressGuard guard(inside_->lock);
  inside_->begin_call();
  return inside_->front.parts().listeners.add(inside_->shard.backend().members());
}

void Device::stop_listening(const std::shared_ptr<Listener>& listener) {
  if (closed()) return;
  const ProgressGuard guard(inside_->lock);
  inside_->begin_call();
  Parts& parts = inside_->front.parts();
  parts.listeners.remove(*listener);
  while (const auto connection = listener->accept()) parts.closes.begin(connection);  // nobody else will accept them
}

std::shared_ptr<Connection> Device::connect(std::span<const std::byte> handle, std::optional<unsigned> lanes) {
  const auto target = handshake::decode_handle(handle);
  if (!target) throw std::invalid_argument("this is not a paralet handle: pass the listener's 128 bytes unchanged");
  const auto members = static_cast<unsigned>(1 + options().fused_with.size());
  const unsigned most = options().policy.lanes;
  const ProgressGuard guard(inside_->lock);
  inside_->begin_call();
  if (context_->closed) throw DeviceError("the device is closed");  // close has failed all peers, or will
  return inside_->front.parts().connections.connect(*target, std::clamp(lanes.value_or(most), members, most));
}

Nanos Device::heard_at(const Connection& connection) {
  const ProgressGuard guard(inside_->lock);
  inside_->begin_call();
  inside_->front.look();
  const Peer* const peer = connection.peer;
  if (peer == nullptr) return 0;
  return peer->heard ? now() : peer->heard_at;
}

void Device::close_connection(const std::shared_ptr<Connection>& connection) {
  if (closed()) return;
  const ProgressGuard guard(inside_->lock);
  inside_->begin_call();
  inside_->front.settle(now());
  inside_->front.parts().closes.begin(connection);
}

bool Device::close_and_wait(const std::shared_ptr<Connection>& connection,
                            const std::vector<std::shared_ptr<Request>>& requests, Closing until) {
  try {
    close_connection(connection);
  } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): another thread closed the device, which ends requests
  }
  return inside_->memory_return.wait(connection, requests, until == Closing::kBothSides);
}

void Device::give_up(const std::shared_ptr<Connection>& connection) {
  if (!closed()) inside_->memory_return.give_up(*connection);
}

bool Device::set_port(const IpAddress& peer_address, unsigned lane, std::uint16_t port) {
  const ProgressGuard guard(inside_->lock);
  inside_->begin_call();
  Parts& parts = inside_->front.parts();
  bool found = false;
  for (const auto& peer : parts.peers.all) {
    if (!peer->ready() || peer->address != peer_address || lane >= peer->lanes.size()) continue;
    found = true;
    peer->lanes[lane].moving_to = port;
    parts.ports.move_if_possible(*peer, lane);
  }
  return found;
}

// -- messages and memory -------------------------------------------------------------------------------------------

void Device::submit(const std::shared_ptr<Request>& request) {
  request->state.store(Request::State::kPending, std::memory_order_relaxed);
  Results& results = inside_->front.parts().results;
  if (closed()) {
    results.report_failure(*request, Failure::kDevice, inherited() ? ProgressLock::kInherited : "the device is closed");
    return;
  }
  if (results.register_ahead(*request)) inside_->lock.submit(request);
}

std::uint32_t Device::register_memory(std::byte* base, std::uint64_t length) {
  if (length > 0 && !mapped(base, length)) {
    throw std::invalid_argument("cannot register " + std::to_string(length) +
                                " bytes of memory: part of the range is not mapped in this process");
  }
  return inside_->front.parts().registrations.with_backend(
      [=](Backend& backend) { return backend.register_memory(base, length); });
}

std::uint32_t Device::register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) {
  return inside_->front.parts().registrations.with_backend(
      [=](Backend& backend) { return backend.register_device_memory(base, length, dmabuf); });
}

std::vector<IpAddress> Device::deregister_memory(std::uint32_t rkey) { return inside_->memory_return.deregister(rkey); }

// -- counters ------------------------------------------------------------------------------------------------------

DeviceCounters Device::counters() {
  if (context_->closed) return {};
  const ProgressGuard guard(inside_->lock);
  inside_->begin_call();
  return inside_->front.parts().observation.counters();
}

}  // namespace paralet
