// SPDX-License-Identifier: Apache-2.0
// Shortest routes over a direct-connect topology, in which servers relay (TopoOpt, section 4.2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace paralet::planners {

/// Chooses shortest routes one after the other, so that circuits are loaded evenly. At every server a route continues
/// over the circuit that carries least so far, of those that lead closer to its destination; of equally loaded ones,
/// over the first. The arrays of the constructor are by circuit: each has one way and a number of parallel copies,
/// which share what they carry. Circuits of a server must be in ascending order of their heads.
class BalancedRoutes {
 public:
  BalancedRoutes(std::int32_t servers, std::span<const std::int32_t> tail, std::span<const std::int32_t> head,
                 std::span<const std::int32_t> copies);

  /// Circuits from each server to each other one, by source * servers + destination; -1 where no way leads.
  const std::vector<std::int32_t>& hops() const { return hops_; }

  /// Adds a transfer of `size` and returns its routes, each a list of servers: `count` of them, or fewer where they
  /// repeat, none where no way leads. Each carries an equal part.
  std::vector<std::vector<std::int32_t>> add(std::int32_t source, std::int32_t destination, double size, int count);

 private:
  struct Circuit {
    std::int32_t head;
    double copies;
    double load;
  };

  std::vector<Circuit*> lightest(std::int32_t source, std::int32_t destination);
  static void load(std::span<Circuit* const> way, double size);
  std::int32_t left(std::int32_t at, std::int32_t destination) const;

  std::vector<std::vector<Circuit>> leaving_;  // by server
  std::vector<std::int32_t> hops_;
};

}  // namespace paralet::planners
