// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace paralet {

/// What a policy that asks a path service has done.
struct PathClientCounters {
  bool connected = false;
  Nanos since = 0;                ///< when `connected` changed last
  std::uint64_t connections = 0;  ///< with the service, so far
  // Elephants, each counted once.
  std::uint64_t announced = 0;
  std::uint64_t assigned = 0;     ///< of those announced: got ports, in time or later
  std::uint64_t ecmp_starts = 0;  ///< started on ECMP: their ports came later, or never
  std::uint64_t released = 0;     ///< ended
  // Messages.
  std::uint64_t announces = 0;  ///< announcements sent, growth and repetition after a reconnect included
  std::uint64_t assigns = 0;    ///< assignments accepted
  std::uint64_t pushes = 0;     ///< of these, those that answered no announcement
  std::uint64_t stale = 0;      ///< assignments that came too late
  std::uint64_t invalid = 0;    ///< invalid messages
  std::uint64_t dropped = 0;    ///< events lost because the queue to the client was full
  std::uint64_t reverted = 0;   ///< times that a lane left its assigned port because the path was bad
  std::uint64_t unbound = 0;    ///< moves to ports that another program holds
  std::size_t elephants = 0;    ///< open now
};

}  // namespace paralet
