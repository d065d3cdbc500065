// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/ip_address.hpp"
#include "paths/ecmp.hpp"

namespace paralet {

/// Ports from a table. Peers without an entry get random ports: only acknowledgements and advertisements go to them.
class Pinned final : public Ecmp {
 public:
  /// `ports`: of lane 0, 1, .. by peer address, repeated when there are more lanes.
  Pinned(unsigned lanes, std::optional<std::uint64_t> seed, std::map<IpAddress, std::vector<std::uint16_t>> ports)
      : Ecmp(lanes, seed), ports_(std::move(ports)) {}
  std::uint16_t port(PeerName peer, unsigned lane) override {
    const auto found = ports_.find(peer.address);
    return found == ports_.end() ? Ecmp::port(peer, lane) : found->second[lane % found->second.size()];
  }
  std::optional<std::uint16_t> alternative(PeerName peer, unsigned lane) override {
    return ports_.contains(peer.address) ? std::nullopt : Ecmp::alternative(peer, lane);
  }

 private:
  std::map<IpAddress, std::vector<std::uint16_t>> ports_;
};

}  // namespace paralet
