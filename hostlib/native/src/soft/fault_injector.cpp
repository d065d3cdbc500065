// SPDX-License-Identifier: Apache-2.0
#include "soft/fault_injector.hpp"

#include <algorithm>

namespace paralet {
namespace {
constexpr Nanos kHoldPerPacket = 250 * kMicrosecond;  // a held packet is released after this time per packet to pass
}  // namespace

void FaultInjector::receive(std::span<std::byte> packet, const PacketOrigin& origin, Nanos now,
                            const Deliver& deliver) {
  if (on_dead_path(origin) || random_.uniform() < faults_.drop) {
    ++injected_;
    return;
  }
  if (random_.uniform() < faults_.corrupt) {
    ++injected_;
    const std::uint64_t bit = random_.below(packet.size() * 8);
    packet[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
  const bool duplicate = random_.uniform() < faults_.duplicate;
  const bool reorder = random_.uniform() < faults_.reorder;
  if (duplicate) ++injected_;
  if (reorder) ++injected_;
  if (!reorder || duplicate) {
    deliver(packet, origin);
    for (Held& held : held_) {
      if (held.passes_left > 0) --held.passes_left;
    }
    release(now, deliver);
  }
  if (reorder) {
    const unsigned most = faults_.reorder_packets;
    held_.push_back({{packet.begin(), packet.end()}, origin, 1 + random_.below(most), now + most * kHoldPerPacket});
  } else if (duplicate) {
    deliver(packet, origin);
  }
}

bool FaultInjector::on_dead_path(const PacketOrigin& origin) {
  if (faults_.dead <= 0) return false;
  // A port is dead or not for good, whenever its packets come, so its number decides and not the sequence of draws.
  SplitMix64 draw(faults_.seed ^ (std::uint64_t{origin.port} << 32));
  if (draw.uniform() >= faults_.dead) return false;
  return ++received_[PeerName(origin.address, origin.port)] > faults_.dead_after;
}

void FaultInjector::release(Nanos now, const Deliver& deliver) {
  const auto due = [now](const Held& held) { return held.passes_left == 0 || now >= held.until; };
  for (Held& held : held_) {
    if (due(held)) deliver(held.packet, held.origin);
  }
  std::erase_if(held_, due);
}

Nanos FaultInjector::deadline() const {
  Nanos when = kNever;
  for (const Held& held : held_) when = std::min(when, held.until);
  return when;
}

}  // namespace paralet
