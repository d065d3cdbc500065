// SPDX-License-Identifier: Apache-2.0
// One reliable connection (RC) queue pair as a state machine without I/O: packets in, packets out, time as an argument.
// IBTA specification volume 1, sections 9.7 (reliable service) and 9.9 (error detection). Go-back-N repairs losses, as
// in RoCE NICs: the responder accepts packets in order only and reports each gap once. With a peer that can do it,
// selective repeat does: the responder keeps packets that arrive early, acknowledgements list them, and the requester
// sends only what is missing (reassembly.hpp, scoreboard.hpp; docs/protocol.md).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/work.hpp"
#include "base/clock.hpp"
#include "base/ring.hpp"
#include "soft/delay_control.hpp"
#include "soft/memory_table.hpp"
#include "soft/reassembly.hpp"
#include "soft/scoreboard.hpp"
#include "wire/wire.hpp"

namespace paralet {

/// The receive buffers that the QPs of a device share (a shared receive queue, IBTA 10.2.9). An empty queue is answered
/// with RNR NAKs.
using ReceiveQueue = Ring<ReceiveBuffer>;

/// What the QPs of a device share. It outlives them.
struct RcQpContext {
  const MemoryTable& memory;
  ReceiveQueue& receive_queue;
  std::vector<Completion>& completions;
  DelayControlOptions control = {};
  Nanos min_timeout = 5 * kMillisecond;  ///< floor of the retransmission timeout
  Nanos retry_time = 10 * kSecond;       ///< without any progress for this long, a QP fails
};

struct RcQpOptions {
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
  std::uint32_t remote_qpn = 0;
  std::uint32_t remote_first_psn = 0;
  std::uint32_t path_mtu = 1024;  ///< payload bytes: 256, 512, 1024, 2048 or 4096
  std::uint32_t burst = 1;        ///< packets that cost little more to send together than one alone
  Nanos probe_after = kNever;  ///< floor of the silence after which the oldest packet is sent once before the timeout
  ReassemblyMemory* reassembly = nullptr;  ///< for selective repeat, which both ends use; nullptr: go-back-N
  bool host_delays = false;                ///< acknowledgements of both ends say how long the newest packet has waited
  bool mark_counts = false;  ///< acknowledgements of both ends count the packets that came with a congestion mark
};

/// One packet to put on the wire: header, then payload, then pad zero bytes, then the ICRC.
struct OutgoingPacket {
  wire::Header header;
  std::span<const std::byte> payload;
  std::uint8_t pad = 0;
};

class RcQp {
 public:
  RcQp(const RcQpOptions& options, RcQpContext& context);

  // -- requester ------------------------------------------------------------------------------------------------
  /// Queues a request. On a failed QP it completes at once as flushed.
  void post(const WorkRequest& request);
  /// The next data packet if the window and the timers allow one now. `base_rtt`: smallest round trip to the peer.
  std::optional<OutgoingPacket> next_packet(Nanos now);
  /// Bytes of the packet that next_packet would return, BTH to ICRC. Only when it would return one.
  [[nodiscard]] std::size_t next_packet_bytes() const;
  /// Whether next_packet would return a packet.
  [[nodiscard]] bool can_send(Nanos now) const;
  /// Whether enough packets for a burst may leave now. Packets that the window held back leave together after an
  /// acknowledgement, not one by one. True whenever next_packet has something and nothing is in flight.
  [[nodiscard]] bool should_send(Nanos now) const;
  /// Changes RcQpOptions::probe_after for timers that are armed from now on.
  void probe_after(Nanos silence) { options_.probe_after = silence; }
  /// Whether packets have been lost on the way to the peer, here or on another QP (expect_loss). Selective repeat
  /// probes earlier then.
  [[nodiscard]] bool lossy() const { return lossy_; }
  void expect_loss() { lossy_ = true; }
  /// Packets that next_packet would return in a row.
  [[nodiscard]] std::uint64_t sendable(Nanos now) const;
  /// An ACKNOWLEDGE packet for this QP, which has waited in the socket for `age`.
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
  /// Sends and accepts nothing from now on, and keeps the requests. Returns the messages that have arrived so far.
  std::uint32_t stop();
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

  // -- responder ------------------------------------------------------------------------------------------------
  /// Where the missing payloads of the WRITE in progress go, without that of its last packet. Empty when no WRITE is in
  /// progress.
  [[nodiscard]] std::span<std::byte> placement_target() const;
  /// A request packet for this QP whose ICRC was verified. Its payload may already be in its final place. `marked`: a
  /// switch has set its congestion mark. `arrived`: when it came to the socket.
  void on_request(const wire::Packet& packet, bool marked = false, Nanos arrived = 0);
  /// Whether the acknowledgement that is due must not be delayed: the sender waits for it, or it is a NAK.
  [[nodiscard]] bool acknowledgement_urgent() const { return nak_due_ || ack_urgent_; }
  /// The receive buffer of an unfinished SEND, nullptr when there is none. Post it again when the QP is destroyed.
  [[nodiscard]] const ReceiveBuffer* held_buffer() const {
    return in_message_ && !message_is_write_ ? &send_buffer_ : nullptr;
  }
  /// Whether packets were accepted that no acknowledgement covers yet.
  [[nodiscard]] bool has_unacknowledged() const { return unacknowledged_ > 0; }
  /// The acknowledgement that is due, if any; acknowledgements coalesce until taken. Its payload is valid until the
  /// next call of on_request.
  std::optional<OutgoingPacket> take_acknowledgement(Nanos now = 0);

  [[nodiscard]] bool failed() const { return failed_; }
  /// Whether everything posted has been sent and the window has room for more.
  [[nodiscard]] bool hungry() const {
    return !failed_ && next_ == posted_ && board_.lost() == 0 && static_cast<double>(in_flight()) < control_.window();
  }
  [[nodiscard]] bool idle() const { return work_.empty(); }
  [[nodiscard]] bool all_acknowledged() const { return unacked_ == highest_sent_; }
  [[nodiscard]] std::uint64_t acknowledged_packets() const { return unacked_; }
  /// How long packets in flight have been waiting for an acknowledgement.
  [[nodiscard]] Nanos silence(Nanos now) const { return all_acknowledged() ? 0 : now - last_progress_; }
  [[nodiscard]] std::uint32_t qpn() const { return options_.qpn; }
  [[nodiscard]] const RcQpOptions& options() const { return options_; }
  [[nodiscard]] const QpCounters& counters() const { return counters_; }
  [[nodiscard]] const DelayControl& control() const { return control_; }

 private:
  // Requester positions count packets from 0; the PSN on the wire is the first PSN plus the position, modulo 2^24.
  struct Work {
    WorkRequest request;
    std::uint64_t first = 0;  ///< position of its first packet
    std::uint64_t end = 0;    ///< one past its last
  };

  [[nodiscard]] std::uint32_t psn_of(std::uint64_t position) const;
  [[nodiscard]] bool selective() const { return early_.enabled(); }
  /// Packets in the network, as far as known.
  [[nodiscard]] std::uint64_t in_flight() const { return next_ - unacked_ - board_.sacked() - board_.lost(); }
  [[nodiscard]] Scoreboard::Range flight() const { return {unacked_, highest_sent_}; }
  [[nodiscard]] std::uint64_t unsent() const;
  [[nodiscard]] std::pair<std::uint64_t, std::size_t> upcoming() const;
  [[nodiscard]] double min_room() const;
  /// What an acknowledgement says beside its PSN, and when and to which path.
  struct News {
    Nanos now;
    Nanos base_rtt;
    std::uint32_t marks;              ///< the peer's count of marked packets
    std::optional<Nanos> host_delay;  ///< of the acknowledgement and of the packet that it answers
    std::span<const std::byte> bitmap;
  };
  [[nodiscard]] News read(const wire::Packet& acknowledgement, Nanos now, Nanos base_rtt, Nanos age) const;
  void advance(std::uint64_t acknowledged_end, const News& news);
  void control_delivered(unsigned packets, Nanos rtt, bool limited, const News& news);
  void retire_acknowledged(std::uint64_t acknowledged_end, Nanos now);
  bool advance_selectively(std::uint64_t acknowledged_end, const News& news);
  void detect_losses(Nanos now);
  void go_back(Nanos now);
  void probe(Nanos now);
  [[nodiscard]] bool probes_early() const;
  [[nodiscard]] Nanos silence_before_probe() const;
  [[nodiscard]] bool ack_requested_before(std::uint64_t end) const;
  void complete(const Work& work, Status status);
  void arm_timer(Nanos now);

  void respond_nak(std::uint8_t syndrome);
  void note_gap(std::int32_t distance);
  [[nodiscard]] std::byte* place_of(std::uint32_t distance, const wire::Packet& packet) const;
  bool take(const wire::Packet& packet);
  std::optional<std::uint8_t> accept(const wire::Packet& packet);  ///< the NAK syndrome, or nothing when taken

  RcQpOptions options_;
  RcQpContext& context_;
  DelayControl control_;
  QpCounters counters_;

  Ring<Work> work_;
  std::size_t cursor_ = 0;          ///< index in work_ of the request that holds next_
  std::uint64_t unacked_ = 0;       ///< oldest position not acknowledged
  std::uint64_t next_ = 0;          ///< next position to send
  std::uint64_t highest_sent_ = 0;  ///< one past the highest position ever sent
  std::uint64_t posted_ = 0;        ///< one past the last queued position
  Scoreboard board_;
  std::uint64_t sent_once_from_ = 0;  ///< Karn's algorithm: only packets from here on give round-trip samples
  Nanos pace_until_ = 0;
  Nanos rnr_until_ = 0;
  Nanos timer_ = kNever;
  Nanos last_progress_ = 0;
  bool resumes_ = false;                ///< work came when there was none, and no packet of it has been sent
  std::uint64_t sent_once_before_ = 0;  ///< sent_once_from_ before the probe
  Nanos probed_at_ = 0;

  // Responder.
  Reassembly early_;                   ///< packets behind a missing one
  Nanos newest_arrived_ = 0;           ///< the newest packet that was no copy
  std::uint64_t seen_behind_gap_ = 0;  ///< bit i: PSN expected_psn_ + 1 + i came since the NAK
  std::uint64_t write_address_ = 0;    ///< next byte of the WRITE in progress
  ReceiveBuffer send_buffer_;          ///< buffer of the SEND in progress
  static constexpr unsigned kUrgentPackets = 16;
  std::uint32_t expected_psn_;
  std::uint32_t arrived_ = 0;  ///< messages that took a receive
  std::uint32_t msn_ = 0;
  std::uint32_t write_rkey_ = 0;
  std::uint32_t write_remaining_ = 0;
  std::uint32_t message_length_ = 0;  ///< bytes of the message so far
  unsigned unacknowledged_ = 0;       ///< packets taken since the last acknowledgement

  // The small members of the requester are here, where they need no padding: a device may have thousands of QPs.
  unsigned consecutive_timeouts_ = 0;
  unsigned probes_ = 0;              ///< selective repeat: since the last progress
  std::uint32_t consumed_ = 0;       ///< ended requests that took a receive of the peer
  std::uint32_t counted_marks_ = 0;  ///< the peer's count of marked packets when congestion control last used it
  std::uint32_t since_ack_request_ = 0;
  bool notified_ = false;      ///< by a congestion notification packet, since the last acknowledgement
  bool probed_early_ = false;  ///< the oldest packet was sent again before the timeout, since the last progress
  bool probing_ = false;       ///< the oldest packet was sent again, and no answer shows yet whether any was lost
  bool probe_due_ = false;     ///< selective repeat: the oldest packet is sent again, whatever the window
  bool lossy_ = false;
  bool failed_ = false;
  bool stopped_ = false;

  // Responder.
  bool gap_reported_ = false;
  bool in_message_ = false;
  bool message_is_write_ = false;
  bool ack_due_ = false;
  bool ack_urgent_ = false;
  std::optional<std::uint8_t> nak_due_;
};

}  // namespace paralet
