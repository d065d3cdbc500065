// SPDX-License-Identifier: Apache-2.0
#include "delay_control.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace paralet {
namespace {

constexpr double kAdditiveIncrease = 1.0;  // packets per round trip
constexpr double kSubpacketStep = 0.1;     // of the window per acknowledged packet, while it is below one packet
constexpr double kBeta = 0.8;              // multiplicative decrease per unit of relative excess delay
constexpr double kMaxDecrease = 0.5;       // of one round trip
constexpr Nanos kFirstTimeout = 400 * kMillisecond;  // before the first sample; deep queues must not look like loss
constexpr double kScalingRange = 4.5;  // flow scaling: at most this many extra queue targets for tiny windows

}  // namespace

void DelayControl::on_ack(Nanos now, unsigned packets, Nanos rtt, Nanos base_rtt, bool limited) {
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

  const Nanos base = std::min(base_rtt, min_rtt_);
  // Flow scaling (Swift, section 3.3): many flows on one link mean small windows; their queue varies with the square
  // root of their number, and a larger target for smaller windows also evens out shares.
  const double scaling = std::clamp(1.0 / std::sqrt(window_), 0.0, kScalingRange);
  const double target = static_cast<double>(base) + static_cast<double>(options_.target_queue) * (1.0 + scaling);
  // A queue stands, a scheduler's hiccup passes: a window of packets believes the smaller of two samples in a row.
  const double delay = static_cast<double>(window_ >= 1.0 ? std::min(rtt, previous_rtt_) : rtt);
  previous_rtt_ = rtt;
  // Half a target of queue says that the path is full: exponential growth ends before it overshoots.
  starting_ = starting_ && delay < static_cast<double>(base) + 0.5 * static_cast<double>(options_.target_queue);
  if (window_ < 1.0 && !starting_) {
    const double room = (target - delay) / (target - static_cast<double>(base));  // 1 when there is no queue
    if (limited || room < 0) window_ *= 1.0 + kSubpacketStep * std::clamp(room, -1.0, 1.0);
  } else if (delay >= target) {
    decrease(now, std::max(1.0 - kBeta * (delay - target) / delay, 1.0 - kMaxDecrease));
  } else if (limited) {
    window_ += starting_ ? std::min<double>(packets, window_) : packets * kAdditiveIncrease / window_;
  }
  window_ = std::clamp(window_, kMinWindow, options_.max_window);
}

void DelayControl::on_loss(Nanos now) { decrease(now, 1.0 - kMaxDecrease); }

void DelayControl::on_timeout(Nanos now, bool repeated) {
  if (repeated) {
    starting_ = true;  // what was known of the path is void
    window_ = std::max(std::min(window_, 1.0) * 0.5, kMinWindow);
    last_decrease_ = now;
  } else {
    decrease(now, 1.0 - kMaxDecrease);
  }
}

void DelayControl::decrease(Nanos now, double factor) {
  starting_ = false;
  if (last_decrease_ != -kNever && now - last_decrease_ < srtt_) return;
  last_decrease_ = now;
  window_ = std::max(window_ * factor, kMinWindow);
}

Nanos DelayControl::pacing_interval() const {
  if (window_ >= 1.0) return 0;
  // Not the round trip of the moment: its queue, counted in, would make the spacing lag behind the window.
  const Nanos settled = (min_rtt_ == kNever ? 0 : min_rtt_) + 2 * options_.target_queue;
  return static_cast<Nanos>(static_cast<double>(starting_ ? srtt_ : settled) / window_);
}

Nanos DelayControl::draw_pacing_interval() {
  return static_cast<Nanos>(static_cast<double>(pacing_interval()) * (0.5 + random_.uniform()));
}

Nanos DelayControl::timeout(Nanos floor) const {
  if (srtt_ == 0) return std::max(floor, kFirstTimeout);
  return std::max(floor, srtt_ + 4 * rttvar_);
}

}  // namespace paralet
