// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/ip_address.hpp"
#include "base/mutex.hpp"
#include "engine/backlog.hpp"
#include "engine/channel.hpp"
#include "engine/context.hpp"
#include "engine/handshake.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"
#include "engine/sockets.hpp"

namespace paralet {

/// Where connections to a device arrive. Any thread.
class Listener {
 public:
  /// The next connection that nobody has accepted (Backlog::take), nullptr when there is none.
  std::shared_ptr<Connection> accept();

  std::array<std::byte, handshake::kHandleBytes> handle{};  ///< what a connecting side needs
  std::uint32_t id = 0;

 private:
  friend class Listeners;
  Mutex mutex_;
  Backlog backlog_ PARALET_GUARDED_BY(mutex_);
  bool warned_ PARALET_GUARDED_BY(mutex_) = false;  ///< the user knows that a host has too many in it
};

/// A TCP connection whose first frame has not come yet, or is a hello that waits for a set-up of this device's own
/// (Connections::comes_first).
struct Incoming {
  std::unique_ptr<Channel> channel;
  IpAddress address;
  Nanos until = 0;  ///< deadline of the frame, and of the wait
  std::unique_ptr<handshake::Hello> hello;
};

/// The listeners of a device, the TCP sockets on which it listens, and the connections that have come there.
class Listeners {
 public:
  Listeners(Context& context, Peers& peers, Sockets& sockets) : context_(context), peers_(peers), sockets_(sockets) {}

  /// A new listener, on as many members. Throws DeviceError.
  std::shared_ptr<Listener> add(unsigned members) PARALET_REQUIRES(progress_lock);
  void remove(const Listener& listener) PARALET_REQUIRES(progress_lock);
  void close() PARALET_REQUIRES(progress_lock);
  [[nodiscard]] bool token_matches(std::uint32_t listener, const handshake::Token& token) const
      PARALET_REQUIRES(progress_lock);
  /// A connection, from the peer at its address, waits for accept() of this listener. Returns the one that had to go
  /// for it (Backlog::add).
  std::shared_ptr<Connection> arrived(std::uint32_t listener, const std::shared_ptr<Connection>& connection)
      PARALET_REQUIRES(progress_lock);
  /// A name for a connection that no other connection or listener has.
  std::uint32_t new_name() PARALET_REQUIRES(progress_lock);

  // -- sockets ----------------------------------------------------------------------------------------------------
  /// Accepts TCP connections if `fd` is one of the sockets; else false.
  bool on_readable(int fd) PARALET_REQUIRES(progress_lock);
  /// The incoming TCP connection over this descriptor, nullptr when there is none.
  [[nodiscard]] Channel* incoming(int fd) const PARALET_REQUIRES(progress_lock);
  /// Removes it from those that wait.
  Incoming take(int fd) PARALET_REQUIRES(progress_lock);
  /// Keeps it, with its hello, until `take_held` or its deadline.
  void hold(Incoming&& incoming) PARALET_REQUIRES(progress_lock) { incoming_.push_back(std::move(incoming)); }
  /// Removes those with a hello.
  std::vector<Incoming> take_held() PARALET_REQUIRES(progress_lock);
  /// Periodic: forgets TCP connections whose first frame does not come, and listens again after a pause.
  void tick(Nanos now) PARALET_REQUIRES(progress_lock);
  /// Forgets all incoming TCP connections.
  void drop_incoming() PARALET_REQUIRES(progress_lock) { incoming_.clear(); }

 private:
  /// Where a member of the device listens.
  struct ListeningSocket {
    FileDescriptor socket;
    std::uint16_t port = 0;
  };

  Context& context_;
  Peers& peers_;
  Sockets& sockets_;
  std::unordered_map<std::uint32_t, std::pair<std::shared_ptr<Listener>, handshake::Token>> listeners_
      PARALET_GUARDED_BY(progress_lock);
  std::vector<Incoming> incoming_ PARALET_GUARDED_BY(progress_lock);  ///< oldest first
  std::vector<ListeningSocket> listening_
      PARALET_GUARDED_BY(progress_lock);                   ///< by member; empty: the device does not listen
  bool paused_ PARALET_GUARDED_BY(progress_lock) = false;  ///< the process may open no more descriptors
};

}  // namespace paralet
