// SPDX-License-Identifier: Apache-2.0
// The sending half of a queue pair, without I/O: requests in, data packets out, acknowledgements in, time as an
// argument (IBTA volume 1, sections 9.7 and 9.9). It keeps the requests and their order, the window and the timers. Two
// parts decide the rest: loss recovery what is sent again (loss_recovery.hpp), and a law of congestion control how much
// may be in flight (congestion_control.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "backend/work.hpp"
#include "base/clock.hpp"
#include "base/ring.hpp"
#include "soft/congestion_control.hpp"
#include "soft/flight.hpp"
#include "soft/go_back_n.hpp"
#include "soft/rc_qp_options.hpp"
#include "soft/round_trip.hpp"
#include "soft/selective_repeat.hpp"
#include "wire/wire.hpp"

namespace paralet {

class Requester {
 public:
  /// `shared` outlives the requester.
  explicit Requester(RcQpShared& shared);

  /// Queues a request. On a failed QP it completes at once as flushed.
  void post(const WorkRequest& request);
  /// The next data packet if the window and the timers allow one now.
  std::optional<OutgoingPacket> next_packet(Nanos now);
  /// Bytes of the packet that next_packet would return, BTH to ICRC. Only when it would return one.
  [[nodiscard]] std::size_t next_packet_bytes() const;
  /// Whether next_packet would return a packet.
  [[nodiscard]] bool can_send(Nanos now) const;
  /// Whether enough packets for a burst may leave now. Packets that the window held back leave together after an
  /// acknowledgement, not one by one. True whenever next_packet has something and nothing is in flight.
  [[nodiscard]] bool should_send(Nanos now) const;
  /// Packets that next_packet would return in a row.
  [[nodiscard]] std::uint64_t sendable(Nanos now) const;
  /// Changes RcQpOptions::probe_after for timers that are armed from now on.
  void probe_after(Nanos silence) { state_.shared.options.probe_after = silence; }
  /// Whether packets have been lost on the way to the peer, here or on another QP (expect_loss). Selective repeat
  /// probes earlier then.
  [[nodiscard]] bool lossy() const { return state_.flight.lossy; }
  void expect_loss() { state_.flight.lossy = true; }

  /// An ACKNOWLEDGE packet for this QP, which has waited in the socket for `age`. `base_rtt`: smallest round trip to
  /// the peer.
  void on_acknowledge(const wire::Packet& packet, Nanos now, Nanos base_rtt, Nanos age = 0);
  /// A congestion notification packet (CNP) for this QP. It stands for marks since the peer sent the one before, so all
  /// packets of the next acknowledgement count as marked. Peers that count marks send none.
  void on_congestion_notification();
  /// When on_timer has work, or when can_send may become true without a packet. kNever if neither.
  [[nodiscard]] Nanos deadline() const;
  void on_timer(Nanos now);
  /// The path has changed and all packets in flight on the old one are lost: they are sent again at once.
  void on_path_changed(Nanos now);

  /// Fails every queued request with `status`.
  void fail(Status status);
  /// Sends nothing from now on, and keeps the requests and the retry time: `stop` or `fail` follows.
  void hold() { held_ = true; }
  /// Sends nothing from now on, and keeps the requests.
  void stop();
  /// After stop: Backend::take_back.
  std::vector<WorkRequest> take_back(std::uint32_t arrived);

  /// The state of sending before a batch. `rewind` restores it when the kernel did not take the packets.
  struct Checkpoint {
    std::uint64_t next;
    std::uint64_t highest_sent;
    std::uint32_t since_ack_request;
    bool probe_due;
    QpCounters counters;
  };
  [[nodiscard]] Checkpoint checkpoint();
  void rewind(const Checkpoint& checkpoint);
  /// Frees the memory that an idle QP keeps for its next requests.
  void release_spare();

  [[nodiscard]] bool failed() const { return failed_; }
  /// Whether everything posted has been sent and the window has room for more.
  [[nodiscard]] bool app_limited() const {
    return !failed_ && state_.flight.next == state_.flight.posted && state_.flight.board.lost() == 0 &&
           static_cast<double>(state_.flight.in_network()) < state_.control->window();
  }
  /// When a packet that is posted now may leave, while the window is below one packet, and kNever before the packet in
  /// flight is acknowledged; else 0.
  [[nodiscard]] Nanos ready_at() const {
    if (state_.control->window() >= 1.0) return 0;
    return idle() ? pace_until_ : kNever;
  }
  [[nodiscard]] bool idle() const { return work_.empty(); }
  [[nodiscard]] bool all_acknowledged() const { return state_.flight.all_acknowledged(); }
  [[nodiscard]] std::uint64_t acknowledged_packets() const { return state_.flight.unacked; }
  /// How long packets in flight have been waiting for an acknowledgement.
  [[nodiscard]] Nanos silence(Nanos now) const { return all_acknowledged() ? 0 : now - state_.flight.last_progress; }
  [[nodiscard]] const RcQpOptions& options() const { return state_.shared.options; }
  [[nodiscard]] const QpCounters& counters() const { return state_.shared.counters; }
  [[nodiscard]] const CongestionControl& control() const { return *state_.control; }
  [[nodiscard]] const RoundTrip& round_trip() const { return state_.round_trip; }

 private:
  struct Work {
    WorkRequest request;
    std::uint64_t first = 0;  ///< position of its first packet
    std::uint64_t end = 0;    ///< one past its last
  };
  /// In place, since a device may have thousands of QPs.
  using Recovery = std::variant<GoBackN, SelectiveRepeat>;

  [[nodiscard]] static Recovery recovery_for(RequesterState& state);
  [[nodiscard]] std::uint32_t psn_of(std::uint64_t position) const;
  [[nodiscard]] std::pair<std::uint64_t, std::size_t> upcoming() const;
  [[nodiscard]] AckNews read(const wire::Packet& acknowledgement, Nanos now, Nanos base_rtt, Nanos age) const;
  bool advance(std::uint64_t acknowledged_end, const AckNews& news);
  void tell_control(const LossRecovery::Delivered& delivered, const AckNews& news);
  void retire_acknowledged(std::uint64_t acknowledged_end, Nanos now);
  void go_back(Nanos now);
  void complete(const Work& work, Status status);
  void arm_timer(Nanos now);

  [[nodiscard]] LossRecovery& recovery();

  RequesterState state_;
  Recovery recovery_;

  Ring<Work> work_;
  Nanos pace_until_ = 0;
  Nanos rnr_until_ = 0;
  Nanos timer_ = kNever;
  std::uint32_t cursor_ = 0;  ///< index in work_ of the request that holds the next position to send, or an earlier one
  std::uint32_t consumed_ = 0;       ///< ended requests that took a receive of the peer
  std::uint32_t counted_marks_ = 0;  ///< the peer's count of marked packets when congestion control last used it
  bool notified_ = false;            ///< by a congestion notification packet, since the last acknowledgement
  bool resumes_ = false;             ///< work came when there was none, and no packet of it has been sent
  bool held_ = false;
  bool failed_ = false;
};

}  // namespace paralet
