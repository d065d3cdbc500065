// SPDX-License-Identifier: Apache-2.0
#include "verbs/link_state.hpp"

namespace paralet::verbs {
namespace {

std::string seconds(Nanos time) {
  const Nanos milliseconds = time / kMillisecond;
  return std::to_string(static_cast<double>(milliseconds) / 1e3).substr(0, 5);
}

}  // namespace

void LinkState::set(bool up, Nanos now) {
  if (up == !down_) return;
  down_ = !up;
  if (up) {
    log_(port_ + " is up again after " + seconds(now - down_at_) + " s");
    deadline_ = kNever;
    up_at_ = now;
  } else {
    log_(port_ + " went down: connections over it fail unless it comes back within " + seconds(retry_time_) +
         " s (retry_time_s)");
    down_at_ = now;
    deadline_ = now + retry_time_;
  }
}

bool LinkState::expire(Nanos now) {
  if (now < deadline_) return false;
  deadline_ = kNever;
  return true;
}

std::string LinkState::trouble(Nanos now) const {
  if (down_) return "the RDMA port is down";
  if (up_at_ && now - *up_at_ < retry_time_) return "the RDMA port was down";
  return {};
}

}  // namespace paralet::verbs
