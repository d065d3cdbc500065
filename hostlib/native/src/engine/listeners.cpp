// SPDX-License-Identifier: Apache-2.0
#include "engine/listeners.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/fresh_name.hpp"
#include "base/random.hpp"
#include "base/socket_address.hpp"

namespace paralet {
namespace {

constexpr std::size_t kMaxIncoming = 256;       // TCP connections without a hello
constexpr Nanos kLeastHelloTime = 5 * kSecond;  // deadline of the hello where the retry time is shorter

}  // namespace

std::shared_ptr<Connection> Listener::accept() {
  const MutexLock lock(mutex_);
  return backlog_.take();
}

std::shared_ptr<Listener> Listeners::add(unsigned members) {
  auto listener = std::make_shared<Listener>();
  if (listening_.empty()) {
    std::vector<ListeningSocket> listening(members);
    for (unsigned i = 0; i < listening.size(); ++i)
      listening[i].socket = listen_tcp(context_.own_address(i), listening[i].port);
    listening_ = std::move(listening);
    for (const ListeningSocket& member : listening_) sockets_.watch(member.socket.get(), false);
  }
  handshake::Token token{};
  random_bytes(token);
  listener->id = new_name();
  handshake::Handle handle{.address = context_.options.address,
                           .tcp_port = listening_.front().port,
                           .device = context_.guid,
                           .listener = listener->id,
                           .token = token,
                           .further = {},
                           .signs_of_life = context_.nics.front().transport == Transport::kRoce};
  for (unsigned i = 1; i < listening_.size(); ++i) {
    handle.further.push_back({.address = context_.own_address(i), .tcp_port = listening_[i].port});
  }
  listener->handle = handshake::encode(handle);
  listeners_.emplace(listener->id, std::pair(listener, token));
  return listener;
}

void Listeners::remove(const Listener& listener) {
  listeners_.erase(listener.id);
  if (listeners_.empty() && listening_.size() == 1) listening_.clear();  // a fused peer joins there again
}

void Listeners::close() {
  listeners_.clear();
  listening_.clear();
}

std::uint32_t Listeners::new_name() { return fresh_name(peers_.next_id, peers_.connections, listeners_); }

bool Listeners::token_matches(std::uint32_t listener, const handshake::Token& token) const {
  const auto found = listeners_.find(listener);
  if (found == listeners_.end()) return false;
  std::byte difference{0};  // in constant time, so that the time does not reveal how many bytes match
  for (std::size_t i = 0; i < token.size(); ++i) difference |= token[i] ^ found->second.second[i];
  return difference == std::byte{0};
}

std::shared_ptr<Connection> Listeners::arrived(std::uint32_t id, const std::shared_ptr<Connection>& connection) {
  Listener& listener = *listeners_.at(id).first;
  std::shared_ptr<Connection> dropped;
  bool warned = true;
  {
    const MutexLock lock(listener.mutex_);
    dropped = listener.backlog_.add(connection);
    if (dropped) warned = std::exchange(listener.warned_, true);
  }
  if (!warned) {
    context_.options.log("more than " + std::to_string(Backlog::kMostOfHost) + " connections from " +
                         format_address(connection->peer_address) +
                         " wait to be accepted: those that have ended are forgotten, further ones are refused");
  }
  return dropped;
}

// -- sockets ------------------------------------------------------------------------------------------------------

bool Listeners::on_readable(int fd) {
  const auto member = std::ranges::find(listening_, fd, [](const ListeningSocket& each) { return each.socket.get(); });
  if (member == listening_.end()) return false;
  for (;;) {
    SocketAddress from;
    FileDescriptor accepted(::accept4(fd, from.get(), from.length_place(), SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted.valid()) {
      // The socket stays readable and would keep the progress thread awake. Housekeeping watches it again.
      if (errno == EMFILE || errno == ENFILE) paused_ = sockets_.ignore(fd);
      return true;
    }
    // Drop the oldest, which has had the most time for its hello: silent connections must not keep peers out.
    if (incoming_.size() >= kMaxIncoming) incoming_.erase(incoming_.begin());
    auto channel = std::make_unique<Channel>(std::move(accepted), context_.options.retry_time);
    sockets_.watch(channel->fd(), false);
    incoming_.push_back(
        {std::move(channel), from.address(), now() + std::max(kLeastHelloTime, context_.options.retry_time), nullptr});
  }
}

Channel* Listeners::incoming(int fd) const {
  const auto found = std::ranges::find(incoming_, fd, [](const Incoming& incoming) { return incoming.channel->fd(); });
  return found != incoming_.end() ? found->channel.get() : nullptr;
}

Incoming Listeners::take(int fd) {
  const auto found = std::ranges::find(incoming_, fd, [](const Incoming& incoming) { return incoming.channel->fd(); });
  Incoming out = std::move(*found);
  incoming_.erase(found);
  return out;
}

std::vector<Incoming> Listeners::take_held() {
  std::vector<Incoming> out;
  std::erase_if(incoming_, [&out](Incoming& incoming) {
    const bool held = incoming.hello != nullptr;
    if (held) out.push_back(std::move(incoming));
    return held;
  });
  return out;
}

void Listeners::tick(Nanos t) {
  if (std::exchange(paused_, false)) {
    for (const ListeningSocket& member : listening_) sockets_.watch(member.socket.get(), false);
  }
  std::erase_if(incoming_, [t](const Incoming& incoming) { return t >= incoming.until; });
}

}  // namespace paralet
