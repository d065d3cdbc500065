// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <cstdint>
#include <string>
#include <utility>

#include "log.hpp"

namespace paralet::cpu_device {

Device& Device::instance() {
  // Never destroyed: threads of streams may outlive main().
  static Device& device = *new Device();
  return device;
}

Device::Device() : default_(std::make_shared<Stream>(true, 0, 1)) {}

StreamHandle Device::create_stream(bool blocking, int priority) {
  const std::lock_guard lock(mutex_);
  auto stream = std::make_shared<Stream>(blocking, priority, next_stream_++);
  const StreamHandle handle = stream.get();
  streams_.emplace(handle, std::move(stream));
  return handle;
}

std::shared_ptr<Stream> Device::stream(StreamHandle handle) {
  const std::lock_guard lock(mutex_);
  // The default stream of each thread is taken to be the legacy one: NCCL uses no other.
  if (reinterpret_cast<std::uintptr_t>(handle) <= cuda::stream_per_thread) return default_;
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second;
}

bool Device::destroy_stream(StreamHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return false;
  found->second->close();
  std::erase_if(closed_, [](const auto& each) { return each->idle(); });
  if (!found->second->idle()) closed_.push_back(found->second);
  streams_.erase(found);
  return true;
}

EventHandle Device::create_event(bool timed) {
  const std::lock_guard lock(mutex_);
  auto event = std::make_shared<Event>(timed);
  const EventHandle handle = event.get();
  events_.emplace(handle, std::move(event));
  return handle;
}

std::shared_ptr<Event> Device::event(EventHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(handle);
  return found == events_.end() ? nullptr : found->second;
}

bool Device::destroy_event(EventHandle handle) {
  const std::lock_guard lock(mutex_);
  return events_.erase(handle) != 0;
}

CompletionPtr Device::submit(const std::shared_ptr<Stream>& stream, std::function<void()> work,
                             std::vector<CompletionPtr> after) {
  const std::lock_guard lock(mutex_);
  for (auto& each : order(stream)) after.push_back(std::move(each));
  return stream->submit(std::move(work), std::move(after));
}

CompletionPtr Device::mark(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  auto others = order(stream);
  if (!others.empty()) return stream->submit({}, std::move(others));
  if (auto pending = stream->pending()) return pending;
  auto now = std::make_shared<Completion>();
  now->complete();
  return now;
}

void Device::synchronize() {
  std::vector<CompletionPtr> pending;
  {
    const std::lock_guard lock(mutex_);
    if (auto last = default_->pending()) pending.push_back(std::move(last));
    for (const auto& each : others()) {
      if (auto last = each->pending()) pending.push_back(std::move(last));
    }
  }
  for (const auto& each : pending) each->wait();
}

void Device::fail(cuda::Error error, std::string_view reason) {
  cuda::Error none = cuda::success;
  if (failure_.compare_exchange_strong(none, error, std::memory_order_acq_rel)) warn(reason);
}

void Device::reset() {
  cancelled_.store(true, std::memory_order_release);
  synchronize();
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, stream] : streams_) stream->close();
  streams_.clear();
  events_.clear();
  failure_.store(cuda::success, std::memory_order_release);
  cancelled_.store(false, std::memory_order_release);
}

std::vector<std::shared_ptr<Stream>> Device::others() const {
  std::vector<std::shared_ptr<Stream>> all = closed_;
  for (const auto& [handle, stream] : streams_) all.push_back(stream);
  return all;
}

std::vector<CompletionPtr> Device::order(const std::shared_ptr<Stream>& stream) {
  std::vector<CompletionPtr> before;
  if (stream == default_) {
    for (const auto& each : others()) {
      if (!each->blocking()) continue;
      if (auto last = each->pending()) before.push_back(std::move(last));
    }
  } else if (stream->blocking()) {
    if (auto last = default_->pending()) before.push_back(std::move(last));
  }
  return before;
}

}  // namespace paralet::cpu_device
