// SPDX-License-Identifier: Apache-2.0
// The sender of selective repeat, as in soft/selective_repeat.hpp and with the same scoreboard. It is simpler here,
// because acknowledgements do not get lost and windows do not shrink when packets do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "soft/round_trip.hpp"
#include "soft/scoreboard.hpp"
#include "types.hpp"

namespace paralet::packet {

/// What a queue pair knows of its packets in flight. A packet is lost when one that was sent later has arrived and a
/// reordering window has passed since. After a silence the newest packet, then the oldest, is sent again: the answer
/// shows what is lost. Ranges are numbers of packets: from the oldest not acknowledged to the next.
class SelectiveRepeat {
 public:
  using Range = Scoreboard::Range;

  /// Packets of the range that are not in the network: arrived, or lost and not sent again yet.
  [[nodiscard]] std::uint64_t settled() const { return board_.sacked() + board_.lost(); }
  [[nodiscard]] bool any_lost() const { return board_.lost() > 0; }
  /// The lowest lost packet. Only when there is one.
  [[nodiscard]] std::uint64_t first_lost() const { return board_.first_lost(); }
  /// Whether a lost packet is sent even if the window is full.
  [[nodiscard]] bool probes() const { return probe_due_; }

  /// `flight` is the range before the packet leaves.
  void sent(Range flight, std::uint64_t number, Time now, bool again);
  /// The receiver has `number` and all before `expected`. Returns how many packets are known to have arrived by this.
  unsigned acknowledge(Range flight, std::uint64_t expected, std::uint64_t number, Time now);
  /// Marks lost packets. `flight` is the range after the last acknowledgement.
  void detect_losses(Range flight, Time now);
  /// When detect_losses may find more, even if nothing arrives; kNeverTime: it does not.
  [[nodiscard]] Time deadline() const;
  /// Nothing was heard for long.
  void probe(Range flight);

 private:
  Scoreboard board_;
  std::vector<std::byte> bitmap_;
  RoundTrip round_trip_;
  unsigned probes_ = 0;  // since the last news
  bool probe_due_ = false;
};

}  // namespace paralet::packet
