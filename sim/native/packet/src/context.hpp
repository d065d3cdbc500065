// SPDX-License-Identifier: Apache-2.0
// State shared by all parts of a packet simulation: clock, events, packets and random numbers.
#pragma once

#include <cstdint>

#include "event_queue.hpp"
#include "packets.hpp"
#include "types.hpp"

namespace paralet::packet {

/// Pseudo-random numbers by SplitMix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  /// Uniform in 0 .. `bound` - 1. `bound` must be positive.
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>((next() >> 32) * bound >> 32); }

  /// Uniform from 0 to below 1.
  double real() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    std::uint64_t mixed = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
    return mixed ^ (mixed >> 31);
  }

  std::uint64_t state_;
};

struct Context {
  explicit Context(std::uint64_t seed) : random(seed) {}

  Time now = 0;
  EventQueue events;
  PacketPool packets;
  Random random;

  void after(Time delay, EventKind kind, std::uint32_t subject) { events.add(now + delay, kind, subject); }
};

}  // namespace paralet::packet
