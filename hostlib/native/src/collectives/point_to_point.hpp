// SPDX-License-Identifier: Apache-2.0
// Sends and receives between two ranks: which of the peers' announced sends a receive from any rank takes, and the
// requests to the engine, whose own matching by tag they use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "collectives/links.hpp"
#include "collectives/schedule.hpp"
#include "engine/device.hpp"

namespace paralet::collectives {

/// A send or receive.
struct Message {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::optional<int> peer;
  std::uint32_t tag = 0;
  std::shared_ptr<Request> request = {};  ///< once it is submitted
};

class PointToPoint {
 public:
  explicit PointToPoint(Place place) : place_(place), matched_(static_cast<std::size_t>(place.size)) {}

  /// Takes note of the sends that peers have announced. Throws LinkError when a rank has failed that might be the
  /// sender of a receive `from_any` rank.
  void read_announcements(Links& links, bool from_any);
  /// Submits the request when the link is open, and for a receive from any rank when one has announced its send. False:
  /// it cannot be submitted yet. Throws LinkError.
  bool start(Device& device, Links& links, Message& message, bool sends);

 private:
  /// Sends that a peer has announced and receives that were posted for it, by tag.
  struct Matched {
    std::uint64_t announced = 0;
    std::uint64_t received = 0;
  };

  bool find_sender(Links& links, Message& message);

  Place place_;
  std::vector<std::unordered_map<std::uint32_t, Matched>> matched_;  ///< by rank
};

/// Throws LinkError when the message failed.
void check(const Links& links, const Message& message);

}  // namespace paralet::collectives
