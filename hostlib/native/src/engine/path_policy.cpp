// SPDX-License-Identifier: Apache-2.0
#include "engine/path_policy.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/random.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

std::uint64_t entropy(const std::optional<std::uint64_t>& seed) {
  return seed ? *seed : (static_cast<std::uint64_t>(random_u32()) << 32) | random_u32();
}

/// Each lane draws one random port and keeps it for all peers, like flow-level ECMP and ParaLet's static lanes.
class Ecmp : public PathPolicy {
 public:
  explicit Ecmp(const PolicyOptions& options) : random_(entropy(options.seed)) {
    ports_.reserve(options.lanes);
    for (unsigned lane = 0; lane < options.lanes; ++lane) ports_.push_back(draw());
    stride_ = 2 * draw() + 1;
  }
  std::uint16_t port(PeerName /*peer*/, unsigned lane) override { return ports_[lane]; }
  std::optional<std::uint16_t> alternative(PeerName /*peer*/, unsigned lane) override {
    return ports_[lane] = in_range(ports_[lane] + stride_);
  }
  std::optional<std::uint16_t> after_flowlet(const LaneView& /*lane*/, Nanos /*now*/) override { return std::nullopt; }
  /// False: such a lane moves only where the user sends it.
  [[nodiscard]] bool takes_other(PeerName /*peer*/, unsigned /*lane*/, std::uint16_t /*port*/) const override {
    return false;
  }

 protected:
  std::uint16_t draw() { return in_range(static_cast<unsigned>(random_.below(wire::kEntropyPorts))); }

 private:
  static std::uint16_t in_range(unsigned n) {
    return static_cast<std::uint16_t>(wire::kFirstEntropyPort + n % wire::kEntropyPorts);
  }

  static_assert(wire::kEntropyPorts == 1U << 14 && wire::kFirstEntropyPort % wire::kEntropyPorts == 0);
  SplitMix64 random_;
  std::vector<std::uint16_t> ports_;
  unsigned stride_;  ///< odd, so that its multiples meet every port of a range of 2^14
};

/// Ports from a table. Peers without an entry get random ports: only acknowledgements and advertisements go to them.
class Pinned final : public Ecmp {
 public:
  explicit Pinned(const PolicyOptions& options) : Ecmp(options), ports_(options.ports) {}
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

/// Random ports that leave bad paths and return to good ones. A lane that times out, or whose round trip stays above
/// kBadRatio times the best lane's, takes a port that performed well before (REPS recycles entropies the same way),
/// else a new random port.
class Adaptive final : public Ecmp {
 public:
  explicit Adaptive(const PolicyOptions& options) : Ecmp(options) {}

  [[nodiscard]] bool takes_other(PeerName /*peer*/, unsigned /*lane*/, std::uint16_t /*port*/) const override {
    return true;
  }

  std::optional<std::uint16_t> after_flowlet(const LaneView& lane, Nanos now) override {
    State& state = states_[{lane.peer, lane.lane}];
    const bool timed_out = lane.timeouts > 0;
    const bool slow = lane.peer_rtt > 0 && lane.smoothed_rtt > kBadRatio * lane.peer_rtt;
    if (!slow && !timed_out) {
      state.bad_flowlets = 0;
      if (std::ranges::find(state.recycled, lane.port) == state.recycled.end()) {
        state.recycled[state.next_recycled++ % state.recycled.size()] = lane.port;
      }
      return std::nullopt;
    }
    // A port that timed out is not used again. One that is only congested may perform well later.
    if (timed_out) std::ranges::replace(state.recycled, lane.port, std::uint16_t{0});
    ++state.bad_flowlets;
    if (!timed_out && (state.bad_flowlets < kBadFlowlets || now - state.moved_at < kSettle * lane.smoothed_rtt)) {
      return std::nullopt;
    }
    state.bad_flowlets = 0;
    state.moved_at = now;
    for (std::uint16_t& good : state.recycled) {
      if (good != 0 && good != lane.port) return std::exchange(good, 0);
    }
    return draw();
  }

 private:
  static constexpr Nanos kBadRatio = 2;        // to the smallest round trip of the peer's lanes
  static constexpr unsigned kBadFlowlets = 3;  // in a row, before a slow lane moves
  static constexpr Nanos kSettle = 8;          // round trips between moves: the smoothed round trip has to follow
  struct State {
    unsigned bad_flowlets = 0;
    Nanos moved_at = 0;
    std::array<std::uint16_t, 4> recycled{};
    std::size_t next_recycled = 0;
  };
  std::map<std::pair<PeerName, unsigned>, State> states_;
};

}  // namespace

const char* to_string(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kEcmp:
      return "ecmp";
    case PolicyKind::kPinned:
      return "pinned";
    case PolicyKind::kAdaptive:
      return "adaptive";
    case PolicyKind::kController:
      return "controller";
  }
  return "unknown";
}

std::unique_ptr<PathPolicy> make_policy(const PolicyOptions& options) {
  if (options.lanes == 0 || options.lanes > 1024) throw DeviceError("lanes must be 1 to 1024");
  for (const auto& [peer, ports] : options.ports) {
    if (ports.empty()) throw DeviceError("the list of source ports for peer " + format_address(peer) + " is empty");
    for (const std::uint16_t port : ports) {
      if (port < wire::kFirstEntropyPort) {
        throw DeviceError("source port " + std::to_string(port) + " for peer " + format_address(peer) +
                          " is outside 49152..65535, the range RoCEv2 sources use");
      }
    }
  }
  switch (options.kind) {
    case PolicyKind::kPinned:
      return std::make_unique<Pinned>(options);
    case PolicyKind::kAdaptive:
      return std::make_unique<Adaptive>(options);
    case PolicyKind::kEcmp:
    case PolicyKind::kController:
      break;
  }
  return std::make_unique<Ecmp>(options);
}

}  // namespace paralet
