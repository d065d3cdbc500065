// SPDX-License-Identifier: Apache-2.0
// Detects elephants by the bytes sent to each peer without a pause. Emits events for the path client, and ends an
// elephant when its peer has been idle for a while. No I/O. Used by the thread that holds the device's progress lock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "path_client/messages.hpp"
#include "paths/path_policy.hpp"

namespace paralet::path_client {

/// Measures the period between the starts of elephants.
class Rhythm {
 public:
  void started(Nanos now);
  /// Mean of the last three periods, 0 while they differ by more than a fifth of it.
  [[nodiscard]] Nanos period() const;

 private:
  std::array<Nanos, 4> starts_{};
  std::size_t count_ = 0;
};

class Elephants {
 public:
  /// `emit` passes an event on. It returns false when there is no room for it.
  Elephants(std::uint64_t threshold_bytes, std::function<bool(const Event&)> emit)
      : threshold_(threshold_bytes), emit_(std::move(emit)) {}

  /// A message of `bytes` may be sent from now on. True when it made the traffic to the peer a new elephant.
  bool started(PeerName peer, std::uint64_t bytes, Nanos now);
  /// `bytes` have arrived at the peer.
  void delivered(PeerName peer, std::uint64_t bytes, Nanos now);
  /// Call observe for every peer, then tick once. tick ends idle elephants and emits measurements.
  void observe(PeerName peer, const PeerView& view);
  void tick(Nanos now);

  /// Id of the open elephant to a peer, 0 when there is none.
  [[nodiscard]] std::uint64_t open(PeerName peer) const;
  [[nodiscard]] std::size_t open() const { return open_; }
  /// Elephants announced so far, each counted once, and those of them that have ended.
  [[nodiscard]] std::uint64_t announced() const { return next_id_ - 1; }
  [[nodiscard]] std::uint64_t released() const { return announced() - open_; }
  /// Events for which there was no room. They are repeated later, or their traffic stays on ECMP.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  /// Messages to one peer without a pause between them.
  struct Burst {
    std::uint64_t id = 0;  ///< 0: not announced
    std::uint64_t bytes = 0;
    std::uint64_t announced = 0;
    Nanos active_at = 0;
    Rhythm rhythm;
    bool rhythm_noted = false;
    bool observed = false;
    PeerView view;  ///< of the current tick
    // The last measurement.
    Nanos measured_at = 0;
    std::uint64_t delivered = 0;    ///< bytes since
    std::uint64_t retransmits = 0;  ///< counter at that time
  };

  bool announce(PeerName peer, Burst& burst, Nanos now);
  bool end(Burst& burst);
  void measure(Burst& burst, Nanos now);
  bool emit(const Event& event);

  std::uint64_t threshold_;
  std::function<bool(const Event&)> emit_;
  std::unordered_map<PeerName, Burst> bursts_;
  std::uint64_t next_id_ = 1;
  std::size_t open_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace paralet::path_client
