// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_return.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"

namespace paralet {
namespace {

/// A live peer answers a close at once. A peer that does not answer may be suspended (SIGSTOP).
constexpr Nanos kCloseTime = 1 * kSecond;
constexpr Nanos kLook = 20 * kMillisecond;  // interval of looks for signs of life
constexpr const char* kDeregistered = "the memory of one of its messages was deregistered before the message was done";

bool pending(const std::shared_ptr<Request>& request) {
  return request->state.load(std::memory_order_acquire) == Request::State::kPending;
}

}  // namespace

std::vector<IpAddress> MemoryReturn::deregister(std::uint32_t rkey) {
  if (lock_.inherited()) return {};
  std::vector<IpAddress> peers;
  std::vector<User> users;
  {
    const ProgressGuard guard(lock_);
    if (!shard_.open()) return {};
    lock_.start_submitted();
    users = users_of(rkey);
    for (const User& user : users) {
      if (!user.connection) continue;
      peers.push_back(user.connection->peer_address);
      if (user.connection->failure == Failure::kNone) {
        user.connection->error = kDeregistered;
        user.connection->failure = Failure::kClosed;
      }
      parts_.closes.begin(user.connection);
    }
  }
  for (const User& user : users) wait_for_release(user, {});
  bool kept = false;
  {
    const ProgressGuard guard(lock_);
    if (!shard_.open()) return peers;
    lock_.start_submitted();
    kept = parts_.peers.awaits(rkey);
    if (kept && !parts_.registrations.retired(rkey)) parts_.registrations.note_retired(rkey);
  }
  if (kept) {
    parts_.registrations.retire({rkey});
    return peers;
  }
  parts_.registrations.with_backend([=](Backend& backend) { backend.deregister_memory(rkey); });
  return peers;
}

bool MemoryReturn::wait(const std::shared_ptr<Connection>& connection,
                        const std::vector<std::shared_ptr<Request>>& requests, bool closed) {
  return wait_for_release({connection, requests}, {.copies_acknowledged = true, .closed = closed});
}

void MemoryReturn::give_up(Connection& connection) {
  std::vector<std::uint32_t> gone;
  {
    const ProgressGuard guard(lock_);
    shard_.require_open();
    lock_.start_submitted();
    gone = start_giving_up(connection);
  }
  parts_.registrations.retire(gone);
}

/// Waits until no request is pending, and for what `until` says. False: the peer was given up.
bool MemoryReturn::wait_for_release(const User& user, const Until& until) {
  const Connection* connection = user.connection.get();
  const auto released = [&] {
    return lock_.inherited() ||
           (std::ranges::none_of(user.requests, pending) &&
            (!until.copies_acknowledged || connection->copies.load(std::memory_order_acquire) == 0) &&
            (!until.closed || connection->state == Connection::State::kClosed));
  };
  const Nanos start = now();
  Nanos alive_at = start;
  std::uint64_t signs = 0;
  std::optional<std::vector<std::uint32_t>> gone;
  while (!gone && !poller_.wait(released, kLook)) {
    const ProgressGuard guard(lock_);
    if (!shard_.open()) return true;  // a closed device uses no memory
    const Nanos t = now();
    bool posted = connection == nullptr;  // a fence is a READ that this NIC answers itself
    if (connection != nullptr) {
      if (connection->peer == nullptr) continue;  // closed meanwhile
      if (const std::uint64_t seen = signs_of_life(*connection->peer); seen != signs) {
        signs = seen;
        alive_at = t;
      }
      for (Request* send = connection->in_flight.front(); send != nullptr; send = send->next) {
        posted = posted || (send->posted > 0 && (until.copies_acknowledged || !send->is_copy));
      }
    }
    // Posted flowlets are read from the caller's memory until they are acknowledged or the peer is given up, which ends
    // all connections to it. Memory of receives is safe once it is retired.
    const Nanos limit = posted ? context_.options.retry_time + kCloseTime : kCloseTime;
    const bool silent = t - alive_at >= limit;
    const bool too_long = !posted && t - start >= context_.options.retry_time + kCloseTime;
    if (!silent && !too_long) continue;
    gone = connection != nullptr ? start_giving_up(*user.connection) : std::vector<std::uint32_t>{};
  }
  if (gone) parts_.registrations.retire(*gone);
  return !gone;
}

/// Returns the registrations to retire before their memory is the caller's again.
std::vector<std::uint32_t> MemoryReturn::start_giving_up(Connection& connection) {
  if (connection.peer == nullptr) return {};
  const std::string error = format_address(connection.peer_address) + " does not answer";
  if (connection.failure == Failure::kNone) {
    connection.error = error;
    connection.failure = Failure::kTransport;
  }
  connection.given_up = true;
  parts_.sends.stop(connection, error);
  bool posted = false;
  for (Request* send = connection.in_flight.front(); send != nullptr; send = send->next) {
    posted = posted || (send->posted > 0 && !send->is_copy);
  }
  if (posted) {
    events_.fail_peer(*connection.peer, Failure::kTransport, error);
    return {};
  }
  std::vector<std::uint32_t> out;
  for (Request* receive = connection.receives.front(); receive != nullptr; receive = receive->next) {
    if (parts_.registrations.retired(receive->registration())) continue;
    parts_.registrations.note_retired(receive->registration());
    out.push_back(receive->registration());
  }
  return out;
}

/// A number that grows whenever the peer sends or acknowledges something.
std::uint64_t MemoryReturn::signs_of_life(const Peer& peer) const {
  std::uint64_t out = 0;
  const auto add = [&](std::uint32_t qpn) PARALET_REQUIRES(progress_lock) {
    const QpStatistics statistics = shard_.backend().statistics(qpn);
    out += statistics.counters.rx_packets + statistics.acknowledged_packets;
  };
  for (const Lane& lane : peer.lanes) {
    add(lane.qp.qpn);
    if (lane.renewal && lane.renewal->switched()) add(lane.renewal->qp.qpn);
    out += lane.flowlets;
  }
  return out;
}

std::vector<MemoryReturn::User> MemoryReturn::users_of(std::uint32_t rkey) const {
  std::vector<User> out;
  const auto collect = [&](const std::shared_ptr<Connection>& connection,
                           std::initializer_list<const RequestList*> lists) {
    User user{connection, {}};
    for (const RequestList* list : lists) {
      std::ranges::move(list->with_registration(rkey), std::back_inserter(user.requests));
    }
    if (!user.requests.empty()) out.push_back(std::move(user));
  };
  for (const auto& [id, connection] : parts_.peers.connections) {
    collect(connection, {&connection->sends, &connection->in_flight, &connection->receives});
  }
  if (auto fences = parts_.fences.users_of(rkey); !fences.empty()) out.push_back({nullptr, std::move(fences)});
  return out;
}

}  // namespace paralet
