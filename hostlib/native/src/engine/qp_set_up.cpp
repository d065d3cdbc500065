// SPDX-License-Identifier: Apache-2.0
#include "engine/qp_set_up.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr std::size_t kMaxHeldOfLane = 16;  // frames: a peer sends at most two about a lane before our answer

/// Why a lane has no source port: `port`, its last, or with `all` every port of the range is taken.
std::string taken(Transport transport, std::uint16_t port, const IpAddress& address, bool all) {
  const bool tcp = transport == Transport::kTcp;
  const std::string kind = tcp ? "TCP source port" : "UDP source port";
  if (all) return "all " + kind + "s 49152 to 65535 of " + format_address(address) + " are taken by other programs";
  return kind + " " + std::to_string(port) + " of " + format_address(address) + " is taken by another program" +
         (tcp ? ", or by another lane to the same peer" : "");
}

}  // namespace

/// Runs `work` and then `done`, again until `done` returns true. `work` runs without the progress lock where the back
/// end allows that, and may not run when the device closes; `done` always runs, with the lock.
void QpSetUp::set_up(std::function<void(Backend&)> work, std::function<bool()> done) {
  if (!shard_.backend().sets_up_concurrently()) {
    do work(shard_.backend());
    while (!done());
    return;
  }
  if (!thread_) thread_ = std::make_unique<Worker>();
  thread_->add([this, backend = &shard_.backend(), work = std::move(work), done = std::move(done)] {
    for (bool over = false; !over;) {
      if (!context_.stop) work(*backend);
      const ProgressGuard guard(lock_);
      over = done();
    }
  });
}

// -- all lanes of a peer -----------------------------------------------------------------------------------------

void QpSetUp::begin_setup(Peer& peer) {
  peer.setting_up = true;
  ++peer.setups;
  for (const auto& channel : peer.channels()) {
    if (channel) sockets_.ignore(channel->fd());
  }
}

/// Ends begin_setup. False, and the QPs are gone, if the peer has failed meanwhile.
bool QpSetUp::end_setup(Peer& peer) {
  peer.setting_up = false;
  --peer.setups;
  if (peer.dead()) shard_.drop_qps(peer);
  return !peer.dead();
}

/// Handles the frames that came during a set-up, and reads more.
void QpSetUp::replay(Peer& peer, const std::vector<handshake::Frame>& frames) {
  for (const auto& frame : frames) {
    if (peer.dead()) return;
    events_.on_frame(peer, frame);
  }
  if (peer.dead() || peer.setting_up) return;
  for (const auto& channel : peer.channels()) {
    if (channel) sockets_.watch(channel->fd(), channel->wants_write());
  }
}

/// Handles the frames that came while QPs were set up. They may begin the next set-up.
void QpSetUp::replay_held(Peer& peer) {
  replay(peer, peer.opening ? std::exchange(peer.opening->held, {}) : std::vector<handshake::Frame>());
  if (peer.ready()) peer.opening.reset();
}

void QpSetUp::create_qps(Peer& peer, std::function<void()> next) {
  struct Created {
    std::vector<QpIdentity> qps;
    std::string error;
  };
  begin_setup(peer);
  const auto created = std::make_shared<Created>();
  std::vector<unsigned> members;
  members.reserve(peer.lanes.size());
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) members.push_back(peer.first_member(i));
  const auto work = [created, members = std::move(members)](Backend& backend) {
    try {
      for (unsigned i = 0; i < members.size(); ++i) created->qps.push_back(backend.create_qp_on(members[i], i));
    } catch (const DeviceError& error) {
      created->error = error.what();
    }
  };
  const auto done = [this, &peer, created, next = std::move(next)]() PARALET_REQUIRES(progress_lock) {
    for (unsigned i = 0; i < created->qps.size(); ++i) {
      peer.lanes[i].qp = created->qps[i];
      shard_.own(created->qps[i].qpn, peer, i);
    }
    if (!end_setup(peer)) return true;
    if (!created->error.empty()) {
      events_.fail_peer(peer, Failure::kDevice, created->error);
    } else {
      next();
    }
    replay_held(peer);
    return true;
  };
  set_up(work, done);
}

std::optional<std::uint16_t> QpSetUp::other_port(const Peer& peer, std::size_t index, unsigned& attempts,
                                                 std::optional<std::uint16_t>& held, bool& exhausted) {
  const unsigned member = peer.first_member(index);
  const auto has_earlier = [&](std::uint16_t port) {
    for (std::size_t i = 0; i < index; ++i) {
      if (peer.lanes[i].port == port && peer.first_member(i) == member) return true;
    }
    return false;
  };
  while (attempts++ < wire::kEntropyPorts) {
    const auto port = policy_->alternative(peer.name(), static_cast<unsigned>(index) % context_.options.policy.lanes);
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

void QpSetUp::connect_qps(Peer& peer, const handshake::Endpoint& remote, std::function<void()> next) {
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
  peer.path_mtu = std::min(peer.path_mtu, remote.path_mtu);
  peer.udp_port = remote.udp_port;
  peer.further_ports = remote.further_ports;
  peer.max_ip_id = remote.max_ip_id;
  if (peer.fusion) peer.take_members(remote);
  // The connecting side's m sets the number of lanes. A side with fewer repeats the ports of its own lanes.
  const auto own = [this](std::size_t lane) { return static_cast<unsigned>(lane) % context_.options.policy.lanes; };
  const auto connecting = std::make_shared<Connecting>();
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) {
    Lane& lane = peer.lanes[i];
    lane.port = policy_->port(peer.name(), own(i));
    connecting->lanes.push_back(
        {.qpn = lane.qp.qpn,
         .remote =
             peer.remote_qp(remote.qps[i], peer.fusion ? peer.fusion->members[peer.first_member(i)].ece : remote.ece),
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
  const auto done = [this, &peer, connecting, next = std::move(next)]() PARALET_REQUIRES(progress_lock) {
    std::string error = connecting->error;
    if (!peer.dead() && error.empty() && connecting->connected < peer.lanes.size()) {  // the source port is taken
      const std::size_t i = connecting->connected;
      bool& exhausted = connecting->exhausted[peer.first_member(i)];
      const auto other = other_port(peer, i, connecting->attempts, connecting->held, exhausted);
      if (other) {
        connecting->lanes[i].port = peer.lanes[i].port = *other;
        return false;
      }
      error = taken(shard_.backend().transport(), peer.lanes[i].port, context_.own_address(peer.first_member(i)),
                    exhausted);
    }
    if (!end_setup(peer)) return true;
    if (!error.empty()) {
      events_.fail_peer(peer, Failure::kDevice, error);
      return true;
    }
    for (const Lane& lane : peer.lanes) shard_.backend().adopt_qp(lane.qp.qpn);
    peer.state = Peer::State::kReady;
    peer.idle_since = peer.quiet_since = now();  // no ping yet: the other side may still set its QPs up
    std::vector<std::uint32_t> qpns;
    for (const OneLane& lane : connecting->lanes) qpns.push_back(lane.remote.qpn);
    policy_->connected(peer.name(), 0, qpns);
    if (peer.fusion) {
      peer.begin_fusion();
      context_.next_housekeeping = 0;  // opens the channels
    }
    next();
    replay_held(peer);
    return true;
  };
  set_up(work, done);
}

// -- the fresh QP of a lane --------------------------------------------------------------------------------------

bool QpSetUp::hold(Peer& peer, unsigned index, const handshake::Frame& frame) {
  Renewal* const renewal = index < peer.lanes.size() ? peer.lanes[index].renewal.get() : nullptr;
  if (renewal == nullptr || !renewal->setting_up) return false;
  if (renewal->held.size() == kMaxHeldOfLane) {
    events_.fail_peer(peer, Failure::kTransport, "the peer sent more about a lane than a renewal takes");
  } else {
    renewal->held.push_back(frame);
  }
  return true;
}

void QpSetUp::create_fresh_qp(Peer& peer, unsigned index, std::uint16_t port, unsigned member,
                              std::function<void(bool)> next) {
  Lane& lane = peer.lanes[index];
  lane.renewal = std::make_unique<Renewal>();
  lane.renewal->port = port;
  lane.renewal->path_mtu = peer.path_mtu;
  lane.renewal->setting_up = true;
  ++peer.setups;
  const auto qp = std::make_shared<QpIdentity>();
  const auto work = [qp, member, index](Backend& backend) {
    try {
      *qp = backend.create_qp_on(member, index);
    } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): QP number 0 says so
    }
  };
  const auto done = [this, &peer, index, qp, next = std::move(next)]() PARALET_REQUIRES(progress_lock) {
    --peer.setups;
    std::unique_ptr<Renewal>& renewal = peer.lanes[index].renewal;
    renewal->setting_up = false;
    const bool created = qp->qpn != 0;
    if (peer.dead()) {
      if (created) shard_.drop_qp(qp->qpn);
      return true;
    }
    const auto held = std::exchange(renewal->held, {});
    if (created) {
      renewal->qp = *qp;
      shard_.own(qp->qpn, peer, index);
    } else {
      renewal.reset();
    }
    next(created);
    replay(peer, held);
    return true;
  };
  set_up(work, done);
}

void QpSetUp::connect_fresh_qp(Peer& peer, unsigned index, const RemoteQp& remote, std::function<void(bool)> next) {
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
  const auto done = [this, &peer, index, outcome, remote_qpn = remote.qpn,
                     next = std::move(next)]() PARALET_REQUIRES(progress_lock) {
    Renewal& renewal = *peer.lanes[index].renewal;
    const unsigned member = member_of(renewal.qp.qpn);
    if (peer.fusion && !peer.dead() && !outcome->connected && outcome->error.empty() &&
        outcome->attempts++ < wire::kEntropyPorts) {  // the port is free on the member that the lane comes from
      const auto other = policy_->alternative(peer.name(), index % context_.options.policy.lanes);
      if (other) {
        outcome->port = renewal.port = *other;
        return false;
      }
    }
    --peer.setups;
    renewal.setting_up = false;
    if (peer.dead()) {
      shard_.drop_qp(renewal.qp.qpn);
      return true;
    }
    const std::string error = !outcome->error.empty()
                                  ? outcome->error
                                  : taken(shard_.backend().transport(), renewal.port, context_.own_address(member),
                                          outcome->attempts > wire::kEntropyPorts);
    if (!outcome->connected && !peer.has_other_path(member)) {
      events_.fail_peer(peer, Failure::kDevice, error);
      return true;
    }
    const auto held = std::exchange(renewal.held, {});
    if (outcome->connected) {
      shard_.backend().adopt_qp(renewal.qp.qpn);
      policy_->connected(peer.name(), index, std::span(&remote_qpn, 1));
    } else if (peer.fusion->members[member].up) {
      events_.on_member_unusable(peer, member, error);
    }
    if (!peer.dead()) next(outcome->connected);
    replay(peer, held);
    return true;
  };
  set_up(work, done);
}

}  // namespace paralet
