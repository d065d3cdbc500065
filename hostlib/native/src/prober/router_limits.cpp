// SPDX-License-Identifier: Apache-2.0
#include "prober/router_limits.hpp"

#include <algorithm>
#include <array>

namespace paralet::prober {
namespace {

constexpr double kRounding = 1e-6;  // of tokens: a share is no binary fraction

}  // namespace

Nanos RouterLimits::full_enough_at(const Bucket& bucket, double share) const {
  const double lacking = share - kRounding - bucket.tokens;
  if (lacking <= 0) return bucket.at;
  const double wait = lacking / rate_ + 1;
  return wait < static_cast<double>(kNever - bucket.at) / 2 ? bucket.at + static_cast<Nanos>(wait) : kNever;
}

void RouterLimits::take(Bucket& bucket, double share, Nanos now) const {
  bucket.tokens = std::min(burst_, bucket.tokens + static_cast<double>(now - bucket.at) * rate_) - share;
  bucket.at = now;
}

std::span<const std::size_t> RouterLimits::unknown(std::uint8_t ttl) {
  static constexpr auto kNumbers = [] {
    std::array<std::size_t, kHops> out{};
    for (std::size_t hop = 0; hop < kHops; ++hop) out[hop] = hop;
    return out;
  }();
  return std::span(kNumbers).subspan(ttl, 1);
}

Nanos RouterLimits::ready_at(std::span<const std::size_t> routers) const {
  if (rate_ == 0) return 0;
  Nanos latest = 0;
  for (const std::size_t one : routers) {
    latest = std::max(latest, full_enough_at(buckets_[one], 1 / static_cast<double>(routers.size())));
  }
  return latest;
}

Nanos RouterLimits::any_ready_at(std::span<const std::size_t> routers) const {
  if (rate_ == 0) return 0;
  Nanos soonest = kNever;
  for (const std::size_t one : routers) soonest = std::min(soonest, full_enough_at(buckets_[one], 1));
  return soonest;
}

void RouterLimits::charge(std::span<const std::size_t> routers, Nanos now) {
  if (rate_ == 0) return;
  for (const std::size_t one : routers) take(buckets_[one], 1 / static_cast<double>(routers.size()), now);
}

void RouterLimits::refund(std::span<const std::size_t> charged, Nanos now) {
  if (rate_ == 0) return;
  for (const std::size_t one : charged) {
    if (one >= kHops) take(buckets_[one], -1 / static_cast<double>(charged.size()), now);
  }
}

void RouterLimits::answered(Routers& routers, const IpAddress& router, Nanos now,
                            std::span<const std::size_t> charged) {
  if (rate_ == 0) return;
  const auto [found, fresh] = numbers_.try_emplace(router, 0);
  if (fresh) {
    if (buckets_.size() >= kHops + kMostRouters) {
      numbers_.erase(found);
      return;
    }
    found->second = buckets_.size();
    buckets_.push_back({.tokens = burst_ - 1, .at = now});  // it has just answered
  }
  refund(charged, now);
  if (!fresh && !charged.empty()) take(buckets_[found->second], 1, now);
  if (std::ranges::find(routers, found->second) == routers.end()) routers.push_back(found->second);
}

}  // namespace paralet::prober
