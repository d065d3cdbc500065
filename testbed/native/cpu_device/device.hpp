// SPDX-License-Identifier: Apache-2.0
// The one device of the process: its memory, streams and events, and the state of its errors.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "block_pool.hpp"
#include "completion.hpp"
#include "cuda_abi.hpp"
#include "memory.hpp"
#include "stream.hpp"

namespace paralet::cpu_device {

// A CUDA event: the end of what a stream held when the event was recorded last.
class Event {
 public:
  explicit Event(bool timed) : timed_(timed) {}

  bool timed() const { return timed_; }
  CompletionPtr recorded() const {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  void record(CompletionPtr end) {
    const std::lock_guard lock(mutex_);
    recorded_ = std::move(end);
  }

 private:
  const bool timed_;
  mutable std::mutex mutex_;
  CompletionPtr recorded_;
};

// Opaque handles, as CUDA's: the address of the object, or a number for a stream that always exists.
using StreamHandle = void*;
using EventHandle = void*;

class Device {
 public:
  static Device& instance();

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Memory& memory() { return memory_; }
  BlockPool& blocks() { return blocks_; }

  StreamHandle create_stream(bool blocking, int priority);
  // The stream of a handle; null where there is none.
  std::shared_ptr<Stream> stream(StreamHandle handle);
  bool destroy_stream(StreamHandle handle);

  EventHandle create_event(bool timed);
  std::shared_ptr<Event> event(EventHandle handle);
  bool destroy_event(EventHandle handle);

  // Queues work in a stream, with CUDA's order between the default stream and blocking streams: each waits for what the
  // other held before.
  CompletionPtr submit(const std::shared_ptr<Stream>& stream, std::function<void()> work,
                       std::vector<CompletionPtr> after = {});
  // The end of what the stream holds now; already completed where it holds nothing.
  CompletionPtr mark(const std::shared_ptr<Stream>& stream);

  // Waits for all that was queued before, in all streams.
  void synchronize();

  // The device has failed, for good: calls that concern its work return `error` from now on, as CUDA's sticky errors.
  void fail(cuda::Error error, std::string_view reason);
  cuda::Error failure() const { return failure_.load(std::memory_order_acquire); }

  // Set while cudaDeviceReset ends what runs.
  const std::atomic<bool>& cancelled() const { return cancelled_; }
  void reset();

 private:
  Device();

  std::vector<std::shared_ptr<Stream>> others() const;
  std::vector<CompletionPtr> order(const std::shared_ptr<Stream>& stream);

  Memory memory_;
  BlockPool blocks_;
  std::atomic<cuda::Error> failure_ = cuda::success;
  std::atomic<bool> cancelled_ = false;

  std::mutex mutex_;  // also held while work is queued, so that the order between streams is one for all threads
  std::shared_ptr<Stream> default_;
  std::unordered_map<StreamHandle, std::shared_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<Stream>> closed_;  // destroyed streams that still hold work
  std::unordered_map<EventHandle, std::shared_ptr<Event>> events_;
  unsigned long long next_stream_ = 2;
};

}  // namespace paralet::cpu_device
