// SPDX-License-Identifier: Apache-2.0
// What a requester knows about each packet in flight. With selective repeat: which arrived (the bitmaps of
// acknowledgements) and which are lost. A packet is lost when one that was sent later has arrived and a reordering
// window has passed since (RACK, RFC 8985, section 6.2). The window follows the reordering that is measured, because a
// network of many paths reorders by more than the quarter of a round trip that TCP starts with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.hpp"

namespace paralet {

/// Positions count packets from 0, as in Flight. The range [unacked, end) is in flight.
class Scoreboard {
 public:
  struct Range {
    std::uint64_t unacked;
    std::uint64_t end;
  };
  /// What one acknowledgement says that was not known.
  struct Delivered {
    unsigned packets = 0;
    Nanos rtt = 0;       ///< 0 when no packet that was sent only once has arrived
    bool first = false;  ///< a packet that was sent only once has arrived
  };

  /// A packet leaves now, for the first time or again. There is room for it (reserve).
  void sent(std::uint64_t position, Nanos now, bool ack_requested, bool again);
  [[nodiscard]] Nanos sent_at(std::uint64_t position) const { return static_cast<Nanos>(at(position).at); }
  [[nodiscard]] bool ack_requested(std::uint64_t position) const { return at(position).ack_requested; }
  [[nodiscard]] std::size_t room() const { return state_ ? state_->sent.size() : 0; }
  /// Makes room for `packets` in flight, at least twice as many as before.
  void grow(Range flight, std::uint64_t packets);
  /// Frees all memory. Nothing is in flight.
  void release() { state_.reset(); }

  // -- selective repeat -----------------------------------------------------------------------------------------
  [[nodiscard]] std::uint64_t sacked() const { return state_ ? state_->sacked : 0; }
  /// Packets that are to be sent again.
  [[nodiscard]] std::uint64_t lost() const { return state_ ? state_->lost : 0; }
  /// The lowest of them. Only when there is one.
  [[nodiscard]] std::uint64_t first_lost() const;
  /// All packets before `to` have arrived, the one at `to` has not, and of those behind it the ones in the bitmap
  /// (Reassembly::bitmap). `min_rtt`: a packet that was sent again and is acknowledged sooner was only late.
  Delivered acknowledge(Range flight, std::uint64_t to, std::span<const std::byte> bitmap, Nanos now, Nanos min_rtt);
  /// Marks lost packets. Returns how many are new.
  std::uint64_t detect_losses(Range flight, Nanos now, Nanos smoothed_rtt);
  /// When detect_losses finds more, even if nothing arrives.
  [[nodiscard]] Nanos deadline() const { return state_ ? state_->deadline : kNever; }
  /// `guessed`: nothing tells of a loss, as when a probe sends a packet again after mere silence. If the first copy was
  /// only late, this says nothing about reordering.
  void mark_lost(std::uint64_t position, bool guessed = false);
  void mark_all_lost(Range flight);
  /// Forgets everything about packets in flight: there are none.
  void clear();
  /// The packets that were sent again from now on count as lost again after take_back.
  void begin_batch() {
    if (state_) state_->batch.clear();
  }
  void take_back();

 private:
  struct Sent {
    std::uint64_t at : 59;  ///< Nanos
    std::uint64_t ack_requested : 1;
    std::uint64_t sacked : 1;
    std::uint64_t lost : 1;
    std::uint64_t again : 1;    ///< sent more than once
    std::uint64_t guessed : 1;  ///< lost, or sent again, because of a guess
  };
  /// Exists from the first packet to the next release, so that an idle QP is small.
  struct State {
    std::vector<Sent> sent;  ///< by position, modulo its size, a power of two
    std::uint64_t sacked = 0;
    std::uint64_t lost = 0;
    std::uint64_t lost_from = 0;       ///< no lower position is lost
    std::vector<std::uint64_t> batch;  ///< positions sent again since begin_batch
    // The packet that was sent last of all that have arrived.
    Nanos newest_at = 0;
    std::uint64_t newest = 0;
    Nanos newest_rtt = 0;
    bool newest_sent_once = false;
    Nanos lateness = 0;    ///< by how much packets arrived late recently, twice the largest
    Nanos widen_from = 0;  ///< packets sent again for nothing widen the window at most once per round trip
    Nanos deadline = kNever;

    [[nodiscard]] Sent& at(std::uint64_t position) { return sent[position & (sent.size() - 1)]; }
    [[nodiscard]] bool sent_before_newest(const Sent& packet, std::uint64_t position) const;
  };
  [[nodiscard]] const Sent& at(std::uint64_t position) const { return state_->at(position); }

  std::unique_ptr<State> state_;
};

}  // namespace paralet
