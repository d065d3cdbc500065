// SPDX-License-Identifier: Apache-2.0
// Packets, their storage, and queues of them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "types.hpp"

namespace paralet::packet {

enum class PacketKind : std::uint8_t { kData, kAck, kNak };

struct Packet {
  Time sent;      // when its sender gave it to the NIC; an acknowledgement keeps the time of its data packet
  PacketId next;  // the packet behind it in a queue
  QpId qp;
  std::uint32_t psn;
  std::uint32_t expected;  // in acknowledgements: the receiver has all packets below it
  MessageId message;
  std::uint32_t route;
  LinkId in;  // the link by which it entered its current switch
  std::uint16_t bytes;
  std::uint8_t hop;  // number of links already crossed
  PacketKind kind;
  bool marked;  // congestion experienced, or the echo of that in an acknowledgement
  bool tail;    // ConWeave: the last packet of its epoch on its route
  std::uint32_t epoch;
};

class PacketPool {
 public:
  Packet& operator[](PacketId id) { return packets_[id]; }

  PacketId make(const Packet& packet) {
    if (free_ == kNone) {
      packets_.push_back(packet);
      return static_cast<PacketId>(packets_.size() - 1);
    }
    const PacketId id = std::exchange(free_, packets_[free_].next);
    packets_[id] = packet;
    return id;
  }

  void drop(PacketId id) { packets_[id].next = std::exchange(free_, id); }

 private:
  std::vector<Packet> packets_;
  PacketId free_ = kNone;
};

/// First in, first out: a list linked by the packets' own `next`.
class PacketQueue {
 public:
  [[nodiscard]] bool empty() const { return head_ == kNone; }
  [[nodiscard]] PacketId first() const { return head_; }

  void push(PacketPool& packets, PacketId id) {
    packets[id].next = kNone;
    (empty() ? head_ : packets[tail_].next) = id;
    tail_ = id;
  }

  PacketId pop(PacketPool& packets) { return std::exchange(head_, packets[head_].next); }

 private:
  PacketId head_ = kNone;
  PacketId tail_ = kNone;
};

}  // namespace paralet::packet
