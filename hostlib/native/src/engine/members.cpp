// SPDX-License-Identifier: Apache-2.0
#include "engine/members.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "backend/rc_timing.hpp"
#include "base/errors.hpp"
#include "base/interfaces.hpp"

namespace paralet {
namespace {

constexpr Nanos kJoinTime = 1 * kSecond;     // for a channel to open, and before the second attempt
constexpr Nanos kLongestWait = 8 * kSecond;  // between attempts
constexpr Nanos kFirstRest = 1 * kSecond;    // before a path that fell silent is tried again
constexpr Nanos kLongestRest = 32 * kSecond;
constexpr Nanos kStable = 10 * kSecond;  // a path that was up for so long starts with the first rest again
constexpr Nanos kSilentLanePart = 4;     // of the retry time, a part: for a lane that is silent where others are not

}  // namespace

Fusion::Start Members::first_start() const {
  Fusion::Start start;
  for (unsigned i = shard_.backend().members(); i-- > 0;) {
    if (shard_.unusable(i)) {
      start.spread = false;
    } else {
      start.member = i;
    }
  }
  return start;
}

std::optional<Fusion::Start> Members::next_start(const Fusion::Start& failed, bool opened) const {
  if (failed.spread && opened) return Fusion::Start{.member = failed.member, .spread = false};
  for (unsigned i = failed.member + 1; i < shard_.backend().members(); ++i) {
    if (!shard_.unusable(i)) return Fusion::Start{.member = i, .spread = false};
  }
  return std::nullopt;
}

std::string Members::mismatch_with(const handshake::Endpoint& remote, const Fusion::Start& start) const {
  if (remote.further.empty()) return {};
  const std::size_t members = remote.further.size() + 1;
  if (members != shard_.backend().members()) return "the listening device has another number of members";
  if (remote.qps.size() < members) return "there are fewer lanes than members";
  for (std::size_t i = 0; i < remote.qps.size(); ++i) {
    const std::size_t first = start.spread ? i % members : start.member;
    if (member_of(remote.qps[i].qpn) != first) return "a lane does not start on its member";
  }
  for (unsigned i = 1; i < members; ++i) {
    if (remote.further[i - 1].address.is_ipv4() != context_.own_address(i).is_ipv4()) {
      return "members of one index have an IPv4 and an IPv6 address";
    }
  }
  return {};
}

std::vector<handshake::Endpoint::Member> Members::further_members(const Peer& peer) const {
  std::vector<handshake::Endpoint::Member> out;
  for (unsigned i = 1; peer.fusion && i < peer.fusion->members.size(); ++i) {
    out.push_back({.address = context_.own_address(i),
                   .udp_port = shard_.backend().member(i).udp_port(),
                   .further_ports = shard_.backend().member(i).further_ports(),
                   .max_ip_id = shard_.backend().member(i).max_ip_id(),
                   .ece = shard_.backend().ece(peer.lanes[i].qp.qpn)});  // of the member on which lane i starts
  }
  return out;
}

// -- channels -----------------------------------------------------------------------------------------------------

Peer* Members::join(std::unique_ptr<Channel>& channel, const IpAddress& from, const handshake::Join& frame) {
  for (const auto& peer : peers_.all) {
    if (!peer->ready() || !peer->fusion || peer->initiator || frame.member >= peer->fusion->members.size()) continue;
    std::byte difference{0};  // in constant time, as Listeners::token_matches
    for (std::size_t i = 0; i < frame.token.size(); ++i) difference |= frame.token[i] ^ peer->fusion->token[i];
    if (difference != std::byte{0}) continue;
    // TCP may find another way into this host; the peer tries again later.
    if (peer->fusion->members[frame.member].address != from || shard_.unusable(frame.member)) {
      channel->reset_at_end();
      return nullptr;
    }
    if (auto& old = peer->channels()[frame.member]) old->reset_at_end();
    peer->channels()[frame.member] = std::move(channel);
    on_joined(*peer, frame.member);
    return peer.get();
  }
  channel->send(handshake::Refuse{"it has ended this peer"});
  return nullptr;
}

void Members::on(Peer& peer, const handshake::Join& /*frame*/) {
  events_.fail_peer(peer, Failure::kTransport, "the peer joined on a channel that it uses");
}

void Members::on(Peer& peer, const handshake::Numbered& frame) {
  if (!peer.fusion || !peer.ready()) {
    events_.fail_peer(peer, Failure::kTransport, "the peer numbered a frame, which only fused devices do");
    return;
  }
  const FrameNumbers::Verdict verdict = peer.fusion->numbers.take(frame);
  if (verdict == FrameNumbers::Verdict::kOld) return;
  const auto inner = verdict == FrameNumbers::Verdict::kNew ? handshake::decode(frame.body) : std::nullopt;
  if (!inner || std::holds_alternative<handshake::Numbered>(*inner)) {
    events_.fail_peer(peer, Failure::kTransport, "the peer numbered a frame wrongly");
    return;
  }
  events_.on_frame(peer, *inner);
}

void Members::open_channel(Peer& peer, unsigned member, Nanos t) {
  Fusion::Member& path = peer.fusion->members[member];
  path.join_at = t + kJoinTime;
  try {
    auto& channel = peer.channels()[member];
    channel = std::make_unique<Channel>(context_.own_address(member), path.address, path.tcp_port,
                                        context_.options.retry_time);
    sockets_.watch(channel->fd(), true);
  } catch (const TransportError& error) {
    on_not_opened(peer, member, error.what());
  }
}

void Members::on_connected(Peer& peer, unsigned member) {
  peer.channels()[member]->send(
      handshake::Join{.token = peer.fusion->token, .member = static_cast<std::uint8_t>(member)});
  on_joined(peer, member);
}

void Members::on_not_opened(Peer& peer, unsigned member, const std::string& why) {
  Fusion& fusion = *peer.fusion;
  Fusion::Member& path = fusion.members[member];
  peer.channels()[member].reset();
  if (path.wait == 0 && !path.down) {
    context_.options.log("the path from " + format_address(context_.own_address(member)) + " to " +
                         format_address(path.address) + " does not open (" + why +
                         "): its lanes wait, and it is tried again");
  }
  path.wait = fusion.lost_at != 0 ? kJoinTime : std::clamp(2 * path.wait, kJoinTime, kLongestWait);
  path.join_at = now() + path.wait;
}

/// The channel of a member is open.
void Members::on_joined(Peer& peer, unsigned member) {
  Fusion& fusion = *peer.fusion;
  Fusion::Member& path = fusion.members[member];
  path.up = true;
  path.up_since = now();
  path.wait = 0;
  if (std::exchange(path.down, false)) {
    context_.options.log("the path to " + format_address(path.address) + " works again: its lanes return");
  }
  Channel& channel = *peer.channels()[member];
  for (const handshake::Numbered& frame : fusion.numbers.unacknowledged()) channel.send(frame);
  sockets_.watch(channel.fd(), channel.wants_write());
  for (Lane& lane : peer.lanes) {
    if (member_of(lane.qp.qpn) == member) lane.shunned = false;
  }
  context_.next_housekeeping = 0;
}

// -- paths that fail and return -----------------------------------------------------------------------------------

void Members::note(Peer& peer, unsigned lane, const Completion& completion) {
  const bool received =
      completion.kind == Completion::Kind::kReceivedSend || completion.kind == Completion::Kind::kReceivedWriteImm;
  const bool sent = completion.kind == Completion::Kind::kSent && completion.status == Status::kSuccess &&
                    completion.qpn == peer.lanes[lane].qp.qpn;  // taken-back requests prove nothing about a path
  Fusion::Member& path = peer.fusion->members[member_of(completion.qpn)];
  path.heard = path.heard || received || sent;
  path.acknowledged = path.acknowledged || sent;
}

void Members::leave(Peer& peer, unsigned member, const std::string& why, bool tell) {
  Fusion& fusion = *peer.fusion;
  Fusion::Member& path = fusion.members[member];
  const Nanos t = now();
  path.rest = t - path.up_since >= kStable || path.rest == 0 ? kFirstRest : std::min(2 * path.rest, kLongestRest);
  path.join_at = t + path.rest;
  path.up = false;
  path.down = true;
  const bool last = fusion.other(member) == member;
  context_.options.log("the path from " + format_address(context_.own_address(member)) + " to " +
                       format_address(path.address) + " is down (" + why +
                       "): " + (last ? "no other is up" : "its lanes go over another NIC"));
  if (auto& channel = peer.channels()[member]) {
    channel->reset_at_end();
    channel.reset();
  }
  if (last) {
    const bool again = fusion.lost_at != 0;
    if (!again) fusion.lost_at = t;
    for (Fusion::Member& each : fusion.members) each.join_at = again ? t + kJoinTime : t;
    context_.next_housekeeping = 0;
    return;
  }
  if (tell) frames_.send_on_all(peer, handshake::MemberDown{static_cast<std::uint8_t>(member)});
  for (Lane& lane : peer.lanes) {
    if (member_of(lane.qp.qpn) == member) lane.shunned = true;
  }
  peer.choice.leave_small();
  if (tell) move_lanes(peer);  // otherwise the peer moves them, and housekeeping moves the rest
}

void Members::on(Peer& peer, const handshake::MemberDown& frame) {
  if (!peer.fusion || frame.member >= peer.fusion->members.size()) {
    events_.fail_peer(peer, Failure::kTransport, "the peer gave up a path that there is not");
    return;
  }
  if (!peer.fusion->members[frame.member].up) return;
  if (peer.fusion->other(frame.member) == frame.member) return;  // it came over this path, which has opened again since
  leave(peer, frame.member, "the peer says so", false);
}

/// Renews lanes that are on a path that is down, all at once. The connecting side brings lanes back, one after another.
void Members::move_lanes(Peer& peer) {
  bool renewing = false;
  for (unsigned i = 0; i < peer.lanes.size() && !peer.dead(); ++i) {
    Lane& lane = peer.lanes[i];
    const unsigned member = member_of(lane.qp.qpn);
    if (!lane.renewal && !lane.changing_to && peer.fusion->members[member].down) {
      if (const unsigned other = peer.fusion->other(member); other != member) {
        renewals_.renew(peer, i, lane.next_port(), other);
      }
    }
    renewing = renewing || lane.renewal;
  }
  if (!peer.initiator || renewing) return;
  for (unsigned i = 0; i < peer.lanes.size() && !peer.dead(); ++i) {
    const Lane& lane = peer.lanes[i];
    const unsigned home = peer.fusion->home(i);
    if (lane.changing_to || home == member_of(lane.qp.qpn) || !peer.fusion->members[home].up) continue;
    renewals_.renew(peer, i, lane.next_port(), home);
    return;
  }
}

void Members::watch(Peer& peer, Nanos t) {
  Fusion& fusion = *peer.fusion;
  const auto count = static_cast<unsigned>(fusion.members.size());
  for (unsigned i = 0; i < count; ++i) {
    Fusion::Member& path = fusion.members[i];
    if (std::exchange(path.heard, false)) path.heard_at = t;
    if (std::exchange(path.acknowledged, false)) path.acknowledged_at = t;
    if (peer.initiator && !path.up && !shard_.unusable(i) && t >= path.join_at) {
      if (peer.channels()[i]) {
        on_not_opened(peer, i, "no answer");
      } else {
        open_channel(peer, i, t);
      }
    }
    if (peer.channels()[i] && peer.channels()[i]->closed()) events_.on_channel_closed(peer, i);
    if (peer.dead()) return;
    if (!path.up || !shard_.unusable(i)) continue;
    // Idle lanes too: nothing else would show before the retry time that they are lost.
    const unsigned other = fusion.other(i);
    if (other != i && !shard_.unusable(other)) leave(peer, i, "its port is down", true);
    if (peer.dead()) return;
  }
  if (std::ranges::none_of(fusion.members, &Fusion::Member::up)) {
    if (t - fusion.lost_at >= context_.options.retry_time) {
      events_.fail_unreachable(peer, Failure::kTransport,
                               "no path to " + format_address(peer.address) + " came back within the retry time");
    }
    return;
  }
  const auto stays = [t](const Fusion::Member& path) { return path.up && t - path.up_since >= kJoinTime; };
  if (fusion.lost_at != 0 && std::ranges::any_of(fusion.members, stays)) fusion.lost_at = 0;
  if (fusion.numbers.unacknowledged().size() > FrameNumbers::kMost) {
    events_.fail_peer(peer, Failure::kTransport, "the peer does not acknowledge control frames");
    return;
  }
  leave_silent(peer, t);
  if (!peer.dead()) move_lanes(peer);
}

/// Leaves a path on which a lane has been silent for a timeout, if another path has been seen to work since, and a
/// timeout later still nothing sent over the silent one was acknowledged: the peer may have answered nothing for a
/// while. If only single lanes are silent, their policy may find them other ports first. Pings on idle lanes ask.
void Members::leave_silent(Peer& peer, Nanos t) {
  Fusion& fusion = *peer.fusion;
  std::array<Nanos, kMaxMembers> silent_since{};
  for (const Lane& lane : peer.lanes) {
    if (lane.unfinished == 0 || !shard_.past_timeout(lane.qp.qpn)) continue;
    Nanos& since = silent_since[member_of(lane.qp.qpn)];
    const Nanos last = t - shard_.backend().estimate(lane.qp.qpn).smoothed_rtt;
    since = since == 0 ? last : std::min(since, last);
  }
  for (unsigned i = 0; i < fusion.members.size() && !peer.dead(); ++i) {
    Fusion::Member& path = fusion.members[i];
    if (silent_since[i] == 0 || !path.up) {
      path.suspected_at = path.proven_at = 0;
      continue;
    }
    if (path.suspected_at == 0) {
      path.suspected_at = t;
      ping_path(peer, i);
    }
    if (path.delivers() && t - silent_since[i] < context_.options.retry_time / kSilentLanePart) continue;
    if (!works_beside(peer, i, silent_since)) continue;
    if (path.proven_at == 0) {
      path.proven_at = t;
      for (const Lane& lane : peer.lanes) {
        if (member_of(lane.qp.qpn) == i && lane.unfinished > 0) shard_.backend().path_changed(lane.qp.qpn, t);
      }
    } else if (t - path.proven_at >= context_.options.min_timeout.value_or(kMinAckTimeout)) {
      leave(peer, i, "it is silent", true);
    }
  }
}

/// Whether another path has been seen to work since this one is suspected.
bool Members::works_beside(Peer& peer, unsigned suspect, std::span<const Nanos> silent_since) {
  const auto& members = peer.fusion->members;
  for (unsigned i = 0; i < members.size(); ++i) {
    if (i == suspect || !members[i].up || silent_since[i] != 0) continue;
    if (members[i].heard_at > members[suspect].suspected_at) return true;
    const auto here = [i](const Lane& lane) { return member_of(lane.qp.qpn) == i; };
    if (std::ranges::none_of(peer.lanes, here)) return true;
    ping_path(peer, i);
  }
  return false;
}

/// Posts an empty WRITE on a lane of the member, if there is an idle one.
void Members::ping_path(Peer& peer, unsigned member) {
  const auto idle = std::ranges::find_if(peer.lanes, [member](const Lane& lane) {
    return member_of(lane.qp.qpn) == member && lane.unfinished == 0 && !lane.leaving();
  });
  if (idle != peer.lanes.end()) shard_.post(*idle, {.kind = WorkKind::kWrite});
}

}  // namespace paralet
