// SPDX-License-Identifier: Apache-2.0
#include "engine/connections.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/random.hpp"
#include "base/signal.hpp"

namespace paralet {
namespace {

/// Whether what a back end offers has room for the engine's own offers.
bool takes_offers(const Ece& ece) { return ece.vendor_id == kSoftVendor || ece.vendor_id == kTcpVendor; }

bool offers_eager(const Ece& ece) { return takes_offers(ece) && (ece.options & kEagerMessages) != 0; }

bool offers_waits(const Ece& ece) { return offers_eager(ece) && (ece.options & kCreditWaits) != 0; }

std::uint32_t eager_options(const Peer& peer) {
  return (peer.eager ? kEagerMessages : 0) | (peer.credit_waits ? kCreditWaits : 0);
}

/// Why a device with lanes of kind `kind` at one address cannot be the peer of a device with another kind.
std::string other_lanes(const IpAddress& own, Transport kind, const IpAddress& peer) {
  constexpr const char* kTcp = "TCP connections (back end tcp)";
  constexpr const char* kRoce = "RoCEv2 (back end soft or verbs)";
  const bool tcp = kind == Transport::kTcp;
  return "the lanes of " + format_address(own) + " are " + (tcp ? kTcp : kRoce) + ", those of " + format_address(peer) +
         " " + (tcp ? kRoce : kTcp) + ": name one back end for both, with PARALET_BACKEND";
}

}  // namespace

std::shared_ptr<Connection> Connections::connect(const handshake::Handle& target, unsigned lanes) {
  auto connection = std::make_shared<Connection>();
  connection->target = std::make_unique<handshake::Handle>(target);
  connection->peer_address = target.address;
  connection->lanes = lanes;
  connection->id = listeners_.new_name();
  peers_.connections.emplace(connection->id, connection);
  start(connection);
  return connection;
}

void Connections::start(const std::shared_ptr<Connection>& connection) {
  const handshake::Handle target = *connection->target;
  Peer* peer = peers_.find(target, connection->lanes, context_.guid);
  // With another set of lanes each pinned port would be needed twice.
  if (peer == nullptr && one_lane_per_port()) peer = peers_.find(target, 1, context_.guid);
  const bool fresh = peer == nullptr;
  if (fresh) peer = start_peer(*connection);
  if (peer == nullptr) return;
  connection->peer = peer;
  ++peer->connections;
  if (peer->ready()) {
    send_connect(*peer, *connection);
    return;
  }
  peer->until_set_up().waiting.push_back(connection);
  if (!fresh) return;
  set_up_.create_qps(*peer, [this, peer, target]() PARALET_REQUIRES(progress_lock) {
    handshake::Hello hello{.listener = target.listener, .token = target.token, .endpoint = endpoint(*peer)};
    peer->eager = peer->credit_waits = eager() && takes_offers(hello.endpoint.ece);  // if the welcome says so too
    hello.endpoint.ece.options |= eager_options(*peer);
    if (takes_fewer(*peer)) hello.endpoint.ece.options |= kFewerLanes;
    peer->signs.agreed = offers_signs() && target.signs_of_life;  // if the welcome says so too
    offer_signs(hello.endpoint.ece, peer->signs.agreed);
    frames_.send(*peer, hello);
  });
}

/// Adds the peer of a connection's handle, and opens a channel to it. nullptr, and the connection fails, when none can
/// be opened.
Peer* Connections::start_peer(Connection& connection) {
  const handshake::Handle& target = *connection.target;
  const unsigned members = shard_.backend().members();
  std::vector<handshake::Handle::Member> there = target.further;
  there.insert(there.begin(), {.address = target.address, .tcp_port = target.tcp_port});
  const bool fused = members > 1 && there.size() == members;
  if (fused && !connection.start) connection.start = members_.first_start();
  std::unique_ptr<Channel> channel;
  while (!channel) {
    const unsigned member = fused ? connection.start->member : 0;
    try {
      channel = std::make_unique<Channel>(context_.own_address(member), there[member].address, there[member].tcp_port,
                                          context_.options.retry_time);
    } catch (const TransportError& error) {
      connection.start = fused ? members_.next_start(*connection.start, false) : std::nullopt;
      if (!connection.start) {
        closes_.abandon(connection, Failure::kTransport, error.what());
        return nullptr;
      }
    }
  }
  Peer& peer = peers_.add(target.address, target.device, connection.lanes, std::move(channel));
  peer.initiator = true;
  there.resize(fused ? members : 1);
  std::vector<IpAddress> addresses;
  addresses.reserve(there.size());
  for (const handshake::Handle::Member& member : there) addresses.push_back(member.address);
  peer.path_mtu = path_mtu_to(addresses);
  if (fused) {
    Fusion& fusion = peer.fuse(members, *connection.start);
    for (unsigned i = 0; i < members; ++i) {
      fusion.members[i].tcp_port = there[i].tcp_port;
      fusion.members[i].address = there[i].address;
    }
    random_bytes(fusion.token);
  }
  return &peer;
}

/// Whether lanes to one peer cannot share a source port, and cannot choose another.
bool Connections::one_lane_per_port() const {
  return context_.options.policy.kind == PolicyKind::kPinned && shard_.backend().transport() == Transport::kTcp;
}

/// Over TCP, where the peer may lack ports for as many lanes. Lanes of fused devices have to cover their members.
bool Connections::takes_fewer(const Peer& peer) const {
  return shard_.backend().transport() == Transport::kTcp && !peer.fusion;
}

/// Lanes to a device that says hello: as many as it asks for, where this device has the ports.
std::size_t Connections::lanes_for(const handshake::Endpoint& remote) const {
  const std::size_t asked = remote.qps.size();
  const bool fewer = one_lane_per_port() && (remote.ece.options & kFewerLanes) != 0 && remote.further.empty();
  return fewer ? std::min<std::size_t>(asked, context_.options.policy.lanes) : asked;
}

/// Of all routes to the peer, from each member to its counterpart: lanes may go from one to another. What the user has
/// set is a bound.
std::uint32_t Connections::path_mtu_to(std::span<const IpAddress> members) const {
  std::uint32_t least = UINT32_MAX;
  for (unsigned i = 0; i < members.size(); ++i) {
    least = std::min(least, shard_.backend().path_mtu_to(i, members[i]));
  }
  const std::uint32_t wanted = context_.options.path_mtu.value_or(least);
  if (wanted > least) {
    context_.options.log("path MTU " + std::to_string(wanted) + " does not fit the route to " +
                         format_address(members.front()) + ": lanes to it have " + std::to_string(least));
  }
  return std::min(wanted, least);
}

handshake::Endpoint Connections::endpoint(const Peer& peer) const {
  handshake::Endpoint out{.device = context_.guid,
                          .address = context_.options.address,
                          .udp_port = context_.nics.front().udp_port,
                          .further_ports = shard_.backend().member(0).further_ports(),
                          .path_mtu = peer.path_mtu,
                          .qps = {},
                          .max_ip_id = shard_.backend().max_ip_id(),
                          .ece = shard_.backend().ece(peer.lanes.front().qp.qpn),
                          .join = {},
                          .further = members_.further_members(peer)};
  if (peer.fusion && peer.initiator) out.join = peer.fusion->token;
  for (const Lane& lane : peer.lanes) out.qps.push_back(lane.qp);
  return out;
}

bool Connections::comes_first(const handshake::Hello& hello) const {
  if (!listeners_.token_matches(hello.listener, hello.token)) return false;
  const handshake::Endpoint& theirs = hello.endpoint;
  return std::ranges::any_of(peers_.all, [this, &theirs](const auto& peer) {
    return peer->initiator && peer->state == Peer::State::kConnecting && peer->device == theirs.device &&
           peer->address == theirs.address &&
           std::pair(peer->lanes.size(), context_.guid) > std::pair(theirs.qps.size(), theirs.device);
  });
}

/// Connections that wait for set-ups of this device's own to the device of `peer`, which has connected at the same
/// time, use `peer`. With lanes of both set-ups each source port would be needed twice.
void Connections::take_over(Peer& peer) {
  for (std::size_t i = 0; i < peers_.all.size(); ++i) {
    Peer& own = *peers_.all[i];
    if (!own.initiator || own.state != Peer::State::kConnecting ||
        !Peers::serves(peer, own.device, own.address, own.lanes.size(), context_.guid)) {
      continue;
    }
    for (const auto& connection : std::exchange(own.until_set_up().waiting, {})) {
      if (connection->state != Connection::State::kConnecting) continue;
      --own.connections;
      ++peer.connections;
      connection->peer = &peer;
      peer.until_set_up().waiting.push_back(connection);
    }
    events_.fail_peer(own, Failure::kClosed, "its device has connected at the same time");
  }
}

Peer* Connections::welcome(std::unique_ptr<Channel>& channel, const IpAddress& from, const handshake::Hello& hello) {
  if (!listeners_.token_matches(hello.listener, hello.token)) {
    channel->send(handshake::Refuse{"nobody listens there any more, or the handle is wrong"});
    return nullptr;
  }
  const Transport transport = shard_.backend().transport();
  if (transport_of(hello.endpoint.ece) != transport) {
    const std::string why = other_lanes(context_.options.address, transport, from);
    context_.options.log(format_address(context_.options.address) + " refused " + format_address(from) + ": " + why);
    channel->send(handshake::Refuse{why});
    return nullptr;
  }
  const auto& further = hello.endpoint.further;
  const auto member = std::ranges::find(further, from, &handshake::Endpoint::Member::address);
  if (hello.endpoint.address != from && member == further.end()) {
    channel->send(handshake::Refuse{"the address in the hello is not the one it comes from"});
    return nullptr;
  }
  Fusion::Start start;
  if (hello.endpoint.address != from) start.member = static_cast<unsigned>(member - further.begin()) + 1;
  const auto on_start = [&start](const QpIdentity& qp) { return member_of(qp.qpn) == start.member; };
  start.spread = !std::ranges::all_of(hello.endpoint.qps, on_start);
  const std::string mismatch = members_.mismatch_with(hello.endpoint, start);
  if (!mismatch.empty()) {
    channel->send(handshake::Refuse{mismatch});
    return nullptr;
  }
  Peer& peer = peers_.add(hello.endpoint.address, hello.endpoint.device, lanes_for(hello.endpoint), std::move(channel));
  std::vector<IpAddress> addresses{hello.endpoint.address};
  addresses.reserve(further.size() + 1);
  for (const handshake::Endpoint::Member& other : further) addresses.push_back(other.address);
  peer.path_mtu = path_mtu_to(addresses);
  if (!further.empty()) peer.fuse(shard_.backend().members(), start).token = hello.endpoint.join;
  const bool offered = eager() && offers_eager(hello.endpoint.ece);
  const bool waits = offered && offers_waits(hello.endpoint.ece);
  handshake::Endpoint remote = hello.endpoint;
  peer.signs.agree(offers_signs(), remote.ece);
  const auto welcomed = [this, &peer, offered, waits]() PARALET_REQUIRES(progress_lock) {
    handshake::Welcome welcome{endpoint(peer)};
    const bool takes = takes_offers(welcome.endpoint.ece);
    peer.eager = offered && takes;
    peer.credit_waits = waits && takes;
    welcome.endpoint.ece.options |= eager_options(peer);
    offer_signs(welcome.endpoint.ece, peer.signs.agreed);
    frames_.send_on(peer.first_channel(), welcome);
    take_over(peer);
    connect_waiting(peer);
  };
  set_up_.create_qps(peer, [this, &peer, remote = std::move(remote), welcomed]()
                               PARALET_REQUIRES(progress_lock) { set_up_.connect_qps(peer, remote, welcomed); });
  return &peer;
}

/// The peer has become ready, whichever side began its set-up.
void Connections::connect_waiting(Peer& peer) {
  for (const auto& connection : std::exchange(peer.until_set_up().waiting, {})) {
    if (connection->state == Connection::State::kConnecting) send_connect(peer, *connection);
  }
}

void Connections::send_connect(Peer& peer, const Connection& connection) {
  frames_.send(peer, handshake::Connect{.connection = connection.id,
                                        .listener = connection.target->listener,
                                        .token = connection.target->token});
}

// -- frames -------------------------------------------------------------------------------------------------------

void Connections::on(Peer& peer, const handshake::Hello& /*frame*/) {
  events_.fail_peer(peer, Failure::kTransport, "the peer said hello twice");
}

void Connections::on(Peer& peer, const handshake::Welcome& frame) {
  const std::size_t lanes = frame.endpoint.qps.size();
  peer.fewer_lanes = lanes < peer.lanes.size() && takes_fewer(peer);
  if (!peer.initiator || peer.ready() || (lanes != peer.lanes.size() && !peer.fewer_lanes) ||
      frame.endpoint.device != peer.device || !peer.fits(frame.endpoint) ||
      transport_of(frame.endpoint.ece) != shard_.backend().transport()) {
    events_.fail_peer(peer, Failure::kTransport, "the peer's answer does not fit the handle");
    return;
  }
  for (std::size_t i = lanes; i < peer.lanes.size(); ++i) shard_.drop_qp(peer.lanes[i].qp.qpn);
  peer.lanes.resize(lanes);
  peer.eager = peer.eager && offers_eager(frame.endpoint.ece);
  peer.credit_waits = peer.eager && offers_waits(frame.endpoint.ece);
  handshake::Endpoint remote = frame.endpoint;
  peer.signs.agree(peer.signs.agreed, remote.ece);
  remote.address = peer.address;  // as the handle said: the frame's own claim is not trusted
  set_up_.connect_qps(peer, remote, [this, &peer]() PARALET_REQUIRES(progress_lock) { connect_waiting(peer); });
}

void Connections::on(Peer& peer, const handshake::Refuse& frame) {
  for (auto& channel : peer.channels()) channel.reset();  // so that fail_peer does not answer
  events_.fail_peer(peer, peer.ready() ? Failure::kClosed : Failure::kTransport,
                    format_address(peer.address) + (peer.ready() ? " gave up: " : " refused: ") + frame.reason);
}

void Connections::on(Peer& peer, const handshake::Connect& frame) {
  if (!peer.ready()) return;
  if (!listeners_.token_matches(frame.listener, frame.token)) {
    frames_.send(peer, handshake::Reject{.connection = frame.connection, .reason = "nobody listens there any more"});
    return;
  }
  auto connection = std::make_shared<Connection>();
  connection->id = listeners_.new_name();
  connection->remote_id = frame.connection;
  connection->peer = &peer;
  connection->peer_address = peer.address;
  connection->state = Connection::State::kOpen;
  const std::shared_ptr<Connection> dropped = listeners_.arrived(frame.listener, connection);
  if (dropped == connection) {
    frames_.send(peer, handshake::Reject{.connection = frame.connection,
                                         .reason = "too many connections from this host wait to be accepted"});
    return;
  }
  ++peer.connections;
  peers_.connections.emplace(connection->id, connection);
  if (dropped) closes_.begin(dropped);
  frames_.send(peer, handshake::Accept{.connection = frame.connection, .peer_connection = connection->id});
  completion_signal().notify();
}

void Connections::on(Peer& peer, const handshake::Accept& frame) {
  if (!peer.ready()) {  // it answers no Connect: we send those after the welcome
    events_.fail_peer(peer, Failure::kTransport, "the peer accepted a connection before its welcome");
    return;
  }
  const auto connection = peers_.connection(peer, frame.connection);
  if (!connection) {  // closed before the answer came: the peer must close its half too
    frames_.send(peer, handshake::Close{frame.peer_connection});
    return;
  }
  if (connection->state != Connection::State::kConnecting) return;
  connection->remote_id = frame.peer_connection;
  connection->state = Connection::State::kOpen;
  connection->target.reset();
  completion_signal().notify();
}

void Connections::on(Peer& peer, const handshake::Reject& frame) {
  const auto connection = peers_.connection(peer, frame.connection);
  if (connection && connection->state == Connection::State::kConnecting) {
    closes_.abandon(*connection, Failure::kTransport, format_address(peer.address) + " refused: " + frame.reason);
  }
}

}  // namespace paralet
