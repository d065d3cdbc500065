// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/faults.hpp"
#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "base/random.hpp"
#include "wire/peer_name.hpp"

namespace paralet {

/// Where a packet came from.
struct PacketOrigin {
  IpAddress address;            ///< source
  std::uint16_t port = 0;       ///< UDP source port
  std::uint16_t likely_id = 0;  ///< IPv4 identification to expect
  Nanos age = 0;                ///< how long it has waited in the socket
  bool marked = false;          ///< a switch marked it: congestion experienced (CE, RFC 3168)
};

/// Drops, duplicates, reorders and corrupts packets between the socket and the transport, and lets paths die.
/// Reproducible by seed.
class FaultInjector {
 public:
  using Deliver = std::function<void(std::span<std::byte>, const PacketOrigin&)>;

  explicit FaultInjector(const Faults& faults) : faults_(faults), random_(faults.seed) {}

  void receive(std::span<std::byte> packet, const PacketOrigin& origin, Nanos now, const Deliver& deliver);
  /// Delivers packets that have been held back for too long.
  void release(Nanos now, const Deliver& deliver);
  [[nodiscard]] Nanos deadline() const;
  [[nodiscard]] std::uint64_t injected() const { return injected_; }

 private:
  struct Held {
    std::vector<std::byte> packet;
    PacketOrigin origin;
    std::uint64_t passes_left;
    Nanos until;
  };
  /// Whether the path of the packet's source port has died. Counts the packet.
  bool on_dead_path(const PacketOrigin& origin);

  Faults faults_;
  SplitMix64 random_;
  std::unordered_map<PeerName, std::uint64_t> received_;  ///< packets by address and port, where `dead` is set
  std::vector<Held> held_;
  std::uint64_t injected_ = 0;
};

}  // namespace paralet
