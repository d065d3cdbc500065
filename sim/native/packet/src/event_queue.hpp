// SPDX-License-Identifier: Apache-2.0
// The pending events of a simulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "types.hpp"

namespace paralet::packet {

enum class EventKind : std::uint8_t { kSent, kArrived, kPause, kResume, kTimer, kReorder, kRelease, kFlush };

struct Event {
  Time at;
  std::uint64_t order;  // upper 56 bits: number of the event; lower 8 bits: its kind
  std::uint32_t subject;

  [[nodiscard]] EventKind kind() const { return static_cast<EventKind>(order & 0xff); }
  [[nodiscard]] bool before(const Event& other) const { return at != other.at ? at < other.at : order < other.order; }
};

/// A 4-ary heap. Events of one time come in the order in which they were added.
class EventQueue {
 public:
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] const Event& first() const { return heap_.front(); }

  void add(Time at, EventKind kind, std::uint32_t subject) {
    const Event event{at, added_++ << 8 | static_cast<std::uint64_t>(kind), subject};
    std::size_t hole = heap_.size();
    heap_.push_back(event);
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / 4;
      if (!event.before(heap_[parent])) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = event;
  }

  Event take() {
    const Event first = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    const std::size_t size = heap_.size();
    std::size_t hole = 0;
    for (std::size_t child = 1; child < size; child = 4 * hole + 1) {
      const std::size_t end = child + 4 < size ? child + 4 : size;
      std::size_t least = child;
      for (std::size_t other = child + 1; other < end; ++other) {
        if (heap_[other].before(heap_[least])) least = other;
      }
      if (!heap_[least].before(last)) break;
      heap_[hole] = heap_[least];
      hole = least;
    }
    if (size > 0) heap_[hole] = last;
    return first;
  }

 private:
  std::vector<Event> heap_;
  std::uint64_t added_ = 0;
};

}  // namespace paralet::packet
