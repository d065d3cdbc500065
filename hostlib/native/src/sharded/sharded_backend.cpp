// SPDX-License-Identifier: Apache-2.0
#include "sharded/sharded_backend.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/limits.hpp"
#include "sharded/threaded_backend.hpp"

namespace paralet {

ShardedBackend::ShardedBackend(std::vector<std::unique_ptr<Backend>> shards)
    : shards_(std::move(shards)), events_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (shards_.size() < 2 || shards_.size() > kMaxShards) {
    throw DeviceError("a sharded device has 2 to " + std::to_string(kMaxShards) + " shards, not " +
                      std::to_string(shards_.size()));
  }
  for (std::size_t i = 1; i < shards_.size(); ++i) {
    shards_[i] = std::make_unique<ThreadedBackend>(std::move(shards_[i]));
  }
  for (const auto& shard : shards_) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = shard->event_fd();
    if (!events_.valid() || ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, shard->event_fd(), &event) != 0) {
      throw DeviceError("cannot watch sockets: " + error_text(errno));
    }
  }
}

std::vector<std::uint16_t> ShardedBackend::further_ports() const {
  std::vector<std::uint16_t> out;
  for (std::size_t i = 1; i < shards_.size(); ++i) out.push_back(shards_[i]->udp_port());
  return out;
}

// -- memory -----------------------------------------------------------------------------------------------------------

/// Peers write through any shard, so all shards know a region by one rkey.
std::uint32_t ShardedBackend::register_memory(std::byte* base, std::uint64_t length) {
  const std::uint32_t rkey = first().register_memory(base, length);
  for (std::size_t i = 1; i < shards_.size(); ++i) shards_[i]->register_as(rkey, base, length);
  return rkey;
}

void ShardedBackend::deregister_memory(std::uint32_t rkey) {
  for (const auto& shard : shards_) shard->deregister_memory(rkey);
}

void ShardedBackend::retire_memory(std::uint32_t rkey) {
  for (const auto& shard : shards_) shard->retire_memory(rkey);
}

// -- queue pairs ------------------------------------------------------------------------------------------------------

QpIdentity ShardedBackend::create_qp_on(unsigned /*member*/, unsigned lane) {
  return shards_[lane % shards_.size()]->create_qp();
}

/// A buffer belongs to one shard for good: its cookie names the shard. A fused device takes its remainders for members.
void ShardedBackend::post_receive(const ReceiveBuffer& buffer) {
  shards_[buffer.cookie / kMaxMembers % shards_.size()]->post_receive(buffer);
}

Discards ShardedBackend::discards() const {
  Discards sum;
  for (const auto& shard : shards_) sum += shard->discards();
  return sum;
}

// -- progress ---------------------------------------------------------------------------------------------------------

bool ShardedBackend::wants_work(Nanos now) const {
  return std::ranges::any_of(shards_, [now](const auto& shard) { return shard->wants_work(now); });
}

bool ShardedBackend::progress(Nanos now, std::vector<Completion>& completions) {
  bool any = false;
  for (const auto& shard : shards_) any = shard->progress(now, completions) || any;
  return any;
}

bool ShardedBackend::take_arrived(Nanos now, std::vector<Completion>& completions) {
  bool any = false;
  for (const auto& shard : shards_) any = shard->take_arrived(now, completions) || any;
  return any;
}

/// The threads first: they work while the caller runs the first shard.
bool ShardedBackend::flush(Nanos now) {
  bool any = false;
  for (std::size_t i = shards_.size(); i-- > 0;) any = shards_[i]->flush(now) || any;
  return any;
}

void ShardedBackend::settle(Nanos now) {
  for (const auto& shard : shards_) shard->settle(now);
}

void ShardedBackend::rest() {
  for (const auto& shard : shards_) shard->rest();
}

Nanos ShardedBackend::deadline(Nanos now) const {
  Nanos when = kNever;
  for (const auto& shard : shards_) when = std::min(when, shard->deadline(now));
  return when;
}

}  // namespace paralet
