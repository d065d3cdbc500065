// SPDX-License-Identifier: Apache-2.0
// Registered memory, and the return of memory to the caller: by deregistration, or by a close that waits.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "engine/device.hpp"

namespace paralet {
namespace {

/// A live peer answers a close at once. A peer that does not answer may be suspended (SIGSTOP).
constexpr Nanos kCloseTime = 1 * kSecond;
constexpr Nanos kLook = 20 * kMillisecond;  // interval of looks for signs of life
constexpr const char* kDeregistered = "the memory of one of its messages was deregistered before the message was done";

/// Whether every page of a range is mapped. msync(2) with MS_ASYNC only walks the list of mappings: it reads no page.
bool mapped(const std::byte* base, std::uint64_t length) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(base);
  if (length > UINTPTR_MAX - first) return false;
  const std::uintptr_t start = first / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): rounded down to a page
  return ::msync(reinterpret_cast<void*>(start), first + length - start, MS_ASYNC) == 0 || errno != ENOMEM;
}

bool pending(const std::shared_ptr<Request>& request) {
  return request->state.load(std::memory_order_acquire) == Request::State::kPending;
}

/// Counts a thread for as long as it exists. The thread has counted itself in.
class Leaving {
 public:
  explicit Leaving(std::atomic<unsigned>& threads) : threads_(threads) {}
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;
  ~Leaving() { --threads_; }

 private:
  std::atomic<unsigned>& threads_;
};

}  // namespace

/// Calls `use` with the back end, without the progress lock where the back end allows that: pinning pages takes long,
/// and messages go on meanwhile.
template <typename Use>
auto Device::register_with(Use use) {
  Backend* backend = nullptr;
  {
    const ProgressLockGuard guard(*this);
    begin_call();
    if (!backend_->registers_concurrently()) return use(*backend_);
    backend = backend_.get();
    ++registering_;
  }
  const Leaving leaving(registering_);
  return use(*backend);
}

/// Registers the memory of a request before the request takes the progress lock, where the back end allows that. False,
/// and the request has failed, when that is refused.
bool Device::register_ahead(Request& request) {
  if (registrar_ == nullptr || request.kind == Request::Kind::kFence || request.rkey != 0) return true;
  ++registering_;
  const Leaving leaving(registering_);
  if (!closed_) return register_temporarily(request, *registrar_);  // close waits for `registering_` after `closed_`
  report_failure(request, Failure::kDevice, "the device is closed");
  return false;
}

std::uint32_t Device::register_memory(std::byte* base, std::uint64_t length) {
  if (length > 0 && !mapped(base, length)) {
    throw std::invalid_argument("cannot register " + std::to_string(length) +
                                " bytes of memory: part of the range is not mapped in this process");
  }
  return register_with([=](Backend& backend) { return backend.register_memory(base, length); });
}

std::uint32_t Device::register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) {
  return register_with([=](Backend& backend) { return backend.register_device_memory(base, length, dmabuf); });
}

std::vector<IpAddress> Device::deregister_memory(std::uint32_t rkey) {
  if (inherited()) return {};
  std::vector<IpAddress> peers;
  std::vector<MemoryUser> users;
  {
    const ProgressLockGuard guard(*this);
    if (!backend_) return {};
    begin_call();
    users = users_of(rkey);
    for (const MemoryUser& user : users) {
      if (!user.connection) continue;
      peers.push_back(user.connection->peer_address);
      if (user.connection->failure == Failure::kNone) {
        user.connection->error = kDeregistered;
        user.connection->failure = Failure::kClosed;
      }
      begin_close(user.connection);
    }
  }
  for (const MemoryUser& user : users) wait_for_release(user, Closing::kMemory);
  bool kept = false;
  {
    const ProgressLockGuard guard(*this);
    if (!backend_) return peers;
    begin_call();
    kept = awaited(rkey);
    if (kept && !retired(rkey)) retired_.push_back(rkey);
  }
  if (kept) {
    retire({rkey});
    return peers;
  }
  register_with([=](Backend& backend) { backend.deregister_memory(rkey); });
  return peers;
}

bool Device::close_and_wait(const std::shared_ptr<Connection>& connection,
                            const std::vector<std::shared_ptr<Request>>& requests, Closing until) {
  try {
    close_connection(connection);
  } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): another thread closed the device, which ends requests
  }
  return wait_for_release({connection, requests}, until);
}

/// Waits until no request is pending and, with kBothSides, the connection is closed. False: the peer was given up.
bool Device::wait_for_release(const MemoryUser& user, Closing until) {
  const Connection* connection = user.connection.get();
  const auto released = [&] {
    return inherited() || (std::ranges::none_of(user.requests, pending) &&
                           (until == Closing::kMemory || connection->state == Connection::State::kClosed));
  };
  const Nanos start = now();
  Nanos alive_at = start;
  std::uint64_t signs = 0;
  std::optional<std::vector<std::uint32_t>> gone;
  while (!gone && !wait(released, kLook)) {
    const ProgressLockGuard guard(*this);
    if (!backend_) return true;  // a closed device uses no memory
    const Nanos t = now();
    bool posted = connection == nullptr;  // a fence is a READ that this NIC answers itself
    if (connection != nullptr) {
      if (connection->peer == nullptr) continue;  // closed meanwhile
      if (const std::uint64_t seen = signs_of_life(*connection->peer); seen != signs) {
        signs = seen;
        alive_at = t;
      }
      for (Request* send = connection->in_flight.front(); send != nullptr; send = send->next) {
        posted = posted || send->posted > 0;
      }
    }
    // Posted flowlets are read from the caller's memory until they are acknowledged or the peer is given up, which ends
    // all connections to it. Memory of receives is safe once it is retired.
    const Nanos limit = posted ? options_.retry_time + kCloseTime : kCloseTime;
    const bool silent = t - alive_at >= limit;
    const bool too_long = !posted && t - start >= options_.retry_time + kCloseTime;
    if (!silent && !too_long) continue;
    gone = connection != nullptr ? start_giving_up(*user.connection) : std::vector<std::uint32_t>{};
  }
  if (gone) retire(*gone);
  return !gone;
}

void Device::give_up(const std::shared_ptr<Connection>& connection) {
  if (closed()) return;
  std::vector<std::uint32_t> gone;
  {
    const ProgressLockGuard guard(*this);
    begin_call();
    gone = start_giving_up(*connection);
  }
  retire(gone);
}

/// Returns the registrations to retire before their memory is the caller's again.
std::vector<std::uint32_t> Device::start_giving_up(Connection& connection) {
  if (connection.peer == nullptr) return {};
  const std::string error = format_address(connection.peer_address) + " does not answer";
  if (connection.failure == Failure::kNone) {
    connection.error = error;
    connection.failure = Failure::kTransport;
  }
  connection.given_up = true;
  stop_sending(connection, error);
  bool posted = false;
  for (Request* send = connection.in_flight.front(); send != nullptr; send = send->next) {
    posted = posted || send->posted > 0;
  }
  if (posted) {
    fail_peer(*connection.peer, Failure::kTransport, error);
    return {};
  }
  std::vector<std::uint32_t> out;
  for (Request* receive = connection.receives.front(); receive != nullptr; receive = receive->next) {
    if (retired(receive->registration())) continue;
    retired_.push_back(receive->registration());
    out.push_back(receive->registration());
  }
  return out;
}

/// A number that grows whenever the peer sends or acknowledges something.
std::uint64_t Device::signs_of_life(const Peer& peer) const {
  std::uint64_t out = 0;
  const auto add = [&](std::uint32_t qpn) PARALET_REQUIRES(progress_lock_) {
    const QpStatistics statistics = backend_->statistics(qpn);
    out += statistics.counters.rx_packets + statistics.acknowledged_packets;
  };
  for (const Lane& lane : peer.lanes) {
    add(lane.qp.qpn);
    if (lane.renewal && lane.renewal->switched()) add(lane.renewal->qp.qpn);
    out += lane.flowlets;
  }
  return out;
}

std::vector<Device::MemoryUser> Device::users_of(std::uint32_t rkey) const {
  std::vector<MemoryUser> out;
  const auto collect = [&](const std::shared_ptr<Connection>& connection,
                           std::initializer_list<const RequestList*> lists) {
    MemoryUser user{connection, {}};
    for (const RequestList* list : lists) {
      for (const Request* request = list->front(); request != nullptr; request = request->next) {
        if (request->rkey == rkey) user.requests.push_back(request->self);
      }
    }
    if (!user.requests.empty()) out.push_back(std::move(user));
  };
  for (const auto& [id, connection] : connections_) {
    collect(connection, {&connection->sends, &connection->in_flight, &connection->receives});
  }
  collect(nullptr, {&fences_});
  return out;
}

/// Whether a receive into the region is open.
bool Device::awaited(std::uint32_t rkey) const {
  return std::ranges::any_of(peers_, [rkey](const auto& peer) { return !peer->dead() && peer->slots.awaits(rkey); });
}

/// Returns memory in `retired_` to its owner while messages may still arrive for it: the backend drops their data.
void Device::retire(const std::vector<std::uint32_t>& rkeys) {
  try {
    for (const std::uint32_t rkey : rkeys) register_with([=](Backend& backend) { backend.retire_memory(rkey); });
  } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): a closed device uses no memory
  }
}

bool Device::retired(std::uint32_t rkey) const { return std::ranges::find(retired_, rkey) != retired_.end(); }

// -- the engine's own registrations --------------------------------------------------------------------------------

void Device::on_memory_thread(std::function<void()> job) {
  if (!memory_thread_) memory_thread_ = std::make_unique<Worker>();
  memory_thread_->add(std::move(job));
}

/// Deregisters the registration that a request has for itself, which no QP uses any more. Where that takes long the
/// memory thread does it, and ends the request afterwards: the NIC must not reach memory that the caller has back.
/// False: the caller ends the request.
bool Device::end_after_release(Request& request, Request::State state) {
  const std::uint32_t rkey = std::exchange(request.temporary_rkey, 0);
  if (rkey == 0 || !backend_) return false;
  if (registrar_ == nullptr || stop_) {
    backend_->deregister_memory(rkey);
    return false;
  }
  on_memory_thread([registrar = registrar_, rkey, state, own = request.shared_from_this()] {
    registrar->deregister_memory(rkey);
    own->state.store(state, std::memory_order_release);
    completion_signal().notify();
  });
  return true;
}

/// Registers the memory of a batch, which may be used meanwhile. Where that is refused, it is never registered.
void Device::register_batch(Peer& peer, const std::shared_ptr<AdvertisementBatch>& batch) {
  const auto source = [batch](Backend& backend) -> std::uint32_t {
    try {
      return backend.register_source(batch->bytes.data(), batch->bytes.size());
    } catch (const DeviceError&) {
      return 0;
    }
  };
  if (registrar_ == nullptr) {
    batch->memory = source(*backend_);
    return;
  }
  batch->registers = true;
  if (stop_) return;
  ++peer.setups;
  on_memory_thread([this, &peer, batch, source] {
    const std::uint32_t memory = source(*registrar_);
    {
      const ProgressLockGuard guard(*this);
      --peer.setups;
      if (!peer.dead()) {
        batch->memory = memory;
        batch->registers = memory == 0;
        return;
      }
    }
    registrar_->deregister_memory(memory);
  });
}

/// Deregisters the batches of a peer that has failed.
void Device::release_batches(Peer& peer) {
  peer.spare_batches.clear();
  peer.gathering = nullptr;
  const auto release = [batches = std::exchange(peer.batches, {})](Backend& backend) {
    for (const auto& batch : batches) {
      if (batch->memory != 0) backend.deregister_memory(batch->memory);
    }
  };
  if (registrar_ == nullptr || stop_) {
    release(*backend_);
  } else {
    on_memory_thread([release, registrar = registrar_] { release(*registrar); });
  }
}

}  // namespace paralet
