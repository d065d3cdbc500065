// SPDX-License-Identifier: Apache-2.0
// Go-back-N (IBTA 9.7.5 and 9.9.2): the responder takes packets in order only and reports each gap once, by a NAK. The
// requester then sends everything again from the gap on. So one lost packet costs all packets behind it, which is why
// congestion control halves the window for it.
//
// A lost acknowledgement, a lost NAK and a lost last packet have no successor that reveals them. Two timers find them:
//
// - probe: after a silence of `probe_after`, or the timeout by measured round trips if that is longer, once between two
//   pieces of progress. Only where it comes before the timeout. Silence this short may be scheduling, so the window
//   stays.
// - timeout: after `min_timeout`, or by measured round trips; doubled for each timeout in a row.
//
// Both send only the oldest packet again (F-RTO, RFC 5682). If the answer also covers a later packet that had asked for
// an acknowledgement, the peer was only slow: it takes packets in order, so none was lost, and the timeout is undone.
// Otherwise the requester goes on from the oldest packet.
#pragma once

#include "soft/loss_recovery.hpp"

namespace paralet {

class GoBackN final : public LossRecovery {
 public:
  using LossRecovery::LossRecovery;

  std::optional<Delivered> acknowledge(std::uint64_t end, const AckNews& news) override;
  void repeat_all() override;
  void receiver_not_ready() override { repeat_all(); }
  [[nodiscard]] Nanos patience() const override;
  [[nodiscard]] unsigned doublings() const override { return in_.flight.timeouts; }
  bool expires_early(Nanos silence) override;
  void probe(Nanos now) override;

 private:
  [[nodiscard]] bool probes_early() const;
  [[nodiscard]] bool ack_requested_before(std::uint64_t end) const;

  std::uint64_t sent_once_from_ = 0;    ///< Karn's algorithm: only packets from here on give round-trip samples
  std::uint64_t sent_once_before_ = 0;  ///< sent_once_from_ before the probe
};

}  // namespace paralet
