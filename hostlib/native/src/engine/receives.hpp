// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/advertisements.hpp"
#include "engine/handshake.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/registrations.hpp"
#include "engine/request.hpp"
#include "engine/results.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {

/// Messages that this side receives: their slots, and the flowlets that arrive for them.
class Receives {
 public:
  Receives(Peers& peers, Registrations& registrations, Results& results, Advertisements& advertisements,
           PeerEvents& events)
      : peers_(peers),
        registrations_(registrations),
        results_(results),
        advertisements_(advertisements),
        events_(events) {}

  /// Starts a receive on an open connection.
  void start(const std::shared_ptr<Request>& request) PARALET_REQUIRES(progress_lock);
  /// Ends a receive with a message that came eagerly before it, if there is one. The connection may be closed.
  bool take_kept(Request& request) PARALET_REQUIRES(progress_lock);
  void on_flowlet_arrived(Peer& peer, unsigned lane, std::uint32_t slot, std::uint32_t count, std::uint32_t bytes)
      PARALET_REQUIRES(progress_lock);
  /// `message` is followed by `bytes`.
  void on_eager(Peer& peer, unsigned lane, const handshake::EagerMessage& message, std::span<const std::byte> bytes)
      PARALET_REQUIRES(progress_lock);
  void on_ask(Peer& peer, const handshake::Ask& ask) PARALET_REQUIRES(progress_lock);
  void on(Peer& peer, const handshake::Overrun& frame) PARALET_REQUIRES(progress_lock);
  /// Once after a long message, when nothing is left to send or receive. Callers poll no more then, and the progress
  /// thread notices late: the acknowledgements, for which the sender waits, must not.
  bool take_last_of_long() PARALET_REQUIRES(progress_lock) {
    return received_long_ && results_.pending() == 0 && std::exchange(received_long_, false);
  }
  /// Fails the connection's receives. The peer must be quiet, or have no QPs.
  void fail_all(Connection& connection, Failure failure, const std::string& error) PARALET_REQUIRES(progress_lock);

 private:
  /// A message in the order in which the peer sent them.
  struct InOrder {
    bool ask = false;
    std::uint32_t advertised = 0;
    std::uint32_t tag = 0;
    unsigned lane = 0;
    std::span<const std::byte> bytes;
  };
  void on_numbered(Peer& peer, std::uint32_t connection, std::uint32_t number, const InOrder& message)
      PARALET_REQUIRES(progress_lock);
  void take(Connection& connection, const InOrder& message) PARALET_REQUIRES(progress_lock);
  void deliver(Request& request, const InOrder& message) PARALET_REQUIRES(progress_lock);
  void done(Connection& connection) PARALET_REQUIRES(progress_lock);
  void advertise_all(Connection& connection) PARALET_REQUIRES(progress_lock);
  void relieve(Connection& connection) PARALET_REQUIRES(progress_lock);
  void release(Request& request) PARALET_REQUIRES(progress_lock);

  Peers& peers_;
  Registrations& registrations_;
  Results& results_;
  Advertisements& advertisements_;
  PeerEvents& events_;
  bool received_long_ PARALET_GUARDED_BY(progress_lock) = false;  ///< since take_last_of_long was true
};

}  // namespace paralet
