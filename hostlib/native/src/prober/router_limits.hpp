// SPDX-License-Identifier: Apache-2.0
// How fast routers may be asked. A router answers one host at a limited rate (Linux: icmp_ratelimit, once a second
// after a burst of six); what comes faster it ignores.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/ip_address.hpp"

namespace paralet::prober {

/// A token bucket for each router, and one that all unknown routers share.
class RouterLimits {
 public:
  /// Routers that have answered at one place, by number. Empty: none has, so it is the unknown routers' bucket.
  using Routers = std::vector<std::size_t>;

  /// `rate`: answers per second that a router gives; 0 is unlimited. `burst`: how many it gives at once.
  RouterLimits(double rate, double burst) : rate_(rate * 1e-9), burst_(burst), buckets_{{.tokens = burst, .at = 0}} {}

  /// Whether a probe may leave that one of `routers` will answer, nobody knows which: each must have its share.
  [[nodiscard]] bool ready(const Routers& routers, Nanos now) const { return ready_at(routers) <= now; }
  [[nodiscard]] Nanos ready_at(const Routers& routers) const;
  /// Charges each of `routers` its share of such a probe.
  void charge(const Routers& routers, Nanos now);
  /// A router has answered at a place: notes it among the place's `routers`.
  void answered(Routers& routers, const IpAddress& router, Nanos now);

  /// Beyond this many, which only forged answers reach, routers share the unknown routers' bucket.
  static constexpr std::size_t kMostRouters = 4096;

 private:
  struct Bucket {
    double tokens = 0;
    Nanos at = 0;  ///< when it had that many
  };
  [[nodiscard]] Nanos full_enough_at(const Bucket& bucket, double share) const;
  void take(Bucket& bucket, double share, Nanos now) const;

  double rate_;
  double burst_;
  std::vector<Bucket> buckets_;  ///< the first is that of unknown routers
  std::unordered_map<IpAddress, std::size_t> numbers_;
};

}  // namespace paralet::prober
