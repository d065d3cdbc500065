// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

/// Each lane draws one random port and keeps it for all peers, like flow-level ECMP and ParaLet's static lanes.
class Ecmp : public PathPolicy {
 public:
  /// `seed`: entropy of the ports; nothing: unpredictable.
  Ecmp(unsigned lanes, std::optional<std::uint64_t> seed);
  std::uint16_t port(PeerName /*peer*/, unsigned lane) override { return ports_[lane]; }
  std::optional<std::uint16_t> alternative(PeerName peer, unsigned lane) override;

 protected:
  std::uint16_t draw();

 private:
  SplitMix64 random_;
  std::vector<std::uint16_t> ports_;
  unsigned stride_;  ///< odd, so that its multiples meet every port of a range of 2^14
};

}  // namespace paralet
