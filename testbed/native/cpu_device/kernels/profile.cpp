// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <atomic>
#include <chrono>

namespace paralet::cpu_device {
namespace {

// ncclDevProfiler in NCCL's device.h: per channel a ring of 64 events.
struct Event {
  std::uint64_t counter;
  std::uint64_t nanoseconds;
};
constexpr std::size_t events_per_channel = 64;

std::uint64_t now() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

}  // namespace

Profile::Profile(const Block& block, std::span<std::byte* const> works, Field enabled)
    : block_(block), works_(works), enabled_(enabled) {
  record(block_.layout().comm_work_started);
}

void Profile::completed() const {
  const Field counter = block_.layout().channel_work_counter;
  if (!counter.present()) return;
  record(block_.layout().comm_work_completed);
  const std::uint64_t count = read_unsigned(block_.channel_struct(), counter) + works_.size();
  std::memcpy(block_.channel_struct() + counter.offset(), &count, sizeof(count));
}

void Profile::record(Field which) const {
  const Field counter = block_.layout().channel_work_counter;
  if (!counter.present() || !which.present() || !enabled_.present()) return;
  auto* events = reinterpret_cast<Event*>(read_pointer(block_.communicator(), which));
  if (events == nullptr) return;
  events += block_.channel() * events_per_channel;
  std::uint64_t number = read_unsigned(block_.channel_struct(), counter);
  for (const std::byte* work : works_) {
    ++number;
    if (read_unsigned(work, enabled_) == 0) continue;
    Event& event = events[number % events_per_channel];
    std::atomic_ref(event.nanoseconds).store(now(), std::memory_order_relaxed);
    std::atomic_ref(event.counter).store(number, std::memory_order_release);
  }
}

}  // namespace paralet::cpu_device
