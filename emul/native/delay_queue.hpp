// SPDX-License-Identifier: Apache-2.0
// Packets that wait until they are due.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace paralet::link_delay {

using Bytes = std::vector<std::byte>;

// Delay of the packets of one port.
struct Delay {
  int64_t base_ns = 0;     // of every packet
  double late_share = 0;   // probability, from 0 to 1, with which a packet is late
  int64_t late_by_ns = 0;  // a late packet waits longer by a uniform random time up to this
};

// When a packet that arrives at now_ns is due. Sets late when the packet was drawn to be late.
int64_t due_ns(const Delay& delay, int64_t now_ns, std::mt19937_64& random, bool& late);

struct Packet {
  int64_t due_ns = 0;
  std::size_t port = 0;
  Bytes frame;
};

// Packets by the time at which they are due; those due at the same time leave in order of arrival.
class DelayQueue {
 public:
  explicit DelayQueue(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  // Whether there was room for the frame, which is copied.
  bool push(int64_t due_ns, std::size_t port, std::span<const std::byte> frame);

  // The next packet that is due by now_ns, if any.
  std::optional<Packet> pop(int64_t now_ns);

  // When the next packet is due; nothing while the queue is empty.
  [[nodiscard]] std::optional<int64_t> next_due_ns() const;

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Waiting {
    Packet packet;
    uint64_t arrival = 0;
    bool operator<(const Waiting& other) const {  // std::push_heap keeps the largest in front
      return packet.due_ns != other.packet.due_ns ? packet.due_ns > other.packet.due_ns : arrival > other.arrival;
    }
  };

  std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  uint64_t arrivals_ = 0;
  std::vector<Waiting> heap_;
};

}  // namespace paralet::link_delay
