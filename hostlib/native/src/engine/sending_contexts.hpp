// SPDX-License-Identifier: Apache-2.0
// How much is under way on a lane, for itself or together with the lanes of all other peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/lane.hpp"

namespace paralet {

/// The *sending contexts* of a device: what LaneChoice keeps from having too many flowlets under way. By default each
/// lane of each peer is one. With m of the host (ParaLet, section 5.3) lane i of all peers is one, so that the peers
/// take turns on it (Sends::pump). Short messages take no turn (Request::takes_turns), and have no limit: counted
/// there, they would keep flowlets waiting for ever.
class SendingContexts {
 public:
  /// `of_host`: contexts that all peers share; 0: each lane is its own.
  explicit SendingContexts(std::size_t of_host) : shared_(of_host) {}

  /// Flowlets posted and not finished, of the context to which lane `index` of a peer belongs.
  [[nodiscard]] unsigned outstanding(const Lane& lane, std::size_t index) const {
    return shared_.empty() ? lane.taking_turns : shared_[index % shared_.size()];
  }
  /// Whether these are all of this lane, so that what is measured of the lane is true of its context.
  [[nodiscard]] bool alone(const Lane& lane, std::size_t index) const {
    return shared_.empty() || shared_[index % shared_.size()] == lane.taking_turns;
  }
  void posted(Lane& lane, std::size_t index, std::uint64_t bytes, bool takes_turns) {
    ++lane.outstanding;
    lane.outstanding_bytes += bytes;
    if (!takes_turns) return;
    ++lane.taking_turns;
    if (!shared_.empty()) ++shared_[index % shared_.size()];
  }
  void finished(Lane& lane, std::size_t index, std::uint64_t bytes, bool takes_turns) {
    --lane.outstanding;
    lane.outstanding_bytes -= bytes;
    if (!takes_turns) return;
    --lane.taking_turns;
    if (!shared_.empty()) --shared_[index % shared_.size()];
  }
  /// The flowlets of a peer's lanes have ended with the peer.
  void drop(std::span<Lane> lanes) {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      if (!shared_.empty()) shared_[i % shared_.size()] -= lanes[i].taking_turns;
      lanes[i].taking_turns = 0;
      lanes[i].outstanding = 0;
      lanes[i].outstanding_bytes = 0;
    }
  }

 private:
  std::vector<unsigned> shared_;  ///< flowlets that take turns, by context; empty where each lane is its own
};

}  // namespace paralet
