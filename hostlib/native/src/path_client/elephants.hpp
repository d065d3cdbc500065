// SPDX-License-Identifier: Apache-2.0
// Which peers are being sent an elephant: found by what is started towards them, told to the client, over when they
// have been idle for a while. Pure but for the events it says; only with the device's progress lock held.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "path_client/messages.hpp"

namespace paralet::controller {

/// How long elephants take from start to start, once that is steady.
class Rhythm {
 public:
  void started(Nanos now);
  /// 0 while the last three periods differ by more than a fifth of their mean.
  [[nodiscard]] Nanos period() const;

 private:
  std::array<Nanos, 4> starts_{};
  std::size_t count_ = 0;
};

/// What the lanes to one peer tell together.
struct PeerView {
  bool busy = false;  ///< something is under way or waits to be sent
  Nanos rtt = 0;      ///< mean of the lanes' smoothed round trips, 0: none
  std::uint64_t retransmits = 0;
};

class Elephants {
 public:
  /// `say` hands an event on, and is false when there is no room for it.
  Elephants(std::uint64_t threshold_bytes, std::function<bool(const Event&)> say)
      : threshold_(threshold_bytes), say_(std::move(say)) {}

  /// A message of so many bytes may leave. True when it made the peer's traffic an elephant that has been announced.
  bool started(PeerName peer, std::uint64_t bytes, Nanos now);
  /// So many bytes have arrived.
  void delivered(PeerName peer, std::uint64_t bytes, Nanos now);
  /// Called for every peer there is ..
  void observe(PeerName peer, const PeerView& view);
  /// .. and then once: ends what has been idle, says what was measured.
  void tick(Nanos now);

  /// The open elephant to a peer, 0 when there is none.
  [[nodiscard]] std::uint64_t open(PeerName peer) const;
  [[nodiscard]] std::size_t open() const { return open_; }
  /// Elephants announced so far, each once, and those of them that are over.
  [[nodiscard]] std::uint64_t announced() const { return next_id_ - 1; }
  [[nodiscard]] std::uint64_t released() const { return announced() - open_; }
  /// Events for which there was no room. What they were about is said later or stays on ECMP.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  /// Messages to one peer that follow each other without a pause.
  struct Burst {
    std::uint64_t id = 0;  ///< 0: not announced
    std::uint64_t bytes = 0;
    std::uint64_t announced = 0;
    Nanos active_at = 0;
    Rhythm rhythm;
    bool rhythm_noted = false;
    bool observed = false;
    PeerView view;  ///< of this tick
    // Since it was measured last.
    Nanos measured_at = 0;
    std::uint64_t delivered = 0;
    std::uint64_t retransmits = 0;  ///< then
  };

  bool announce(PeerName peer, Burst& burst, Nanos now);
  bool end(Burst& burst);
  void measure(Burst& burst, Nanos now);
  bool say(const Event& event);

  std::uint64_t threshold_;
  std::function<bool(const Event&)> say_;
  std::unordered_map<PeerName, Burst> bursts_;
  std::uint64_t next_id_ = 1;
  std::size_t open_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace paralet::controller
