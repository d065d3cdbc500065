// SPDX-License-Identifier: Apache-2.0
// Peers and connections: TCP channels, the exchange of QPs, opening and closing. docs/protocol.md describes the same as
// a protocol.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "base/errors.hpp"
#include "base/fresh_name.hpp"
#include "base/interfaces.hpp"
#include "base/random.hpp"
#include "base/signal.hpp"
#include "base/socket_address.hpp"
#include "engine/device.hpp"

namespace paralet {
namespace {

constexpr std::size_t kMaxIncoming = 256;       // TCP connections without a hello
constexpr Nanos kLeastHelloTime = 5 * kSecond;  // deadline of the hello where the retry time is shorter

}  // namespace

// -- sockets -----------------------------------------------------------------------------------------------------

/// Wakes the progress thread when `fd` is readable, or writable if `write`.
void Device::watch(int fd, bool write) {
  epoll_event event{};
  event.events = write ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

/// Watches only for the end of `fd`, without removing it from the epoll set. False when that failed.
bool Device::ignore(int fd) {
  epoll_event event{};
  event.events = EPOLLRDHUP;
  event.data.fd = fd;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0;
}

void Device::send_frame(Peer& peer, const handshake::Frame& frame) {
  if (peer.fusion && peer.ready()) {
    send_on_all(peer, frame);
    return;
  }
  Channel& channel = peer.first_channel();
  channel.send(frame);
  watch(channel.fd(), channel.wants_write());
}

void Device::on_listen_readable(Door& door) {
  for (;;) {
    SocketAddress from;
    FileDescriptor fd(::accept4(door.socket.get(), from.get(), from.length_place(), SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // The socket stays readable and would keep the progress thread awake. Housekeeping watches it again.
      if (errno == EMFILE || errno == ENFILE) listening_paused_ = ignore(door.socket.get());
      return;
    }
    // Drop the oldest, which has had the most time for its hello: silent connections must not keep peers out.
    if (incoming_.size() >= kMaxIncoming) incoming_.erase(incoming_.begin());
    auto channel = std::make_unique<Channel>(std::move(fd), options_.retry_time);
    watch(channel->fd(), false);
    incoming_.push_back({std::move(channel), from.address(), now() + std::max(kLeastHelloTime, options_.retry_time)});
  }
}

void Device::on_channel_event(int fd, std::uint32_t events) {
  const auto serve = [&](Channel& channel) {
    if ((events & EPOLLOUT) != 0) channel.on_writable();
    auto frames = channel.on_readable();
    if (!channel.closed()) watch(fd, channel.wants_write());
    return frames;
  };
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    if (incoming_[i].channel->fd() != fd) continue;
    const auto frames = serve(*incoming_[i].channel);
    if (frames.empty() && !incoming_[i].channel->closed()) return;
    Incoming incoming = std::move(incoming_[i]);
    incoming_.erase(incoming_.begin() + static_cast<std::ptrdiff_t>(i));
    if (incoming.channel->closed()) return;
    Peer* peer = nullptr;
    if (const auto* hello = std::get_if<handshake::Hello>(&frames.front())) {
      peer = welcome(incoming, *hello);
    } else if (const auto* joining = std::get_if<handshake::Join>(&frames.front())) {
      peer = join(incoming, *joining);
    }
    if (peer != nullptr) on_frames(*peer, {frames.begin() + 1, frames.end()});
    return;
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = *peers_[i];
    if (peer.dead()) continue;
    const auto found = std::ranges::find_if(peer.channels(), [fd](const auto& one) { return one && one->fd() == fd; });
    if (found == peer.channels().end()) continue;
    Channel& channel = **found;
    const auto member = static_cast<unsigned>(found - peer.channels().begin());
    const bool was_connecting = channel.connecting();
    const auto frames = serve(channel);
    const bool connected = was_connecting && !channel.connecting();
    peer.heard = peer.heard || connected;
    if (connected && peer.fusion && peer.ready()) {
      channel.send(handshake::Join{.token = peer.fusion->token, .member = static_cast<std::uint8_t>(member)});
      on_joined(peer, member);
    }
    const bool closed = channel.closed();
    if (!frames.empty() || closed) {
      // A NIC acknowledges on its own. Completions of data that the peer knows to have arrived may still be queued;
      // handle them before the frames that follow that data.
      std::vector<Completion> arrived;
      backend_->progress(now(), arrived);
      for (const Completion& completion : arrived) on_completion(completion);
    }
    on_frames(peer, frames);
    if (closed && !peer.dead()) on_channel_closed(peer, member);
    return;
  }
}

void Device::on_frames(Peer& peer, const std::vector<handshake::Frame>& frames) {
  for (const auto& frame : frames) {
    if (peer.dead()) return;
    peer.heard = true;
    on_frame(peer, frame);
  }
  if (peer.fusion && !peer.dead()) acknowledge_frames(peer);
}

void Device::on_channel_closed(Peer& peer, unsigned member) {
  Channel* const channel = peer.channels()[member].get();
  if (channel == nullptr || !channel->closed()) return;  // replaced meanwhile
  const std::string reason = channel->reason();
  if (peer.fusion && peer.ready()) {
    if (!peer.fusion->members[member].up) {
      on_not_opened(peer, member, reason);
      return;
    }
    if (channel->lost()) {
      leave_member(peer, member, reason, true);
      return;
    }
    // The peer's last frames may have come over another channel.
    for (std::size_t i = 0; i < peer.channels().size(); ++i) {
      if (i != member && peer.channels()[i]) on_frames(peer, peer.channels()[i]->on_readable());
      if (peer.dead()) return;
    }
  }
  if (peer.ready()) {
    fail_unreachable(peer, Failure::kClosed, format_address(peer.address) + " went away: " + reason);
  } else {
    fail_unreachable(peer, Failure::kTransport, "cannot connect to " + format_address(peer.address) + ": " + reason);
  }
}

/// TCP channels run over the same port. If the port has failed, the failure is reported as the port's.
void Device::fail_unreachable(Peer& peer, Failure failure, const std::string& why) {
  if (const std::string trouble = backend_->port_trouble(now()); !trouble.empty()) {
    fail_peer(peer, Failure::kDevice, trouble + ", and " + why);
  } else {
    fail_peer(peer, failure, why);
  }
}

// -- listeners ---------------------------------------------------------------------------------------------------

std::shared_ptr<Connection> Listener::accept() {
  const MutexLock lock(mutex_);
  return backlog_.take();
}

std::shared_ptr<Listener> Device::listen() {
  auto listener = std::make_shared<Listener>();
  const ProgressLockGuard guard(*this);
  begin_call();
  if (doors_.empty()) {
    std::vector<Door> doors(backend_->members());
    for (unsigned i = 0; i < doors.size(); ++i) doors[i].socket = listen_tcp(own_address(i), doors[i].port);
    doors_ = std::move(doors);
    for (const Door& door : doors_) watch(door.socket.get(), false);
  }
  handshake::Token token{};
  random_bytes(token);
  listener->id = fresh_name(next_id_, connections_, listeners_);
  handshake::Handle handle{.address = options_.address,
                           .tcp_port = doors_.front().port,
                           .device = guid_,
                           .listener = listener->id,
                           .token = token,
                           .further = {}};
  for (unsigned i = 1; i < doors_.size(); ++i) {
    handle.further.push_back({.address = own_address(i), .tcp_port = doors_[i].port});
  }
  listener->handle = handshake::encode(handle);
  listeners_.emplace(listener->id, std::pair(listener, token));
  return listener;
}

void Device::stop_listening(const std::shared_ptr<Listener>& listener) {
  if (closed()) return;
  const ProgressLockGuard guard(*this);
  begin_call();
  listeners_.erase(listener->id);
  while (const auto connection = listener->accept()) begin_close(connection);  // nobody else will accept them
  if (listeners_.empty() && doors_.size() == 1) doors_.clear();                // a fused peer joins there again
}

bool Device::token_matches(std::uint32_t listener, const handshake::Token& token) const {
  const auto found = listeners_.find(listener);
  if (found == listeners_.end()) return false;
  std::byte difference{0};  // in constant time, so that the time does not reveal how many bytes match
  for (std::size_t i = 0; i < token.size(); ++i) difference |= token[i] ^ found->second.second[i];
  return difference == std::byte{0};
}

// -- peers -------------------------------------------------------------------------------------------------------

Peer& Device::add_peer(const IpAddress& address, const handshake::Guid& device, std::size_t lanes,
                       std::unique_ptr<Channel> channel) {
  Peer& peer = *peers_.emplace_back(std::make_unique<Peer>());
  peer.address = address;
  peer.device = device;
  peer.channel = std::move(channel);
  peer.lanes.resize(lanes);
  peer.idle_since = now();
  return peer;
}

handshake::Endpoint Device::endpoint(const Peer& peer) const {
  handshake::Endpoint out{.device = guid_,
                          .address = options_.address,
                          .udp_port = udp_port(),
                          .path_mtu = path_mtu_,
                          .qps = {},
                          .max_ip_id = backend_->max_ip_id(),
                          .ece = backend_->ece(peer.lanes.front().qp.qpn),
                          .join = {},
                          .further = further_members(peer)};
  if (peer.fusion && peer.initiator) out.join = peer.fusion->token;
  for (const Lane& lane : peer.lanes) out.qps.push_back(lane.qp);
  return out;
}

/// The peer that a handle names, nullptr when there is none.
Peer* Device::find_peer(const handshake::Handle& target, unsigned lanes) const {
  for (const auto& peer : peers_) {
    // Compare the address too: a peer may claim any GUID.
    if (peer->dead() || peer->device != target.device || peer->address != target.address) continue;
    // Its hello may have come from another member than 0, whose address it only claimed.
    if (peer->fusion && !peer->initiator && !peer->fusion->address_proven()) continue;
    // A peer that the other side opened can be used too, unless it is the accepting half of this device's connection to
    // itself.
    if (peer->lanes.size() >= lanes && (peer->initiator || target.device != guid_)) return peer.get();
  }
  return nullptr;
}

/// Makes an incoming TCP connection a peer if its hello has a listener's token. nullptr when it is refused.
Peer* Device::welcome(Incoming& incoming, const handshake::Hello& hello) {
  if (!token_matches(hello.listener, hello.token)) {
    incoming.channel->send(handshake::Refuse{"nobody listens there any more, or the handle is wrong"});
    return nullptr;
  }
  const auto& further = hello.endpoint.further;
  const auto from = std::ranges::find(further, incoming.address, &handshake::Endpoint::Member::address);
  if (hello.endpoint.address != incoming.address && from == further.end()) {
    incoming.channel->send(handshake::Refuse{"the address in the hello is not the one it comes from"});
    return nullptr;
  }
  Fusion::Start start;
  if (hello.endpoint.address != incoming.address) start.member = static_cast<unsigned>(from - further.begin()) + 1;
  const auto on_start = [&start](const QpIdentity& qp) { return member_of(qp.qpn) == start.member; };
  start.spread = !std::ranges::all_of(hello.endpoint.qps, on_start);
  const std::string misfit = misfit_of(hello.endpoint, start);
  if (!misfit.empty()) {
    incoming.channel->send(handshake::Refuse{misfit});
    return nullptr;
  }
  Peer& peer =
      add_peer(hello.endpoint.address, hello.endpoint.device, hello.endpoint.qps.size(), std::move(incoming.channel));
  if (!further.empty()) peer.fuse(backend_->members(), start).token = hello.endpoint.join;
  const auto welcomed = [this, &peer]() PARALET_REQUIRES(progress_lock_) {
    Channel& channel = peer.first_channel();
    channel.send(handshake::Welcome{endpoint(peer)});
    watch(channel.fd(), channel.wants_write());
  };
  create_qps(peer, [this, &peer, remote = hello.endpoint, welcomed]()
                       PARALET_REQUIRES(progress_lock_) { connect_qps(peer, remote, welcomed); });
  return &peer;
}

void Device::drop_qp(std::uint32_t qpn) {
  qp_owners_.erase(qpn);
  backend_->destroy_qp(qpn);
}

/// Without those that are being set up: the end of their set-up drops them.
void Device::drop_qps(const Peer& peer) {
  for (const Lane& lane : peer.lanes) {
    if (lane.qp.qpn != 0 && !peer.setting_up) drop_qp(lane.qp.qpn);
    if (lane.renewal && !lane.renewal->setting_up) drop_qp(lane.renewal->qp.qpn);
  }
}

/// Ends a peer: its requests fail, connections in progress are tried again. The peer is told why, except for
/// kClosed.
void Device::fail_peer(Peer& peer, Failure failure, const std::string& error) {
  if (peer.dead()) return;
  const bool was_ready = peer.ready();
  std::optional<Fusion::Start> next;
  if (peer.fusion && peer.initiator && !was_ready && failure != Failure::kClosed) {
    const auto& channel = peer.channels()[peer.fusion->start.member];
    next = next_start(peer.fusion->start, !channel || !channel->lost());
  }
  peer.state = Peer::State::kDead;
  // Tell the peer, so that its requests fail at once. If the frame is lost, they time out.
  for (const auto& channel : peer.channels()) {
    if (channel && failure != Failure::kClosed) channel->send(handshake::Refuse{error});
  }
  for (auto& channel : peer.channels()) channel.reset();
  peer.sending.clear();
  std::erase(advertising_, &peer);
  // QPs first, so that nothing accesses memory any more; then the requests, whose memory returns to the caller.
  drop_qps(peer);
  release_batches(peer);
  std::vector<std::shared_ptr<Connection>> again;
  for (const auto& [id, connection] : std::map(connections_.begin(), connections_.end())) {
    if (connection->peer != &peer) continue;
    const bool connecting = connection->state == Connection::State::kConnecting;
    const bool dropped = was_ready && !connection->retried;  // it was idle, and our connect was on its way
    if (connecting && (dropped || next)) {
      connection->retried = connection->retried || dropped;
      connection->start = next;
      connection->peer = nullptr;
      again.push_back(connection);
      continue;
    }
    abandon(*connection, failure, error);
  }
  next_housekeeping_ = 0;
  for (const auto& connection : again) start_connect(connection);
}

void Device::reap_peers(Nanos t) {
  for (const auto& peer : peers_) {
    if (!peer->dead() && !peer->setting_up && peer->connections == 0 && t - peer->idle_since > options_.idle_peer) {
      fail_peer(*peer, Failure::kClosed, "idle");
    }
  }
  std::erase_if(peers_, [](const auto& peer) { return peer->dead() && peer->setups == 0; });
}

// -- connections -------------------------------------------------------------------------------------------------

std::shared_ptr<Connection> Device::connect(std::span<const std::byte> handle, std::optional<unsigned> lanes) {
  const auto target = handshake::decode_handle(handle);
  if (!target) throw std::invalid_argument("this is not a paralet handle: pass the listener's 128 bytes unchanged");
  auto connection = std::make_shared<Connection>();
  connection->target = std::make_unique<handshake::Handle>(*target);
  connection->peer_address = target->address;
  const auto members = static_cast<unsigned>(1 + options_.fused_with.size());
  connection->lanes = std::clamp(lanes.value_or(options_.policy.lanes), members, options_.policy.lanes);
  const ProgressLockGuard guard(*this);
  begin_call();
  if (closed_) throw DeviceError("the device is closed");  // close has failed all peers, or will
  connection->id = fresh_name(next_id_, connections_, listeners_);
  connections_.emplace(connection->id, connection);
  start_connect(connection);
  return connection;
}

Nanos Device::heard_at(const Connection& connection) {
  const ProgressLockGuard guard(*this);
  begin_call();
  look();
  const Peer* const peer = connection.peer;
  if (peer == nullptr) return 0;
  return peer->heard ? now() : peer->heard_at;
}

/// Adds the peer of a connection's handle, and opens a channel to it. nullptr, and the connection fails, when none can
/// be opened.
Peer* Device::start_peer(Connection& connection) {
  const handshake::Handle& target = *connection.target;
  const unsigned members = backend_->members();
  std::vector<handshake::Handle::Member> there = target.further;
  there.insert(there.begin(), {.address = target.address, .tcp_port = target.tcp_port});
  const bool fused = members > 1 && there.size() == members;
  if (fused && !connection.start) connection.start = first_start();
  std::unique_ptr<Channel> channel;
  while (!channel) {
    const unsigned member = fused ? connection.start->member : 0;
    try {
      channel = std::make_unique<Channel>(own_address(member), there[member].address, there[member].tcp_port,
                                          options_.retry_time);
    } catch (const TransportError& error) {
      connection.start = fused ? next_start(*connection.start, false) : std::nullopt;
      if (!connection.start) {
        abandon(connection, Failure::kTransport, error.what());
        return nullptr;
      }
    }
  }
  Peer& peer = add_peer(target.address, target.device, connection.lanes, std::move(channel));
  peer.initiator = true;
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

void Device::start_connect(const std::shared_ptr<Connection>& connection) {
  const handshake::Handle target = *connection->target;
  Peer* peer = find_peer(target, connection->lanes);
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
  create_qps(*peer, [this, peer, target]() PARALET_REQUIRES(progress_lock_) {
    send_frame(*peer,
               handshake::Hello{.listener = target.listener, .token = target.token, .endpoint = endpoint(*peer)});
  });
}

void Device::send_connect(Peer& peer, const Connection& connection) {
  send_frame(peer, handshake::Connect{.connection = connection.id,
                                      .listener = connection.target->listener,
                                      .token = connection.target->token});
}

// -- frames ------------------------------------------------------------------------------------------------------

void Device::on_frame(Peer& peer, const handshake::Frame& frame) {
  if (peer.setting_up) {
    peer.until_set_up().held.push_back(frame);
    return;
  }
  std::visit(
      [&](const auto& one) PARALET_REQUIRES(progress_lock_) {
        if constexpr (requires { one.lane; }) {
          if (hold(peer, one.lane, frame)) return;
        }
        on(peer, one);
      },
      frame);
}

/// nullptr for a name that is not known, or no longer: Close and Closed may cross.
std::shared_ptr<Connection> Device::find_connection(const Peer& peer, std::uint32_t id) const {
  const auto found = connections_.find(id);
  return found != connections_.end() && found->second->peer == &peer ? found->second : nullptr;
}

void Device::on(Peer& peer, const handshake::Hello& /*frame*/) {
  fail_peer(peer, Failure::kTransport, "the peer said hello twice");
}

void Device::on(Peer& peer, const handshake::Welcome& frame) {
  if (!peer.initiator || peer.ready() || frame.endpoint.qps.size() != peer.lanes.size() ||
      frame.endpoint.device != peer.device || !fits(peer, frame.endpoint)) {
    fail_peer(peer, Failure::kTransport, "the peer's answer does not fit the handle");
    return;
  }
  handshake::Endpoint remote = frame.endpoint;
  remote.address = peer.address;  // as the handle said: the frame's own claim is not trusted
  connect_qps(peer, remote, [this, &peer]() PARALET_REQUIRES(progress_lock_) {
    for (const auto& connection : std::exchange(peer.until_set_up().waiting, {})) {
      if (connection->state == Connection::State::kConnecting) send_connect(peer, *connection);
    }
  });
}

void Device::on(Peer& peer, const handshake::Refuse& frame) {
  for (auto& channel : peer.channels()) channel.reset();  // so that fail_peer does not answer
  fail_peer(peer, peer.ready() ? Failure::kClosed : Failure::kTransport,
            format_address(peer.address) + (peer.ready() ? " gave up: " : " refused: ") + frame.reason);
}

void Device::on(Peer& peer, const handshake::Connect& frame) {
  if (!peer.ready()) return;
  if (!token_matches(frame.listener, frame.token)) {
    send_frame(peer, handshake::Reject{.connection = frame.connection, .reason = "nobody listens there any more"});
    return;
  }
  auto connection = std::make_shared<Connection>();
  connection->id = fresh_name(next_id_, connections_, listeners_);
  connection->remote_id = frame.connection;
  connection->peer = &peer;
  connection->peer_address = peer.address;
  connection->state = Connection::State::kOpen;
  Listener& listener = *listeners_.at(frame.listener).first;
  std::shared_ptr<Connection> dropped;
  bool told = true;
  {
    const MutexLock lock(listener.mutex_);
    dropped = listener.backlog_.add(connection);
    if (dropped) told = std::exchange(listener.told_, true);
  }
  if (!told) {
    options_.log("more than " + std::to_string(Backlog::kMostOfHost) + " connections from " +
                 format_address(peer.address) +
                 " wait to be accepted: those that have ended are forgotten, further ones are refused");
  }
  if (dropped == connection) {
    send_frame(peer, handshake::Reject{.connection = frame.connection,
                                       .reason = "too many connections from this host wait to be accepted"});
    return;
  }
  ++peer.connections;
  connections_.emplace(connection->id, connection);
  if (dropped) begin_close(dropped);
  send_frame(peer, handshake::Accept{.connection = frame.connection, .peer_connection = connection->id});
  completion_signal().notify();
}

void Device::on(Peer& peer, const handshake::Accept& frame) {
  if (!peer.ready()) {  // it answers no Connect: we send those after the welcome
    fail_peer(peer, Failure::kTransport, "the peer accepted a connection before its welcome");
    return;
  }
  const auto connection = find_connection(peer, frame.connection);
  if (!connection) {  // closed before the answer came: the peer must close its half too
    send_frame(peer, handshake::Close{frame.peer_connection});
    return;
  }
  if (connection->state != Connection::State::kConnecting) return;
  connection->remote_id = frame.peer_connection;
  connection->state = Connection::State::kOpen;
  connection->target.reset();
  completion_signal().notify();
}

void Device::on(Peer& peer, const handshake::Reject& frame) {
  const auto connection = find_connection(peer, frame.connection);
  if (connection && connection->state == Connection::State::kConnecting) {
    abandon(*connection, Failure::kTransport, format_address(peer.address) + " refused: " + frame.reason);
  }
}

void Device::on(Peer& peer, const handshake::Close& frame) {
  if (const auto connection = find_connection(peer, frame.connection)) on_close(*connection);
}

void Device::on(Peer& peer, const handshake::Closed& frame) {
  const auto connection = find_connection(peer, frame.connection);
  if (!connection) return;
  if (!connection->close_sent) {  // its messages may still wait to be posted
    fail_peer(peer, Failure::kTransport, "the peer says that a connection is closed which nobody has closed");
    return;
  }
  connection->peer_quiet = true;
  advance_close(*connection);
}

void Device::on(Peer& peer, const handshake::Overrun& frame) {
  const auto connection = find_connection(peer, frame.connection);
  Request* request = peer.slots.at(frame.slot);
  if (!connection || request == nullptr || request->connection != connection) return;
  const auto keep = connection->receives.remove(*request);
  release_receive(*request);
  connection->overrun = overrun_text(frame.message_bytes, request->length);
  fail(*request, Failure::kTransport, connection->overrun);
}

// -- closing -----------------------------------------------------------------------------------------------------
//
// The closing side starts no more flowlets, waits for those it has posted, and sends Close; from then on it is quiet.
// The other side does the same and answers Closed. Receives are withdrawn only when the peer is quiet, so that no
// flowlet arrives for memory that is no longer registered.

void Device::close_connection(const std::shared_ptr<Connection>& connection) {
  if (closed()) return;
  const ProgressLockGuard guard(*this);
  begin_call();
  settle(now());
  begin_close(connection);
}

/// Fails the sends that have posted nothing and removes the connection's messages from the peer's queue.
void Device::stop_sending(Connection& connection, const std::string& why) {
  while (Request* send = connection.sends.front()) fail(*connection.sends.remove(*send), Failure::kClosed, why);
  auto& sending = connection.peer->sending;
  for (std::size_t i = sending.size(); i-- > 0;) {
    if (sending[i]->connection.get() == &connection) sending.erase(i);
  }
}

/// Why a connection's remaining requests fail when this side closes it.
std::string Device::why_closed(const Connection& connection) {
  return connection.failure != Failure::kNone ? connection.error : "the connection was closed";
}

void Device::begin_close(const std::shared_ptr<Connection>& connection) {
  if (connection->state == Connection::State::kConnecting) {
    abandon(*connection, Failure::kClosed, "the connection was closed");
  } else if (connection->state == Connection::State::kOpen) {
    connection->state = Connection::State::kClosing;
    stop_sending(*connection, why_closed(*connection));
    advance_close(*connection);
  }
}

/// The peer has sent Close.
void Device::on_close(Connection& connection) {
  connection.peer_quiet = true;
  connection.reply_closed = true;
  if (connection.failure == Failure::kNone) {
    connection.error = format_address(connection.peer_address) + " closed the connection";
    if (!connection.overrun.empty()) connection.error += " after " + connection.overrun;
    connection.failure = Failure::kClosed;
  }
  stop_sending(connection, connection.error);
  fail_receives(connection, connection.error);
  advance_close(connection);
}

void Device::fail_receives(Connection& connection, const std::string& error) {
  while (Request* receive = connection.receives.front()) {
    release_receive(*receive);
    fail(*connection.receives.remove(*receive), Failure::kClosed, error);
  }
}

/// Sends Closed or Close once no flowlet is in progress; finishes when both sides are quiet.
void Device::advance_close(Connection& connection) {
  Request* next = nullptr;
  for (Request* send = connection.in_flight.front(); send != nullptr; send = next) {
    next = send->next;
    if (send->posted > 0) return;  // flowlets are in progress
    fail(*connection.in_flight.remove(*send), Failure::kClosed, why_closed(connection));
  }
  if (connection.reply_closed) {
    connection.reply_closed = false;
    send_frame(*connection.peer, handshake::Closed{connection.remote_id});
  }
  if (connection.state != Connection::State::kClosing) return;
  if (connection.peer_quiet) {
    finalize(connection);
  } else if (!connection.close_sent) {
    connection.close_sent = true;
    send_frame(*connection.peer, handshake::Close{connection.remote_id});
  }
}

/// Removes the connection. The peer must be quiet, or have no QPs.
void Device::finalize(Connection& connection) {
  const auto keep = connections_.extract(connection.id);
  fail_receives(connection, why_closed(connection));
  if (connection.peer != nullptr && --connection.peer->connections == 0) connection.peer->idle_since = now();
  connection.peer = nullptr;
  connection.state = Connection::State::kClosed;
  completion_signal().notify();
}

/// Ends a connection without the peer: its QPs are destroyed, or it was never open.
void Device::abandon(Connection& connection, Failure failure, const std::string& error) {
  if (connection.failure == Failure::kNone) {
    connection.error = error;
    connection.failure = failure;
  }
  if (connection.peer != nullptr) stop_sending(connection, error);
  while (Request* send = connection.in_flight.front()) fail(*connection.in_flight.remove(*send), failure, error);
  while (Request* receive = connection.receives.front()) {
    release_receive(*receive);
    fail(*connection.receives.remove(*receive), failure, error);
  }
  finalize(connection);
}

}  // namespace paralet
