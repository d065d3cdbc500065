// SPDX-License-Identifier: Apache-2.0
// What all parts of a packet simulation share: the clock and its events, the packets, the dice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace paralet::packet {

using Time = std::int64_t;  // picoseconds: a byte at 100 Gbit/s takes 80
using LinkId = std::uint32_t;
using NodeId = std::uint32_t;
using QpId = std::uint32_t;
using PacketId = std::uint32_t;
using MessageId = std::uint32_t;

constexpr Time kSecond = 1'000'000'000'000;
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

enum class EventKind : std::uint8_t { kSent, kArrived, kPause, kResume, kTimer, kRelease, kFlush };

struct Event {
  Time at;
  std::uint64_t order;  // 56 bits of what happens first at one moment, 8 of the kind
  std::uint32_t subject;

  [[nodiscard]] EventKind kind() const { return static_cast<EventKind>(order & 0xff); }
  [[nodiscard]] bool before(const Event& other) const { return at != other.at ? at < other.at : order < other.order; }
};

/// A heap of four children a node. Events of one moment come in the order in which they were added.
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

/// How packets find their way. The first needs nothing; of the next four a queue pair chooses among its routes, in the
/// last three switches choose. docs/packet.md has their sources and what was simplified.
enum class Scheme : std::uint8_t {
  kHashed,
  kOblivious,
  kRecycled,
  kPlb,
  kConWeave,
  kSpraying,
  kDrill,
  kLetFlow,
};
constexpr bool switches_choose(Scheme scheme) { return scheme >= Scheme::kSpraying; }

enum class PacketKind : std::uint8_t { kData, kAck, kNak };

struct Packet {
  Time sent;      // when its sender gave it to the NIC; an acknowledgement's is that of its data packet
  PacketId next;  // behind it in a queue
  QpId qp;
  std::uint32_t psn;
  std::uint32_t expected;  // of acknowledgements: the receiver has all below it
  MessageId message;
  std::uint32_t route;
  LinkId in;  // the link that it came to a switch by
  std::uint16_t bytes;
  std::uint8_t hop;  // its place on the route
  PacketKind kind;
  bool marked;  // congestion experienced, or its echo
  bool tail;    // ConWeave: the last of its epoch on its route
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

/// First in, first out, through the packets' own `next`.
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

/// SplitMix64.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  /// Uniform below `bound`, which is above 0 and fits 32 bits.
  std::uint32_t below(std::uint32_t bound) {
    state_ += 0x9E3779B97F4A7C15;
    std::uint64_t mixed = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
    return static_cast<std::uint32_t>(((mixed ^ (mixed >> 31)) >> 32) * bound >> 32);
  }

 private:
  std::uint64_t state_;
};

struct Core {
  explicit Core(std::uint64_t seed) : dice(seed) {}

  Time now = 0;
  EventQueue events;
  PacketPool packets;
  Dice dice;

  void after(Time delay, EventKind kind, std::uint32_t subject) { events.add(now + delay, kind, subject); }
};

/// Links by number, of many routes one after the other; link x ^ 1 is x in the other direction.
class Routes {
 public:
  std::uint32_t add(const LinkId* links, std::size_t count) {
    begins_.push_back(static_cast<std::uint32_t>(links_.size()));
    links_.insert(links_.end(), links, links + count);
    lengths_.push_back(static_cast<std::uint8_t>(count));
    return static_cast<std::uint32_t>(begins_.size() - 1);
  }
  [[nodiscard]] std::size_t size() const { return begins_.size(); }
  [[nodiscard]] std::uint8_t length(std::uint32_t route) const { return lengths_[route]; }
  [[nodiscard]] LinkId link(std::uint32_t route, std::size_t hop) const { return links_[begins_[route] + hop]; }

  /// The link that `packet` is on: acknowledgements take the route of their data backwards.
  [[nodiscard]] LinkId at(const Packet& packet) const {
    if (packet.kind == PacketKind::kData) return link(packet.route, packet.hop);
    return link(packet.route, lengths_[packet.route] - 1U - packet.hop) ^ 1U;
  }

 private:
  std::vector<std::uint32_t> begins_;
  std::vector<std::uint8_t> lengths_;
  std::vector<LinkId> links_;
};

}  // namespace paralet::packet
