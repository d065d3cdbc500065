// SPDX-License-Identifier: Apache-2.0
#include "engine/peer.hpp"

namespace paralet {
namespace {

/// Where a QP receives: at the port of its shard.
std::uint16_t port_of(std::uint32_t qpn, std::uint16_t first, const std::vector<std::uint16_t>& further) {
  const std::size_t shard = shard_of(qpn, 1 + further.size());
  return shard == 0 ? first : further[shard - 1];
}

}  // namespace

bool Peer::fits(const handshake::Endpoint& remote) const {
  const std::size_t further = fusion ? fusion->members.size() - 1 : 0;
  if (remote.further.size() != further) return false;
  for (std::size_t i = 0; i < further; ++i) {
    if (remote.further[i].address != fusion->members[i + 1].address) return false;
  }
  for (std::size_t i = 0; i < remote.qps.size(); ++i) {
    if (member_of(remote.qps[i].qpn) != first_member(i)) return false;
  }
  return true;
}

void Peer::take_members(const handshake::Endpoint& remote) {
  for (std::size_t i = 0; i < fusion->members.size(); ++i) {
    Fusion::Member& member = fusion->members[i];
    member.address = i == 0 ? remote.address : remote.further[i - 1].address;
    member.udp_port = i == 0 ? remote.udp_port : remote.further[i - 1].udp_port;
    member.further_ports = i == 0 ? remote.further_ports : remote.further[i - 1].further_ports;
    member.max_ip_id = i == 0 ? remote.max_ip_id : remote.further[i - 1].max_ip_id;
    member.ece = i == 0 ? remote.ece : remote.further[i - 1].ece;
  }
}

RemoteQp Peer::remote_qp(const QpIdentity& qp, const Ece& ece) const {
  RemoteQp out{.address = address,
               .udp_port = port_of(qp.qpn, udp_port, further_ports),
               .qpn = qp.qpn,
               .first_psn = qp.first_psn,
               .path_mtu = path_mtu,
               .max_ip_id = max_ip_id,
               .ece = ece};
  if (fusion) {
    const Fusion::Member& member = fusion->members[member_of(qp.qpn)];
    out.address = member.address;
    out.udp_port = port_of(qp.qpn, member.udp_port, member.further_ports);
    out.max_ip_id = member.max_ip_id;
  }
  return out;
}

void Peer::begin_fusion() {
  Fusion::Member& first = fusion->members[fusion->start.member];
  first.up = true;
  first.up_since = now();
  for (Lane& lane : lanes) lane.shunned = !fusion->members[member_of(lane.qp.qpn)].up;
}

bool Peer::has_other_path(unsigned member) const { return fusion && ready() && fusion->other(member) != member; }

}  // namespace paralet
