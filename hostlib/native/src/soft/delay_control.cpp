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
constexpr double kTripsToFloor = 16.0;
constexpr double kSubpacketStep = 0.1;  // of the window per acknowledged packet, while it is below one packet
constexpr double kBeta = 0.8;           // multiplicative decrease per unit of relative excess delay
constexpr double kMaxDecrease = 0.5;    // of one round trip
constexpr Nanos kFirstTimeout = 400 * kMillisecond;  // before the first sample: a deep queue must not look like loss
constexpr double kScalingRange = 4.5;  // flow scaling: at most this many extra queue targets for tiny windows

}  // namespace

void DelayControl::on_ack(Nanos now, unsigned packets, Nanos rtt, Nanos base_rtt, bool limited) {
  auto& [window, starting, threshold] = size_;
  delivered_ += packets;
  const double doubling = std::min<double>(packets, window);
  // Below the floor, delay does not count. The window doubles even when a message does not fill it, because the next
  // message may need all of it.
  const bool doubles = window < options_.delay_floor && window < threshold;
  if (doubles) window = std::min(window + doubling, options_.max_window);
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

  const Nanos base = std::min({base_rtt, min_rtt_, options_.max_base});
  // Flow scaling (Swift, section 3.3): many flows on one link have small windows, and their queue varies with the
  // square root of their number. A larger target for smaller windows also makes the shares more equal.
  const double scaling = std::clamp(1.0 / std::sqrt(window), 0.0, kScalingRange);
  const double target = static_cast<double>(base) + static_cast<double>(options_.target_queue) * (1.0 + scaling);
  // A queue persists while a scheduling delay passes, so a window of one packet or more uses the smaller of two
  // samples.
  const double delay = static_cast<double>(window >= 1.0 ? std::min(rtt, previous_rtt_) : rtt);
  previous_rtt_ = rtt;
  // At half the target queue the path is full: exponential growth ends here, before it overshoots.
  starting = starting && delay < static_cast<double>(base) + 0.5 * static_cast<double>(options_.target_queue);
  if (doubles) return;
  if (window < options_.delay_floor) {
    // After losses: back at the floor within 16 round trips. A window that grew by one packet would stay below 2 / p
    // packets while a share p of them is lost.
    if (limited) window += packets * std::max(kAdditiveIncrease, options_.delay_floor / kTripsToFloor) / window;
  } else if (window < 1.0 && !starting) {
    const double room = (target - delay) / (target - static_cast<double>(base));  // 1 when there is no queue
    if (limited || room < 0) window *= 1.0 + kSubpacketStep * std::clamp(room, -1.0, 1.0);
  } else if (delay >= target) {
    decrease(now, std::max(1.0 - kBeta * (delay - target) / delay, 1.0 - kMaxDecrease), options_.delay_floor);
  } else if (limited) {
    window += starting ? doubling : packets * kAdditiveIncrease / std::max(window, kFullIncreaseFrom);
  }
  window = std::clamp(window, least_window(), options_.max_window);
}

void DelayControl::on_loss(Nanos now) { shrink_for_loss(now); }

void DelayControl::on_losses(Nanos now, std::uint64_t packets) {
  if (options_.delay_floor <= 0) return on_loss(now);
  lost_ += packets;
  const double share = static_cast<double>(lost_) / static_cast<double>(lost_ + delivered_);
  if (decrease(now, 1.0 - share * kMaxDecrease, least_window())) size_.threshold = size_.window;
}

void DelayControl::on_timeout(Nanos now, bool repeated) {
  if (repeated) {
    size_.starting = true;  // nothing known of the path is valid any more
    size_.window = std::max(std::min(size_.window, 1.0) * 0.5, least_window());
    last_decrease_ = now;
  } else {
    before_timeout_ = size_;
    shrink_for_loss(now);
  }
}

void DelayControl::undo_timeout() { size_ = before_timeout_; }

void DelayControl::shrink_for_loss(Nanos now) {
  if (decrease(now, 1.0 - kMaxDecrease, least_window())) size_.threshold = size_.window;
}

bool DelayControl::decrease(Nanos now, double factor, double floor) {
  size_.starting = false;
  if (last_decrease_ != -kNever && now - last_decrease_ < srtt_) return false;
  last_decrease_ = now;
  delivered_ = lost_ = 0;
  size_.window = std::max({size_.window * factor, floor, least_window()});
  return true;
}

Nanos DelayControl::pacing_interval() const {
  if (size_.window >= 1.0) return 0;
  // Not the current round trip: it includes the queue, so the spacing would lag behind the window.
  const Nanos settled = (min_rtt_ == kNever ? 0 : min_rtt_) + 2 * options_.target_queue;
  return static_cast<Nanos>(static_cast<double>(size_.starting ? srtt_ : settled) / size_.window);
}

Nanos DelayControl::draw_pacing_interval() {
  return static_cast<Nanos>(static_cast<double>(pacing_interval()) * (0.5 + random_.uniform()));
}

Nanos DelayControl::timeout(Nanos floor) const {
  if (srtt_ == 0) return std::max(floor, kFirstTimeout);
  return std::max(floor, srtt_ + 4 * rttvar_);
}

}  // namespace paralet
