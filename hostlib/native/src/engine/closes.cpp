// SPDX-License-Identifier: Apache-2.0
#include "engine/closes.hpp"

#include <utility>

#include "base/ip_address.hpp"
#include "base/signal.hpp"

namespace paralet {
namespace {

/// Why a connection's remaining requests fail when this side closes it.
std::string why_closed(const Connection& connection) {
  return connection.failure != Failure::kNone ? connection.error : "the connection was closed";
}

}  // namespace

void Closes::begin(const std::shared_ptr<Connection>& connection) {
  if (connection->state == Connection::State::kConnecting) {
    abandon(*connection, Failure::kClosed, "the connection was closed");
  } else if (connection->state == Connection::State::kOpen) {
    connection->state = Connection::State::kClosing;
    sends_.stop(*connection, why_closed(*connection), true);
    advance(*connection);
  }
}

void Closes::on(Peer& peer, const handshake::Close& frame) {
  if (const auto connection = peers_.connection(peer, frame.connection)) on_close(*connection);
}

/// The peer has sent Close.
void Closes::on_close(Connection& connection) {
  connection.peer_quiet = true;
  connection.reply_closed = true;
  if (connection.failure == Failure::kNone) {
    connection.error = format_address(connection.peer_address) + " closed the connection";
    if (connection.overrun) connection.error += " after " + *connection.overrun;
    connection.failure = Failure::kClosed;
  }
  sends_.stop(connection, connection.error);
  receives_.fail_all(connection, Failure::kClosed, connection.error);
  advance(connection);
}

void Closes::on(Peer& peer, const handshake::Closed& frame) {
  const auto connection = peers_.connection(peer, frame.connection);
  if (!connection) return;
  if (!connection->close_sent) {  // its messages may still wait to be posted
    events_.fail_peer(peer, Failure::kTransport, "the peer says that a connection is closed which nobody has closed");
    return;
  }
  connection->peer_quiet = true;
  advance(*connection);
}

void Closes::advance(Connection& connection) {
  Request* next = nullptr;
  for (Request* send = connection.in_flight.front(); send != nullptr; send = next) {
    next = send->next;
    if (send->posted > 0) return;                                                 // flowlets are in progress
    if (send->is_copy && !connection.peer_quiet && !connection.given_up) return;  // its caller was told that it is sent
    sends_.fail_in_flight(*send, Failure::kClosed, why_closed(connection));
  }
  if (connection.reply_closed) {
    connection.reply_closed = false;
    frames_.send(*connection.peer, handshake::Closed{connection.remote_id});
  }
  if (connection.state != Connection::State::kClosing) return;
  if (connection.peer_quiet) {
    finalize(connection);
  } else if (!connection.close_sent) {
    connection.close_sent = true;
    frames_.send(*connection.peer, handshake::Close{connection.remote_id});
  }
}

/// Removes the connection. The peer must be quiet, or have no QPs.
void Closes::finalize(Connection& connection) {
  const auto keep = peers_.connections.extract(connection.id);
  receives_.fail_all(connection, Failure::kClosed, why_closed(connection));
  if (connection.peer != nullptr && --connection.peer->connections == 0) connection.peer->idle_since = now();
  connection.peer = nullptr;
  connection.state = Connection::State::kClosed;
  completion_signal().notify();
}

void Closes::abandon(Connection& connection, Failure failure, const std::string& error) {
  if (connection.failure == Failure::kNone) {
    connection.error = error;
    connection.failure = failure;
  }
  if (connection.peer != nullptr) sends_.stop(connection, error);
  while (Request* send = connection.in_flight.front()) sends_.fail_in_flight(*send, failure, error);
  receives_.fail_all(connection, failure, error);
  finalize(connection);
}

}  // namespace paralet
