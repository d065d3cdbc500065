// SPDX-License-Identifier: Apache-2.0
// Times, numbers and schemes: the vocabulary of a packet simulation.
#pragma once

#include <cstdint>
#include <limits>

namespace paralet::packet {

using Time = std::int64_t;  // picoseconds: a byte at 100 Gbit/s takes 80 ps
using LinkId = std::uint32_t;
using NodeId = std::uint32_t;
using QpId = std::uint32_t;
using PacketId = std::uint32_t;
using MessageId = std::uint32_t;

constexpr Time kSecond = 1'000'000'000'000;
constexpr Time kNeverTime = std::numeric_limits<Time>::max();
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// How routes of packets are chosen. kHashed: each lane has one route. The next four: a queue pair chooses among all
/// routes of its channel. The last three: switches choose. docs/packet.md lists sources and simplifications.
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

}  // namespace paralet::packet
