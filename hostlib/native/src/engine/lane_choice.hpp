// SPDX-License-Identifier: Apache-2.0
// Which lane of a peer takes a flowlet or a small message. Lanes and measurements in, a lane out: no device, no
// sockets.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "engine/lane.hpp"
#include "engine/sending_contexts.hpp"

namespace paralet {

/// What is measured of lanes: the estimate of a lane with work posted, and the time.
template <typename T>
concept Measurements = requires(const T& measured, const Lane& lane) {
  { measured.estimate(lane) } -> std::same_as<PathEstimate>;
  { measured.now() } -> std::same_as<Nanos>;
};

/// The choice of lanes towards one peer. The lanes are the same in every call.
class LaneChoice {
 public:
  /// Two flowlets keep a lane busy while the first one's acknowledgement travels, as S is four times its share of the
  /// BDP. Where the BDP was underestimated, a lane that has sent everything takes more.
  static constexpr unsigned kDepth = 2;
  /// Small messages that share a lane, one after another or at once.
  static constexpr std::uint16_t kStay = 32;
  /// Round trip of a lane without a sample, for `for_small`.
  static constexpr Nanos kAssumedRtt = 1 * kMillisecond;

  /// What `for_flowlet` found.
  struct Found {
    Lane* lane = nullptr;     ///< nullptr: none, and flowlets wait
    Nanos ready_at = kNever;  ///< then: when a lane becomes ready although nothing arrives, kNever: none does
  };
  /// The lane for the next flowlet: the cheapest that is neither about to change its port nor full. A lane is full when
  /// its sending context is, and, while its window is below one packet, until it may send: a flowlet that waited for
  /// that would miss the lanes that are ready earlier. Short messages that never end would let it wait for ever. So
  /// when kStay of them have overtaken it, it follows those of the cheapest lane.
  template <Measurements M>
  Found for_flowlet(std::span<Lane> lanes, std::uint32_t path_mtu, const M& measured, const SendingContexts& contexts) {
    Found out;
    out.lane = cheapest(lanes, path_mtu, measured, [&](const Lane& lane, const PathEstimate& path, Nanos t) {
      const auto index = static_cast<std::size_t>(&lane - lanes.data());
      const bool room = !lane.leaving() && (contexts.outstanding(lane, index) < kDepth ||
                                            (path.app_limited && contexts.alone(lane, index)));
      // No acknowledgement comes where nothing is under way: the estimate is from before the last one.
      const bool ready = may_overtake_ == 0 || path.ready_at <= t || (lane.unfinished == 0 && path.ready_at == kNever);
      if (room && !ready) out.ready_at = std::min(out.ready_at, path.ready_at);
      return room && ready;
    });
    if (out.lane != nullptr) {
      may_overtake_ = kAny;
    } else if (may_overtake_ == kAny) {
      may_overtake_ = kStay;
    }
    return out;
  }
  /// The lane for what must not wait: the cheapest of all `lanes`, of which there is at least one.
  template <Measurements M>
  Lane& for_urgent(std::span<Lane> lanes, std::uint32_t path_mtu, const M& measured) {
    overtake();
    return cheapest_of_all(lanes, path_mtu, measured);
  }
  /// The lane for a small message. Consecutive ones share a lane while its round trip is good, so that one ACK covers
  /// several.
  template <Measurements M>
  Lane& for_small(std::span<Lane> lanes, std::uint32_t path_mtu, const M& measured) {
    const bool stays = small_left_ > 0 && !small_->leaving() && small_->outstanding < kStay &&
                       measured.estimate(*small_).smoothed_rtt <= 2 * small_rtt_;
    if (!stays) {
      small_ = &cheapest_of_all(lanes, path_mtu, measured);
      small_left_ = kStay;
      small_rtt_ = std::max(measured.estimate(*small_).smoothed_rtt, kAssumedRtt);
    }
    --small_left_;
    overtake();
    return *small_;
  }
  /// The next small message chooses anew.
  void leave_small() { small_left_ = 0; }

 private:
  static constexpr std::uint16_t kAny = 0xFFFF;

  void overtake() {
    if (may_overtake_ > 0 && may_overtake_ != kAny) --may_overtake_;
  }
  template <Measurements M>
  Lane& cheapest_of_all(std::span<Lane> lanes, std::uint32_t path_mtu, const M& measured) {
    return *cheapest(lanes, path_mtu, measured,
                     [](const Lane& /*lane*/, const PathEstimate& /*path*/, Nanos /*t*/) { return true; });
  }
  /// The lane that would finish a flowlet first by its round trip and window. Ties go to the lane with fewer
  /// outstanding bytes, then round robin.
  template <Measurements M, typename Allowed>
  Lane* cheapest(std::span<Lane> lanes, std::uint32_t path_mtu, const M& measured, Allowed allowed) {
    constexpr Nanos kLastChoice = 1000 * kSecond;
    const Nanos t = measured.now();
    Lane* best = nullptr;
    std::pair<Nanos, std::uint64_t> least;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      Lane& lane = lanes[(next_ + i) % lanes.size()];
      // Most lanes are idle where there are many. Their estimate is in the Lane, which saves the cache misses of the
      // QP.
      PathEstimate path = lane.unfinished > 0 ? measured.estimate(lane) : lane.last_estimate;
      if (lane.unfinished == 0 && t >= path.fresh_until) path.smoothed_rtt = 0;
      if (!allowed(lane, path, t)) continue;
      const double packets = static_cast<double>(lane.outstanding_bytes) / path_mtu + 1.0;
      const double delay = static_cast<double>(path.smoothed_rtt) * std::max(1.0, packets / path.window);
      const std::pair cost(static_cast<Nanos>(delay) + (lane.shunned ? kLastChoice : 0), lane.outstanding_bytes);
      if (best != nullptr && cost >= least) continue;
      best = &lane;
      least = cost;
      if (least == std::pair<Nanos, std::uint64_t>()) break;  // idle and without a sample: no lane costs less
    }
    if (best != nullptr) next_ = static_cast<std::uint32_t>(best - lanes.data()) + 1;
    return best;
  }

  std::uint32_t next_ = 0;  ///< the lane at which the search starts
  std::uint16_t small_left_ = 0;
  std::uint16_t may_overtake_ = kAny;  ///< messages, the flowlets that wait; kAny: none waits
  Lane* small_ = nullptr;
  Nanos small_rtt_ = 0;  ///< of `small_` when it was chosen
};

}  // namespace paralet
