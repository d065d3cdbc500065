// SPDX-License-Identifier: Apache-2.0
// Set-up of QPs. A NIC takes long to create a QP (memory, firmware commands) and to connect it (ibv_modify_qp may
// resolve the peer's link address), so where the back end allows it this happens without the progress lock, on a thread
// of its own. Messages on other QPs go on meanwhile. Frames that a peer sends during the set-up wait for its end.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "engine/device.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr std::size_t kMaxHeldOfLane = 16;  // frames: a peer sends at most two about a lane before our answer

/// Why a lane has no source port: `port`, its last, or with `all` every port of the range is taken.
std::string taken(std::uint16_t port, const IpAddress& address, bool all) {
  if (all) return "all UDP source ports 49152 to 65535 of " + format_address(address) + " are taken by other programs";
  return "UDP source port " + std::to_string(port) + " of " + format_address(address) + " is taken by another program";
}

}  // namespace

/// Runs `work` and then `done`, again until `done` returns true. `work` runs without the progress lock where the back
/// end allows that, and may not run when the device closes; `done` always runs, with the lock.
void Device::set_up(std::function<void(Backend&)> work, std::function<bool()> done) {
  if (!backend_->sets_up_concurrently()) {
    do work(*backend_);
    while (!done());
    return;
  }
  if (!setup_thread_) setup_thread_ = std::make_unique<Worker>();
  setup_thread_->add([this, backend = backend_.get(), work = std::move(work), done = std::move(done)] {
    for (bool over = false; !over;) {
      if (!stop_) work(*backend);
      const ProgressLockGuard guard(*this);
      over = done();
    }
  });
}

// -- all lanes of a peer -----------------------------------------------------------------------------------------

void Device::begin_setup(Peer& peer) {
  peer.setting_up = true;
  ++peer.setups;
  for (const auto& channel : peer.channels()) {
    if (channel) ignore(channel->fd());
  }
}

/// Ends begin_setup. False, and the QPs are gone, if the peer has failed meanwhile.
bool Device::end_setup(Peer& peer) {
  peer.setting_up = false;
  --peer.setups;
  if (peer.dead()) drop_qps(peer);
  return !peer.dead();
}

/// Handles the frames that came during a set-up, and reads more.
void Device::replay(Peer& peer, const std::vector<handshake::Frame>& frames) {
  for (const auto& frame : frames) {
    if (peer.dead()) return;
    on_frame(peer, frame);
  }
  if (peer.dead() || peer.setting_up) return;
  for (const auto& channel : peer.channels()) {
    if (channel) watch(channel->fd(), channel->wants_write());
  }
}

/// Handles the frames that came while QPs were set up. They may begin the next set-up.
void Device::replay_held(Peer& peer) {
  replay(peer, peer.opening ? std::exchange(peer.opening->held, {}) : std::vector<handshake::Frame>());
  if (peer.ready()) peer.opening.reset();
}

/// Creates the QPs of a new peer's lanes, and calls `next`. The peer fails when the NIC has no more QPs.
void Device::create_qps(Peer& peer, std::function<void()> next) {
  struct Created {
    std::vector<QpIdentity> qps;
    std::string error;
  };
  begin_setup(peer);
  const auto created = std::make_shared<Created>();
  std::vector<unsigned> members;
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) members.push_back(peer.first_member(i));
  const auto work = [created, members = std::move(members)](Backend& backend) {
    try {
      for (const unsigned member : members) created->qps.push_back(backend.create_qp_on(member));
    } catch (const DeviceError& error) {
      created->error = error.what();
    }
  };
  const auto done = [this, &peer, created, next = std::move(next)]() PARALET_REQUIRES(progress_lock_) {
    for (unsigned i = 0; i < created->qps.size(); ++i) {
      peer.lanes[i].qp = created->qps[i];
      qp_owners_.emplace(created->qps[i].qpn, QpOwner{&peer, i});
    }
    if (!end_setup(peer)) return true;
    if (!created->error.empty()) {
      fail_peer(peer, Failure::kDevice, created->error);
    } else {
      next();
    }
    replay_held(peer);
    return true;
  };
  set_up(work, done);
}

/// The next source port to try for a lane whose own is taken: each port of the range once, first those that no earlier
/// lane has, then one that it shares with an earlier lane. nullopt when there is none.
std::optional<std::uint16_t> Device::other_port(const Peer& peer, std::size_t index, unsigned& attempts,
                                                std::optional<std::uint16_t>& held, bool& exhausted) {
  const unsigned member = peer.first_member(index);
  const auto has_earlier = [&](std::uint16_t port) {
    for (std::size_t i = 0; i < index; ++i) {
      if (peer.lanes[i].port == port && peer.first_member(i) == member) return true;
    }
    return false;
  };
  while (attempts++ < wire::kEntropyPorts) {
    const auto port = policy_->alternative(peer.name(), static_cast<unsigned>(index) % options_.policy.lanes);
    if (!port) return std::nullopt;
    if (has_earlier(*port)) {
      held = port;
    } else if (!exhausted) {
      return port;
    }
  }
  exhausted = true;
  return std::exchange(held, std::nullopt);
}

/// Connects the peer's QPs lane by lane, and calls `next`. The peer fails when a lane's source port cannot be had.
void Device::connect_qps(Peer& peer, const handshake::Endpoint& remote, std::function<void()> next) {
  struct OneLane {
    std::uint32_t qpn;
    RemoteQp remote;
    std::uint16_t port;
  };
  struct Connecting {
    std::vector<OneLane> lanes;
    std::size_t connected = 0;
    unsigned attempts = 0;                      ///< other ports tried for the next lane
    std::optional<std::uint16_t> held;          ///< one of them, which an earlier lane has
    std::array<bool, kMaxMembers> exhausted{};  ///< members without a free port
    std::string error;
  };
  begin_setup(peer);
  peer.path_mtu = std::min(path_mtu_, remote.path_mtu);
  peer.udp_port = remote.udp_port;
  peer.max_ip_id = remote.max_ip_id;
  if (peer.fusion) take_members(peer, remote);
  // The connecting side's m sets the number of lanes. A side with fewer repeats the ports of its own lanes.
  const auto own = [this](std::size_t lane) { return static_cast<unsigned>(lane) % options_.policy.lanes; };
  const auto connecting = std::make_shared<Connecting>();
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) {
    Lane& lane = peer.lanes[i];
    lane.port = policy_->port(peer.name(), own(i));
    connecting->lanes.push_back(
        {.qpn = lane.qp.qpn,
         .remote =
             remote_qp(peer, remote.qps[i], peer.fusion ? peer.fusion->members[peer.first_member(i)].ece : remote.ece),
         .port = lane.port});
  }
  const auto work = [connecting](Backend& backend) {
    try {
      for (; connecting->connected < connecting->lanes.size(); ++connecting->connected) {
        const OneLane& lane = connecting->lanes[connecting->connected];
        if (!backend.connect_qp(lane.qpn, lane.remote, lane.port)) return;
        connecting->attempts = 0;
        connecting->held.reset();
      }
    } catch (const DeviceError& error) {
      connecting->error = error.what();
    }
  };
  const auto done = [this, &peer, connecting, next = std::move(next)]() PARALET_REQUIRES(progress_lock_) {
    std::string error = connecting->error;
    if (!peer.dead() && error.empty() && connecting->connected < peer.lanes.size()) {  // the source port is taken
      const std::size_t i = connecting->connected;
      bool& exhausted = connecting->exhausted[peer.first_member(i)];
      const auto other = other_port(peer, i, connecting->attempts, connecting->held, exhausted);
      if (other) {
        connecting->lanes[i].port = peer.lanes[i].port = *other;
        return false;
      }
      error = taken(peer.lanes[i].port, own_address(peer.first_member(i)), exhausted);
    }
    if (!end_setup(peer)) return true;
    if (!error.empty()) {
      fail_peer(peer, Failure::kDevice, error);
      return true;
    }
    for (const Lane& lane : peer.lanes) backend_->adopt_qp(lane.qp.qpn);
    peer.state = Peer::State::kReady;
    peer.idle_since = now();
    if (peer.fusion) begin_fusion(peer);
    next();
    replay_held(peer);
    return true;
  };
  set_up(work, done);
}

// -- the fresh QP of a lane --------------------------------------------------------------------------------------

/// Keeps a frame about a lane whose fresh QP is being set up. False when there is no set-up.
bool Device::hold(Peer& peer, unsigned index, const handshake::Frame& frame) {
  Renewal* const renewal = index < peer.lanes.size() ? peer.lanes[index].renewal.get() : nullptr;
  if (renewal == nullptr || !renewal->setting_up) return false;
  if (renewal->held.size() == kMaxHeldOfLane) {
    fail_peer(peer, Failure::kTransport, "the peer sent more about a lane than a renewal takes");
  } else {
    renewal->held.push_back(frame);
  }
  return true;
}

/// Begins a renewal of the lane: creates its fresh QP on the member, and calls `next` with whether the NIC had one. If
/// it had none, the renewal is over.
void Device::create_fresh_qp(Peer& peer, unsigned index, std::uint16_t port, unsigned member,
                             std::function<void(bool)> next) {
  Lane& lane = peer.lanes[index];
  lane.renewal = std::make_unique<Renewal>();
  lane.renewal->port = port;
  lane.renewal->setting_up = true;
  ++peer.setups;
  const auto qp = std::make_shared<QpIdentity>();
  const auto work = [qp, member](Backend& backend) {
    try {
      *qp = backend.create_qp_on(member);
    } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): QP number 0 says so
    }
  };
  const auto done = [this, &peer, index, qp, next = std::move(next)]() PARALET_REQUIRES(progress_lock_) {
    --peer.setups;
    std::unique_ptr<Renewal>& renewal = peer.lanes[index].renewal;
    renewal->setting_up = false;
    const bool created = qp->qpn != 0;
    if (peer.dead()) {
      if (created) drop_qp(qp->qpn);
      return true;
    }
    const auto held = std::exchange(renewal->held, {});
    if (created) {
      renewal->qp = *qp;
      qp_owners_.emplace(qp->qpn, QpOwner{&peer, index});
    } else {
      renewal.reset();
    }
    next(created);
    replay(peer, held);
    return true;
  };
  set_up(work, done);
}

/// Connects the fresh QP of the lane's renewal to the peer's, and calls `next`: with true once it is connected, with
/// false when that is impossible and a fused peer has another path. The peer fails when it has none.
void Device::connect_fresh_qp(Peer& peer, unsigned index, const RemoteQp& remote, std::function<void(bool)> next) {
  struct Outcome {
    bool connected = false;
    unsigned attempts = 0;  ///< other ports tried
    std::uint16_t port = 0;
    std::string error;
  };
  Renewal& fresh = *peer.lanes[index].renewal;
  fresh.setting_up = true;
  ++peer.setups;
  const auto outcome = std::make_shared<Outcome>(Outcome{.port = fresh.port, .error = {}});
  const auto work = [outcome, remote, qpn = fresh.qp.qpn](Backend& backend) {
    try {
      outcome->connected = backend.connect_qp(qpn, remote, outcome->port);
    } catch (const DeviceError& error) {
      outcome->error = error.what();
    }
  };
  const auto done = [this, &peer, index, outcome, next = std::move(next)]() PARALET_REQUIRES(progress_lock_) {
    Renewal& renewal = *peer.lanes[index].renewal;
    const unsigned member = member_of(renewal.qp.qpn);
    if (peer.fusion && !peer.dead() && !outcome->connected && outcome->error.empty() &&
        outcome->attempts++ < wire::kEntropyPorts) {  // the port is free on the member that the lane comes from
      const auto other = policy_->alternative(peer.name(), index % options_.policy.lanes);
      if (other) {
        outcome->port = renewal.port = *other;
        return false;
      }
    }
    --peer.setups;
    renewal.setting_up = false;
    if (peer.dead()) {
      drop_qp(renewal.qp.qpn);
      return true;
    }
    const std::string error = !outcome->error.empty()
                                  ? outcome->error
                                  : taken(renewal.port, own_address(member), outcome->attempts > wire::kEntropyPorts);
    if (!outcome->connected && !has_other_path(peer, member)) {
      fail_peer(peer, Failure::kDevice, error);
      return true;
    }
    const auto held = std::exchange(renewal.held, {});
    if (outcome->connected) {
      backend_->adopt_qp(renewal.qp.qpn);
    } else if (peer.fusion->members[member].up) {
      leave_member(peer, member, error, true);
    }
    if (!peer.dead()) next(outcome->connected);
    replay(peer, held);
    return true;
  };
  set_up(work, done);
}

}  // namespace paralet
