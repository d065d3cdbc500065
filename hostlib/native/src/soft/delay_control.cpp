// SPDX-License-Identifier: Apache-2.0
#include "soft/delay_control.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace paralet {
namespace {

constexpr double kAdditiveIncrease = 1.0;  // packets per round trip
// Smaller windows grow by 1/8 of a packet per acknowledgement, little more than windows below one packet do. Otherwise
// a flow with one packet more than the others would push them down further and further.
constexpr double kFullIncreaseFrom = 8.0;
// Where marks rule, by a whole packet per round trip down to one packet, as in DCTCP. A step in proportion to the
// window keeps the ratio of two windows, which marks halve alike: with 1/4 per acknowledgement a late lane of a shared
// link waited longer for its share, and some of 32 lanes took all.
constexpr double kMarkedIncreaseFrom = 1.0;
constexpr double kTripsToFloor = 16.0;
constexpr double kSubpacketStep = 0.1;  // of the window per acknowledged packet, while it is below one packet
// Packets per acknowledged packet, below one packet, after a timeout and until the window has returned and there is a
// queue. Steps in proportion would need 32 acknowledgements from the smallest window to one packet: seconds at 20
// Mbit/s.
constexpr double kRecoveryStep = 0.5;
constexpr double kBeta = 0.8;          // multiplicative decrease per unit of relative excess delay
constexpr double kMaxDecrease = 0.5;   // of one round trip
constexpr double kScalingRange = 4.5;  // flow scaling: at most this many extra queue targets for tiny windows

}  // namespace

/// Delays as doubles, in nanoseconds.
struct DelayControl::Queue {
  double base;    ///< of the path without a queue
  double target;  ///< base and the queue that is aimed at
  double delay;
  /// 1 without a queue, 0 at the target, less above it.
  [[nodiscard]] double room() const { return (target - delay) / (target - base); }
  [[nodiscard]] bool full() const { return delay >= target; }
  /// What remains of the window when it is full.
  [[nodiscard]] double remainder() const {
    return std::max(1.0 - kBeta * (delay - target) / delay, 1.0 - kMaxDecrease);
  }
};

/// The queue by this sample and the one before it. A queue persists while a scheduling delay passes, so a window of one
/// packet or more uses the smaller of the two.
DelayControl::Queue DelayControl::queue(Nanos base, Nanos target, Nanos rtt, Nanos previous) const {
  // Flow scaling (Swift, section 3.3): many flows on one link have small windows, and their queue varies with the
  // square root of their number. A larger target for smaller windows also makes the shares more equal.
  const double scaling = std::clamp(1.0 / std::sqrt(window_), 0.0, kScalingRange);
  return {.base = static_cast<double>(base),
          .target = static_cast<double>(base) + std::max(1.0, static_cast<double>(target)) * (1.0 + scaling),
          .delay = static_cast<double>(window_ >= 1.0 ? std::min(rtt, previous) : rtt)};
}

void DelayControl::on_delivery(const Delivery& delivery) {
  auto& [threshold, cause, starting] = growth_;
  const auto [now, packets, rtt, base_rtt, limited, host_delay] = delivery;
  delivered_ += packets;
  const double doubling = std::min<double>(packets, window_);
  // Below the floor, delay does not count. The window doubles even when a message does not fill it, because the next
  // message may need all of it.
  const bool doubles = window_ >= 1.0 && window_ < options_->delay_floor && window_ < threshold;
  if (doubles) window_ = std::min(window_ + doubling, options_->max_window);
  if (rtt <= 0) return;

  const Nanos base = std::min({base_rtt, round_trip_->smallest(), options_->max_base});
  const Queue whole = queue(base, options_->target_queue, rtt, previous_rtt_);
  previous_rtt_ = rtt;
  std::optional<Queue> network;
  if (host_delay) {
    // The base is that of the whole round trip. The smallest difference of two measurements would be their largest
    // error.
    const Nanos network_rtt = std::max<Nanos>(1, rtt - *host_delay);
    network = queue(base, options_->network_queue, network_rtt, previous_network_rtt_);
    previous_network_rtt_ = network_rtt;
  }
  // At half the target queue the path is full: exponential growth ends here, before it overshoots.
  const bool filled = whole.delay >= whole.base + 0.5 * static_cast<double>(options_->target_queue);
  starting = starting && !filled;
  // Packets from before a timeout tell of the queue that it left. A queue that others fill must not keep the window
  // where an outage has taken it. So it first returns to half of what it was (RFC 5681, section 3.1), or to one packet.
  const bool returned = window_ >= std::min(1.0, before_timeout_.window / 2);
  if (filled && returned && now - rtt > timed_out_at_) timed_out_at_ = kNever;
  if (window_ >= 1.0 && network && network->full()) {
    if (decrease(now, network->remainder(), kMinWindow)) {
      threshold = window_;
      cause = Cause::kNetworkDelay;
    }
    return;
  }
  if (doubles) return;
  const double full_from = cause == Cause::kMark ? kMarkedIncreaseFrom : kFullIncreaseFrom;
  const double step = packets * kAdditiveIncrease / std::max(window_, full_from);
  if (window_ < 1.0 && !starting) {
    // Where the rate is unknown, a host's delay says nothing of the path.
    const double room = (options_->delay_floor > 0 && network ? *network : whole).room();
    if (room < 0) {
      window_ *= 1.0 + kSubpacketStep * std::max(room, -1.0);
    } else if (limited) {
      // Marks shrink a window by a factor. Growth by a factor too would never make shares equal.
      const double growth = cause == Cause::kMark     ? step
                            : timed_out_at_ != kNever ? kRecoveryStep
                                                      : kSubpacketStep * window_;
      window_ += growth * std::min(room, 1.0);
    }
  } else if (window_ < options_->delay_floor) {
    // After losses: back at the floor within 16 round trips. A window that grew by one packet would stay below 2 / p
    // packets while a share p of them is lost.
    const double quick =
        packets * std::max(kAdditiveIncrease, options_->delay_floor / kTripsToFloor) / std::max(window_, 1.0);
    if (limited) window_ += cause == Cause::kOther ? quick : step;
  } else if (whole.full()) {
    if (window_ > options_->delay_floor) {
      decrease(now, whole.remainder(), std::max(options_->delay_floor, kMinWindow));
    }
  } else if (limited) {
    window_ += starting ? doubling : step;
  }
  window_ = std::clamp(window_, kMinWindow, options_->max_window);
}

void DelayControl::on_marks(Nanos now, unsigned packets, unsigned marked) {
  marked_share_.add(now, round_trip_->smoothed(), packets, marked);
  if (marked == 0 || !decrease(now, 1.0 - marked_share_.value() / 2, kMinWindow)) return;
  growth_.threshold = window_;
  growth_.cause = Cause::kMark;
}

void DelayControl::on_gap(Nanos now) { shrink_for_loss(now, 1.0 - kMaxDecrease); }

void DelayControl::on_losses(Nanos now, std::uint64_t packets) {
  if (options_->delay_floor <= 0) return on_gap(now);
  lost_ += packets;
  const double share = static_cast<double>(lost_) / static_cast<double>(lost_ + delivered_);
  shrink_for_loss(now, 1.0 - share * kMaxDecrease);
}

void DelayControl::on_timeout(Nanos now, bool repeated) {
  timed_out_at_ = now;
  if (repeated) {
    growth_.starting = true;  // nothing known of the path is valid any more
    window_ = std::max(std::min(window_, 1.0) * 0.5, least_window());
    last_decrease_ = now;
  } else {
    before_timeout_ = {window_, growth_};
    shrink_for_loss(now, 1.0 - kMaxDecrease);
  }
}

void DelayControl::resume() {
  if (window_ >= options_->initial_window) return;
  window_ = options_->initial_window;
  growth_ = {};
}

void DelayControl::undo_timeout() {
  window_ = before_timeout_.window;
  growth_ = before_timeout_.growth;
  timed_out_at_ = kNever;
}

/// Without a line rate no loss takes a window below one packet: the back-off of timeouts spaces packets.
double DelayControl::least_window() const { return options_->delay_floor > 0 ? std::min(1.0, window_) : kMinWindow; }

void DelayControl::shrink_for_loss(Nanos now, double factor) {
  if (!decrease(now, factor, least_window())) return;
  growth_.threshold = window_;
  // What marks have taken below one packet grows back as after marks.
  if (growth_.cause != Cause::kMark || window_ >= 1.0) growth_.cause = Cause::kOther;
}

bool DelayControl::decrease(Nanos now, double factor, double floor) {
  growth_.starting = false;
  if (last_decrease_ != -kNever && now - last_decrease_ < round_trip_->smoothed()) return false;
  last_decrease_ = now;
  delivered_ = lost_ = 0;
  window_ = std::max(window_ * factor, floor);
  return true;
}

Nanos DelayControl::pacing_interval() const {
  if (window_ >= 1.0) return 0;
  const Nanos smoothed = round_trip_->smoothed();
  const Nanos smallest = round_trip_->smallest();
  // Not the current round trip: it includes the queue, so the spacing would lag behind the window.
  const Nanos settled = (smallest == kNever ? 0 : smallest) + 2 * options_->target_queue;
  // Where switches mark, the queue is shorter than the target, and the round trip barely includes one.
  const bool measured = growth_.starting || (growth_.cause == Cause::kMark && smoothed > 0 && smoothed < settled);
  return static_cast<Nanos>(static_cast<double>(measured ? smoothed : settled) / window_);
}

Nanos DelayControl::draw_pacing_interval() {
  return static_cast<Nanos>(static_cast<double>(pacing_interval()) * (0.5 + random_.uniform()));
}

}  // namespace paralet
