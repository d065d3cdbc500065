// SPDX-License-Identifier: Apache-2.0
#include "verbs/fences.hpp"

#include "base/errors.hpp"

namespace paralet::verbs {

void Fences::post(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) {
  waiting_.push_back({.kind = WorkKind::kRead,
                      .cookie = cookie,
                      .data = &read_,
                      .length = sizeof read_,
                      .remote_address = memory_.remote_address(rkey) + offset,
                      .rkey = memory_.remote_key(rkey)});
  if (creating_) return;
  if (qpn_ != 0 && qps_.at(qpn_).sends.failed()) qps_.destroy(std::exchange(qpn_, 0));
  if (qpn_ != 0) {
    start();
    return;
  }
  creating_ = true;
  slow_calls_.start(
      [this, region = region_]() -> SlowCalls::Then { return [this, created = create(region)] { take(created); }; });
}

Fences::Created Fences::create(std::uint32_t region) {
  Created out{.region = region};
  try {
    if (out.region == 0) out.region = memory_.register_sink(&read_, sizeof read_);
    out.qpn = qps_.create_loopback();
  } catch (const DeviceError& error) {
    out.error = error.what();
  }
  return out;
}

void Fences::take(const Created& created) {
  creating_ = false;
  region_ = created.region;
  qpn_ = created.qpn;
  if (qpn_ != 0) qps_.adopt(qpn_);
  if (!created.error.empty()) log_("received data cannot be flushed to device memory: " + created.error);
  start();
}

/// Posts the fences that wait for the queue pair. Without it they fail.
void Fences::start() {
  for (WorkRequest& fence : std::exchange(waiting_, {})) {
    fence.memory = region_;
    if (qpn_ != 0) {
      qps_.post(qpn_, fence);
    } else {
      completions_.push_back({.kind = Completion::Kind::kFenced, .status = Status::kLocal, .cookie = fence.cookie});
    }
  }
}

}  // namespace paralet::verbs
