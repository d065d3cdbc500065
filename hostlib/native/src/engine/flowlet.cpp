// SPDX-License-Identifier: Apache-2.0
#include "engine/flowlet.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace paralet {
namespace {

/// Upper tail quantile of the standard normal: z with Q(z) = tail. Bisection on erfc, which keeps its precision in the
/// tail where 1 - Phi(z) would cancel.
double normal_tail_quantile(double tail) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    if (0.5 * std::erfc(middle / std::numbers::sqrt2) > tail) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return 0.5 * (low + high);
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

}  // namespace

double slowdown(unsigned m, double hosts) {
  // Below two hosts Phi^-1 is negative, but flows cannot collide.
  return 1.0 + std::max(0.0, normal_tail_quantile(1.0 / hosts)) / std::sqrt(static_cast<double>(m));
}

unsigned lanes_for(double target, double hosts) {
  const double ratio = std::max(0.0, normal_tail_quantile(1.0 / hosts)) / (target - 1.0);
  constexpr double kMost = std::numeric_limits<unsigned>::max();
  return static_cast<unsigned>(std::clamp(std::ceil(ratio * ratio), 1.0, kMost));
}

std::uint64_t flowlet_bytes(double bdp_bytes, unsigned m, std::uint32_t path_mtu) {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(4.0 * bdp_bytes / m));
  return std::max<std::uint64_t>(path_mtu, round_up(wanted, path_mtu));
}

std::uint64_t flowlet_size(const FlowletRule& rule) {
  constexpr std::uint64_t kMost = 2 * 1024 * 1024;
  constexpr std::uint64_t kLeast = 16 * 1024;
  constexpr std::uint64_t kLeastOfShard = 128 * 1024;  // below, what a shard saves is what the flowlets cost
  constexpr Nanos kDefaultRtt = 1 * kMillisecond;
  const auto formula = [&](double rate_bps, Nanos rtt) {
    return flowlet_bytes(rate_bps / 8 * to_seconds(rtt), rule.lanes, rule.path_mtu);
  };
  if (rule.bytes) return std::max<std::uint64_t>(1, *rule.bytes);
  if (rule.line_rate_bps > 0) return formula(rule.line_rate_bps, rule.rtt > 0 ? rule.rtt : kDefaultRtt);
  if (rule.port_rate_bps <= 0 || rule.rtt <= 0) {
    if (rule.shards == 1) return kMost;
    return std::clamp((rule.message_bytes + rule.shards - 1) / rule.shards, kLeastOfShard, kMost);
  }
  return std::clamp(formula(rule.port_rate_bps, rule.rtt), kLeast, kMost);
}

Flowlets::Flowlets(std::uint64_t message, std::uint64_t size, std::uint32_t path_mtu)
    : message_bytes(message),
      size_bytes(round_up(std::clamp(size, (message + kMaxCount - 1) / kMaxCount, kMaxSize), path_mtu)),
      count(static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (message + size_bytes - 1) / size_bytes))) {}

}  // namespace paralet
