// SPDX-License-Identifier: Apache-2.0
// The law of congestion control by delay, as tests drive it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "soft/delay_control.hpp"

namespace paralet::test {

/// The law and the round trips of one QP, told of acknowledgements as a requester tells them.
class Control {
 public:
  explicit Control(const CongestionOptions& options, std::uint64_t seed = 0)
      : round_trip_(std::make_unique<RoundTrip>()), law_(std::make_unique<DelayControl>(options, *round_trip_, seed)) {}
  explicit Control(CongestionOptions&&, std::uint64_t = 0) = delete;  // the law would outlive them

  void on_ack(Nanos now, unsigned packets, Nanos rtt, Nanos base_rtt, bool limited,
              std::optional<Nanos> host_delay = {}) {
    if (rtt > 0) round_trip_->sample(now, rtt);
    law_->on_delivery({.now = now,
                       .packets = packets,
                       .rtt = rtt,
                       .base_rtt = base_rtt,
                       .limited = limited,
                       .host_delay = host_delay});
  }
  void on_marks(Nanos now, unsigned packets, unsigned marked) { law_->on_marks(now, packets, marked); }
  void on_gap(Nanos now) { law_->on_gap(now); }
  void on_losses(Nanos now, std::uint64_t packets) { law_->on_losses(now, packets); }
  void on_timeout(Nanos now, bool repeated) { law_->on_timeout(now, repeated); }
  void undo_timeout() { law_->undo_timeout(); }
  void resume() { law_->resume(); }
  [[nodiscard]] double window() const { return law_->window(); }
  [[nodiscard]] double marked_share() const { return law_->marked_share(); }
  [[nodiscard]] Nanos pacing_interval() const { return law_->pacing_interval(); }
  Nanos draw_pacing_interval() { return law_->draw_pacing_interval(); }
  [[nodiscard]] Nanos smoothed_rtt() const { return round_trip_->smoothed(); }
  [[nodiscard]] Nanos min_rtt() const { return round_trip_->smallest(); }
  [[nodiscard]] Nanos timeout(Nanos floor) const { return round_trip_->timeout(floor); }

 private:
  std::unique_ptr<RoundTrip> round_trip_;
  std::unique_ptr<DelayControl> law_;
};

}  // namespace paralet::test
