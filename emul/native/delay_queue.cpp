// SPDX-License-Identifier: Apache-2.0
#include "delay_queue.hpp"

#include <algorithm>
#include <utility>

namespace paralet::link_delay {

int64_t due_ns(const Delay& delay, int64_t now_ns, std::mt19937_64& random, bool& late) {
  int64_t due = now_ns + delay.base_ns;
  late = delay.late_by_ns > 0 && std::bernoulli_distribution(delay.late_share)(random);
  if (late) {
    due += std::uniform_int_distribution<int64_t>(1, delay.late_by_ns)(random);
  }
  return due;
}

bool DelayQueue::push(int64_t due_ns, std::size_t port, std::span<const std::byte> frame) {
  if (frame.size() > most_bytes_ - bytes_) {
    return false;
  }
  bytes_ += frame.size();
  heap_.push_back({{due_ns, port, Bytes(frame.begin(), frame.end())}, arrivals_++});
  std::push_heap(heap_.begin(), heap_.end());
  return true;
}

std::optional<Packet> DelayQueue::pop(int64_t now_ns) {
  if (heap_.empty() || heap_.front().packet.due_ns > now_ns) {
    return std::nullopt;
  }
  std::pop_heap(heap_.begin(), heap_.end());
  Packet packet = std::move(heap_.back().packet);
  heap_.pop_back();
  bytes_ -= packet.frame.size();
  return packet;
}

std::optional<int64_t> DelayQueue::next_due_ns() const {
  return heap_.empty() ? std::nullopt : std::optional(heap_.front().packet.due_ns);
}

}  // namespace paralet::link_delay
