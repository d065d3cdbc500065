// SPDX-License-Identifier: Apache-2.0
#include "engine/shard_count.hpp"

#include <algorithm>
#include <cmath>

#include "backend/backend.hpp"
#include "base/cores.hpp"
#include "base/interfaces.hpp"

namespace paralet {

unsigned shard_count(const ShardRule& rule) {
  constexpr double kRateOfShard = 25e9;
  constexpr double kUnknownRate = 10e9;
  const auto limit = [&](unsigned shards) { return std::clamp(shards, 1U, std::clamp(rule.lanes, 1U, kMaxShards)); };
  if (rule.wanted > 0) return limit(rule.wanted);
  if (rule.one_port) return 1;
  const double rate_bps = rule.nic_rate_bps > 0 ? rule.nic_rate_bps : kUnknownRate;
  const auto by_rate = static_cast<unsigned>(std::clamp(std::ceil(rate_bps / kRateOfShard), 1.0, 1.0 * kMaxShards));
  return limit(std::min(by_rate, rule.cores / 2 / std::max(1U, rule.nics)));
}

unsigned shard_count(const DeviceOptions& options) {
  if (options.backend == BackendKind::kVerbs) return 1;
  const auto nics = static_cast<unsigned>(1 + options.fused_with.size());
  ShardRule rule{.wanted = options.shards,
                 .lanes = options.policy.lanes / nics,
                 .nics = nics,
                 .one_port = options.policy.kind == PolicyKind::kController};
  if (rule.wanted == 0) {
    rule.cores = usable_cores();
    const auto interface = interface_of(options.address);
    rule.nic_rate_bps = interface ? nic_rate_bps(interface->name).value_or(0) : 0;
  }
  return shard_count(rule);
}

}  // namespace paralet
