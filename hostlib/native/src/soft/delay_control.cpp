// SPDX-License-Identifier: Apache-2.0
#include "soft/delay_control.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

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
// Packets per acknowledged packet, below one packet, after a timeout and until there is a queue. Steps in proportion
// would need 32 acknowledgements from the smallest window to one packet: seconds at 20 Mbit/s.
constexpr double kRecoveryStep = 0.5;
constexpr double kBeta = 0.8;                        // multiplicative decrease per unit of relative excess delay
constexpr double kMaxDecrease = 0.5;                 // of one round trip
constexpr Nanos kFirstTimeout = 400 * kMillisecond;  // before the first sample: a deep queue must not look like loss
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
  const double scaling = std::clamp(1.0 / std::sqrt(size_.window), 0.0, kScalingRange);
  return {.base = static_cast<double>(base),
          .target = static_cast<double>(base) + std::max(1.0, static_cast<double>(target)) * (1.0 + scaling),
          .delay = static_cast<double>(size_.window >= 1.0 ? std::min(rtt, previous) : rtt)};
}

void DelayControl::on_ack(Nanos now, unsigned packets, Nanos rtt, Nanos base_rtt, bool limited,
                          std::optional<Nanos> host_delay) {
  auto& [window, threshold, cause, starting] = size_;
  delivered_ += packets;
  const double doubling = std::min<double>(packets, window);
  // Below the floor, delay does not count. The window doubles even when a message does not fill it, because the next
  // message may need all of it.
  const bool doubles = window >= 1.0 && window < options_->delay_floor && window < threshold;
  if (doubles) window = std::min(window + doubling, options_->max_window);
  if (rtt <= 0) return;
  sampled_at_ = now;
  if (srtt_ == 0) {
    srtt_ = rtt;
    rttvar_ = rtt / 2;
  } else {
    rttvar_ += (std::abs(srtt_ - rtt) - rttvar_) / 4;
    srtt_ += (rtt - srtt_) / 8;
  }
  min_rtt_ = std::min(min_rtt_, rtt);

  const Nanos base = std::min({base_rtt, min_rtt_, options_->max_base});
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
  // Packets from before a timeout tell of the queue that it left.
  if (filled && timed_out_at_ && now - rtt > *timed_out_at_) timed_out_at_.reset();
  if (window >= 1.0 && network && network->full()) {
    if (decrease(now, network->remainder(), kMinWindow)) {
      threshold = window;
      cause = Cause::kNetworkDelay;
    }
    return;
  }
  if (doubles) return;
  const double full_from = cause == Cause::kMark ? kMarkedIncreaseFrom : kFullIncreaseFrom;
  const double step = packets * kAdditiveIncrease / std::max(window, full_from);
  if (window < 1.0 && !starting) {
    // Where the rate is unknown, a host's delay says nothing of the path.
    const double room = (options_->delay_floor > 0 && network ? *network : whole).room();
    if (room < 0) {
      window *= 1.0 + kSubpacketStep * std::max(room, -1.0);
    } else if (limited) {
      // Marks shrink a window by a factor. Growth by a factor too would never make shares equal.
      const double growth = cause == Cause::kMark ? step : timed_out_at_ ? kRecoveryStep : kSubpacketStep * window;
      window += growth * std::min(room, 1.0);
    }
  } else if (window < options_->delay_floor) {
    // After losses: back at the floor within 16 round trips. A window that grew by one packet would stay below 2 / p
    // packets while a share p of them is lost.
    const double quick =
        packets * std::max(kAdditiveIncrease, options_->delay_floor / kTripsToFloor) / std::max(window, 1.0);
    if (limited) window += cause == Cause::kOther ? quick : step;
  } else if (whole.full()) {
    if (window > options_->delay_floor) {
      decrease(now, whole.remainder(), std::max(options_->delay_floor, kMinWindow));
    }
  } else if (limited) {
    window += starting ? doubling : step;
  }
  window = std::clamp(window, kMinWindow, options_->max_window);
}

void DelayControl::on_marks(Nanos now, unsigned packets, unsigned marked) {
  marked_share_.add(now, srtt_, packets, marked);
  if (marked == 0 || !decrease(now, 1.0 - marked_share_.value() / 2, kMinWindow)) return;
  size_.threshold = size_.window;
  size_.cause = Cause::kMark;
}

void DelayControl::on_loss(Nanos now) { shrink_for_loss(now, 1.0 - kMaxDecrease); }

void DelayControl::on_losses(Nanos now, std::uint64_t packets) {
  if (options_->delay_floor <= 0) return on_loss(now);
  lost_ += packets;
  const double share = static_cast<double>(lost_) / static_cast<double>(lost_ + delivered_);
  shrink_for_loss(now, 1.0 - share * kMaxDecrease);
}

void DelayControl::on_timeout(Nanos now, bool repeated) {
  timed_out_at_ = now;
  if (repeated) {
    size_.starting = true;  // nothing known of the path is valid any more
    size_.window = std::max(std::min(size_.window, 1.0) * 0.5, least_window());
    last_decrease_ = now;
  } else {
    before_timeout_ = size_;
    shrink_for_loss(now, 1.0 - kMaxDecrease);
  }
}

void DelayControl::resume() {
  if (size_.window < options_->initial_window) size_ = {.window = options_->initial_window};
}

void DelayControl::undo_timeout() {
  size_ = before_timeout_;
  timed_out_at_.reset();
}

/// Without a line rate no loss takes a window below one packet: the back-off of timeouts spaces packets.
double DelayControl::least_window() const {
  return options_->delay_floor > 0 ? std::min(1.0, size_.window) : kMinWindow;
}

void DelayControl::shrink_for_loss(Nanos now, double factor) {
  if (!decrease(now, factor, least_window())) return;
  size_.threshold = size_.window;
  // What marks have taken below one packet grows back as after marks.
  if (size_.cause != Cause::kMark || size_.window >= 1.0) size_.cause = Cause::kOther;
}

bool DelayControl::decrease(Nanos now, double factor, double floor) {
  size_.starting = false;
  if (last_decrease_ != -kNever && now - last_decrease_ < srtt_) return false;
  last_decrease_ = now;
  delivered_ = lost_ = 0;
  size_.window = std::max(size_.window * factor, floor);
  return true;
}

Nanos DelayControl::pacing_interval() const {
  if (size_.window >= 1.0) return 0;
  // Not the current round trip: it includes the queue, so the spacing would lag behind the window.
  const Nanos settled = (min_rtt_ == kNever ? 0 : min_rtt_) + 2 * options_->target_queue;
  // Where switches mark, the queue is shorter than the target, and the round trip barely includes one.
  const bool measured = size_.starting || (size_.cause == Cause::kMark && srtt_ > 0 && srtt_ < settled);
  return static_cast<Nanos>(static_cast<double>(measured ? srtt_ : settled) / size_.window);
}

Nanos DelayControl::draw_pacing_interval() {
  return static_cast<Nanos>(static_cast<double>(pacing_interval()) * (0.5 + random_.uniform()));
}

Nanos DelayControl::timeout(Nanos floor) const {
  if (srtt_ == 0) return std::max(floor, kFirstTimeout);
  return std::max(floor, srtt_ + 4 * rttvar_);
}

}  // namespace paralet
