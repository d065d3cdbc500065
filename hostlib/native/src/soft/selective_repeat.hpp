// SPDX-License-Identifier: Apache-2.0
// Selective repeat, sending side: acknowledgements list the packets that arrived early (reassembly.hpp), and only the
// missing ones are sent again. docs/notes/selective-repeat.md says why each rule is as it is.
//
// - A packet is lost when one that was sent later has arrived and a reordering window has passed (RACK, RFC 8985;
//   scoreboard.hpp). The time until then is Scoreboard::deadline.
// - Probe: after a silence the newest packet is sent again, since the answer lists all losses and the newest is the
//   likeliest to be missing without a successor that shows it (tail loss probe, RFC 8985, section 7). The next probes
//   send the oldest packet, or what is known to be lost.
// - The silence is the timeout by measured round trips, at least `probe_after`. Where packets get lost it is a round
//   trip and a quarter: there the variation of round trips does not count, since lost or late acknowledgements inflate
//   it. A quarter is allowed as for reordering, and not a whole one (RFC 8985, section 7.2): a probe costs little, and
//   peers acknowledge the last packet at once. Elsewhere silence means that the peer is slow.
// - Every second probe doubles the silence. When it lasts as long as a timeout, congestion control is told of one.
#pragma once

#include "soft/loss_recovery.hpp"
#include "soft/reassembly.hpp"

namespace paralet {

class SelectiveRepeat final : public LossRecovery {
 public:
  explicit SelectiveRepeat(RequesterState& requester) : LossRecovery(requester) {
    requester.flight.reach = Reassembly::kWindow;
  }

  std::optional<Delivered> acknowledge(std::uint64_t end, const AckNews& news) override;
  void find_losses(Nanos now) override;
  void repeat_all() override;
  void receiver_not_ready() override;
  void forget_path() override { probes_ = 0; }
  [[nodiscard]] Nanos patience() const override;
  [[nodiscard]] unsigned doublings() const override { return probes_ / 2; }
  bool expires_early(Nanos silence) override;
  void probe(Nanos now) override;

 private:
  Nanos probed_at_ = 0;
  unsigned probes_ = 0;  ///< since the last progress
};

}  // namespace paralet
