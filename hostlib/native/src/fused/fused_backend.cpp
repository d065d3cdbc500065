// SPDX-License-Identifier: Apache-2.0
#include "fused/fused_backend.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/fresh_name.hpp"
#include "base/limits.hpp"

namespace paralet {

FusedBackend::FusedBackend(std::vector<std::unique_ptr<Backend>> members)
    : members_(std::move(members)), events_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (members_.size() < 2 || members_.size() > kMaxMembers) {
    throw DeviceError("a fused device has 2 to " + std::to_string(kMaxMembers) + " members, not " +
                      std::to_string(members_.size()));
  }
  for (const auto& member : members_) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = member->event_fd();
    if (!events_.valid() || ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, member->event_fd(), &event) != 0) {
      throw DeviceError("cannot watch sockets: " + error_text(errno));
    }
  }
}

std::uint32_t FusedBackend::max_path_mtu() const {
  std::uint32_t least = UINT32_MAX;
  for (const auto& member : members_) least = std::min(least, member->max_path_mtu());
  return least;
}

double FusedBackend::port_rate_bps() const {
  double sum = 0;
  for (const auto& member : members_) sum += member->port_rate_bps();
  return sum;
}

// -- memory ------------------------------------------------------------------------------------------------------

/// Calls `with` for every member, but those that have failed. The name of all their keys together; 0 where no member
/// needs a registration.
template <typename Register>
std::uint32_t FusedBackend::register_with_all(Register with) {
  Keys keys{};
  std::optional<std::uint64_t> address;
  try {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      Backend& member = *members_[i];
      if (member.lost()) continue;
      keys[i] = with(member);
      if (keys[i] == 0) continue;
      if (!address) address = member.remote_address(keys[i]);
      if (member.remote_address(keys[i]) != *address) {
        throw DeviceError("the members of the fused device do not give memory one address");
      }
    }
  } catch (...) {
    release(keys);
    throw;
  }
  if (keys == Keys{}) return 0;
  const MutexLock lock(mutex_);
  const std::uint32_t key = fresh_name(next_key_, registrations_);
  registrations_.emplace(key, keys);
  return key;
}

void FusedBackend::release(const Keys& keys) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (keys[i] != 0) members_[i]->deregister_memory(keys[i]);
  }
}

/// Zeros for a name that is not known.
FusedBackend::Keys FusedBackend::keys_of(std::uint32_t rkey) const {
  const MutexLock lock(mutex_);
  const auto found = registrations_.find(rkey);
  return found != registrations_.end() ? found->second : Keys{};
}

std::uint32_t FusedBackend::register_memory(std::byte* base, std::uint64_t length) {
  return register_with_all([=](Backend& member) { return member.register_memory(base, length); });
}

std::uint32_t FusedBackend::register_source(const std::byte* base, std::uint64_t length) {
  return register_with_all([=](Backend& member) { return member.register_source(base, length); });
}

std::uint32_t FusedBackend::register_device_memory(std::byte* base, std::uint64_t length,
                                                   std::optional<DmaBuf> dmabuf) {
  return register_with_all([=](Backend& member) { return member.register_device_memory(base, length, dmabuf); });
}

std::uint64_t FusedBackend::remote_address(std::uint32_t rkey) const {
  const Keys keys = keys_of(rkey);
  const auto registered = std::ranges::find_if(keys, [](std::uint32_t key) { return key != 0; });
  if (registered == keys.end()) return 0;
  return members_[static_cast<std::size_t>(registered - keys.begin())]->remote_address(*registered);
}

std::uint32_t FusedBackend::remote_key_on(unsigned member, std::uint32_t rkey) const {
  return members_[member]->remote_key(keys_of(rkey)[member]);
}

bool FusedBackend::registers_concurrently() const {
  return std::ranges::all_of(members_, [](const auto& member) { return member->registers_concurrently(); });
}

void FusedBackend::deregister_memory(std::uint32_t rkey) {
  const Keys keys = keys_of(rkey);
  release(keys);  // before its name may be given again
  const MutexLock lock(mutex_);
  registrations_.erase(rkey);
}

void FusedBackend::retire_memory(std::uint32_t rkey) {
  const Keys keys = keys_of(rkey);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (keys[i] != 0) members_[i]->retire_memory(keys[i]);
  }
}

bool FusedBackend::works(unsigned member) const { return !members_[member]->port_down() && !members_[member]->lost(); }

/// Data may have come through any member, and the fence of one says nothing of another's. A member that is known to be
/// down needs none: its last writes are long over, as it takes far longer to notice.
void FusedBackend::post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) {
  const Keys keys = keys_of(rkey);
  std::vector<unsigned> asked;
  for (unsigned i = 0; i < members_.size(); ++i) {
    if (keys[i] != 0 && works(i)) asked.push_back(i);
  }
  if (asked.empty()) {  // the fence fails with their reason
    for (unsigned i = 0; i < members_.size(); ++i) asked.push_back(i);
  }
  const std::uint64_t number = next_fence_++;
  for (const unsigned i : asked) members_[i]->post_fence(keys[i], offset, number);
  fences_.emplace(number, Fence{.cookie = cookie, .left = static_cast<unsigned>(asked.size())});
}

/// Whether the completion is the last of its fence; it is then made the fence's. Members that went down meanwhile need
/// not answer well, if another does.
bool FusedBackend::on_fenced(unsigned member, Completion& completion) {
  const auto found = fences_.find(completion.cookie);
  if (found == fences_.end()) return false;  // another member refused the fence
  Fence& fence = found->second;
  if (completion.status == Status::kSuccess) {
    fence.done = true;
  } else if (works(member)) {
    fence.status = completion.status;
  }
  if (--fence.left > 0) return false;
  completion.cookie = fence.cookie;
  if (fence.done || fence.status != Status::kSuccess) completion.status = fence.status;
  fences_.erase(found);
  return true;
}

// -- queue pairs -------------------------------------------------------------------------------------------------

bool FusedBackend::sets_up_concurrently() const {
  return std::ranges::all_of(members_, [](const auto& member) { return member->sets_up_concurrently(); });
}

/// Lanes alternate between members, and those of a member between its shards.
QpIdentity FusedBackend::create_qp_on(unsigned member, unsigned lane) {
  QpIdentity qp = members_[member]->create_qp_on(0, lane / members());
  qp.qpn |= member << 24;
  return qp;
}

bool FusedBackend::connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) {
  RemoteQp there = remote;
  there.qpn = local(remote.qpn);
  return of(qpn).connect_qp(local(qpn), there, source_port);
}

std::vector<WorkRequest> FusedBackend::take_back(std::uint32_t qpn, std::uint32_t arrived) {
  return of(qpn).take_back(local(qpn), arrived);
}

void FusedBackend::post(std::uint32_t qpn, const WorkRequest& request) {
  WorkRequest own = request;
  if (own.memory != 0) own.memory = keys_of(own.memory)[member_of(qpn)];
  of(qpn).post(local(qpn), own);
}

/// A buffer belongs to one member for good: its cookie names the member.
void FusedBackend::post_receive(const ReceiveBuffer& buffer) {
  members_[buffer.cookie % members_.size()]->post_receive(buffer);
}

// -- progress ----------------------------------------------------------------------------------------------------

Discards FusedBackend::discards() const {
  Discards sum;
  for (const auto& member : members_) {
    sum += member->discards();
  }
  return sum;
}

std::string FusedBackend::port_trouble(Nanos now) const {
  for (const auto& member : members_) {
    if (std::string trouble = member->port_trouble(now); !trouble.empty()) return trouble;
  }
  return {};
}

bool FusedBackend::wants_work(Nanos now) const {
  return std::ranges::any_of(members_, [now](const auto& member) { return member->wants_work(now); });
}

/// Calls `each` for every member, and makes what it appends the fused device's.
template <typename Each>
bool FusedBackend::any_member(std::vector<Completion>& completions, Each each) {
  bool any = false;
  for (unsigned i = 0; i < members_.size(); ++i) {
    const auto from = static_cast<std::ptrdiff_t>(completions.size());
    any = each(*members_[i]) || any;
    const auto kept = std::remove_if(completions.begin() + from, completions.end(), [&](Completion& completion) {
      if (completion.kind == Completion::Kind::kFenced) return !on_fenced(i, completion);
      completion.qpn |= i << 24;
      return false;
    });
    completions.erase(kept, completions.end());
  }
  return any;
}

bool FusedBackend::progress(Nanos now, std::vector<Completion>& completions) {
  return any_member(completions, [&](Backend& member) { return member.progress(now, completions); });
}

bool FusedBackend::take_arrived(Nanos now, std::vector<Completion>& completions) {
  return any_member(completions, [&](Backend& member) { return member.take_arrived(now, completions); });
}

bool FusedBackend::flush(Nanos now) {
  bool any = false;
  for (const auto& member : members_) any = member->flush(now) || any;
  return any;
}

void FusedBackend::settle(Nanos now) {
  for (const auto& member : members_) member->settle(now);
}

void FusedBackend::rest() {
  for (const auto& member : members_) member->rest();
}

Nanos FusedBackend::deadline(Nanos now) const {
  Nanos when = kNever;
  for (const auto& member : members_) when = std::min(when, member->deadline(now));
  return when;
}

}  // namespace paralet
