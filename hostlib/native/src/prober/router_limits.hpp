// SPDX-License-Identifier: Apache-2.0
// How fast routers may be asked. A router answers one host at a limited rate (Linux: icmp_ratelimit, once a second
// after a burst of six); what comes faster it ignores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/ip_address.hpp"

namespace paralet::prober {

/// A token bucket for each router, and one for each hop that all unknown routers there share: on shortest paths from
/// one host no router is at two hops.
class RouterLimits {
 public:
  /// Routers that have answered at one place, by number.
  using Routers = std::vector<std::size_t>;

  /// `rate`: answers per second that a router gives; 0 is unlimited. `burst`: how many it gives at once.
  RouterLimits(double rate, double burst)
      : rate_(rate * 1e-9), burst_(burst), buckets_(kHops, {.tokens = burst, .at = 0}) {}

  /// What stands for the routers at a hop, where none has answered.
  [[nodiscard]] static std::span<const std::size_t> unknown(std::uint8_t ttl);

  /// When a probe may leave that one of `routers` will answer, nobody knows which: each must have its share.
  [[nodiscard]] Nanos ready_at(std::span<const std::size_t> routers) const;
  /// When the first of `routers` can answer a probe.
  [[nodiscard]] Nanos any_ready_at(std::span<const std::size_t> routers) const;
  /// Charges each of `routers` its share of such a probe.
  void charge(std::span<const std::size_t> routers, Nanos now);
  /// No router has answered such a probe: it has cost none anything. What stands for unknown routers keeps its charge:
  /// more of them may be asked only as they answer.
  void refund(std::span<const std::size_t> charged, Nanos now);
  /// A router has answered at a place: notes it among the place's `routers`. `charged` were for the probe, as it left:
  /// it is charged alone now. So guesses about who will answer slow down no later probe.
  void answered(Routers& routers, const IpAddress& router, Nanos now, std::span<const std::size_t> charged = {});

  /// Beyond this many, which only forged answers reach, routers share the unknown routers' buckets.
  static constexpr std::size_t kMostRouters = 4096;

 private:
  static constexpr std::size_t kHops = 256;  ///< values of a time to live
  struct Bucket {
    double tokens = 0;
    Nanos at = 0;  ///< when it had that many
  };
  [[nodiscard]] Nanos full_enough_at(const Bucket& bucket, double share) const;
  void take(Bucket& bucket, double share, Nanos now) const;

  double rate_;
  double burst_;
  std::vector<Bucket> buckets_;  ///< the first ones are those of unknown routers, by hop
  std::unordered_map<IpAddress, std::size_t> numbers_;
};

}  // namespace paralet::prober
