// SPDX-License-Identifier: Apache-2.0
#include "engine/receives.hpp"

#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "engine/eager.hpp"
#include "engine/send_copies.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {

void Receives::start(const std::shared_ptr<Request>& request) {
  Connection& connection = *request->connection;
  Peer& peer = *connection.peer;
  if (peer.slots.full()) {
    results_.fail(*request, Failure::kDevice, "more than 65536 receives are open towards one peer");
    return;
  }
  if (!results_.register_memory(*request)) return;
  request->slot = peer.slots.take(*request);
  request->arrived = 0;
  request->arrived_bytes = 0;
  request->sequence.reset();
  connection.receives.push_back(request);
  if (connection.eager_arrivals.holds()) {
    relieve(connection);
  } else {
    advertisements_.add(*request);
  }
}

void Receives::on_flowlet_arrived(Peer& peer, unsigned lane, std::uint32_t slot, std::uint32_t count,
                                  std::uint32_t bytes) {
  Request* request = peer.slots.at(slot);
  if (request == nullptr || count == 0) {
    events_.fail_peer(peer, Failure::kTransport, "the peer sent a flowlet for a receive that is not open");
    return;
  }
  ++request->arrived;
  request->arrived_bytes += bytes;
  if (request->arrived_bytes > request->length) {
    events_.fail_peer(peer, Failure::kTransport, "the peer sent more than the receive takes");
    return;
  }
  if (request->trace) {
    if (!request->trace->expected()) request->trace->expect(count);
    const std::uint32_t qpn = peer.lanes[lane].qp.qpn;
    const Nanos t = now();
    request->trace->begin(lane, qpn, 0, bytes, t);
    request->trace->end(qpn, t);
  }
  if (request->arrived < count) return;
  const auto keep = request->connection->receives.remove(*request);
  const bool memory_gone = registrations_.retired(request->registration());
  release(*request);
  if (memory_gone) {
    results_.fail(*request, Failure::kClosed, "its memory was taken back before the message came");
    return;
  }
  request->bytes = request->arrived_bytes;
  ++request->connection->received;
  received_long_ = received_long_ || request->bytes > SendCopies::kMostBytes;
  results_.finish(*request);
}

// -- eager messages ------------------------------------------------------------------------------------------------

void Receives::on_eager(Peer& peer, unsigned lane, const handshake::EagerMessage& message,
                        std::span<const std::byte> bytes) {
  on_numbered(peer, message.connection, message.number,
              {.advertised = message.advertised, .tag = message.tag, .lane = lane, .bytes = bytes});
}

void Receives::on_ask(Peer& peer, const handshake::Ask& ask) {
  on_numbered(peer, ask.connection, ask.number, {.ask = true, .bytes = {}});
}

/// Takes the message, and those that came before it although the peer sent them later.
void Receives::on_numbered(Peer& peer, std::uint32_t connection_id, std::uint32_t number, const InOrder& message) {
  const auto connection = peers_.connection(peer, connection_id);
  if (!connection) return;  // not an error: the message and our close may cross
  EagerArrivals& arrivals = connection->eager_arrivals;
  switch (arrivals.arrived(number)) {
    case EagerArrivals::Verdict::kTooMany:
      events_.fail_peer(peer, Failure::kTransport, "the peer sent more eager messages than it had credits for");
      return;
    case EagerArrivals::Verdict::kCopy:
      return;
    case EagerArrivals::Verdict::kEarly:
      arrivals.keep_early(number, {.ask = message.ask,
                                   .advertised = message.advertised,
                                   .tag = message.tag,
                                   .lane = message.lane,
                                   .bytes = {message.bytes.begin(), message.bytes.end()}});
      return;
    case EagerArrivals::Verdict::kNext:
      break;
  }
  take(*connection, message);
  while (const auto early = arrivals.next_early()) {
    take(*connection, {.ask = early->ask,
                       .advertised = early->advertised,
                       .tag = early->tag,
                       .lane = early->lane,
                       .bytes = early->bytes});
  }
}

void Receives::take(Connection& connection, const InOrder& message) {
  if (message.ask) {
    advertise_all(connection);
    done(connection);
    return;
  }
  connection.eager_arrivals.hold(true);
  // Receives that the peer knew, but not for this message, are for others that are on their way.
  const auto may_take = [&message](const Request& receive) {
    return receive.tag == message.tag &&
           (!receive.sequence || static_cast<std::int32_t>(*receive.sequence - message.advertised) >= 0);
  };
  Request* receive = connection.receives.front();
  while (receive != nullptr && !may_take(*receive)) receive = receive->next;
  if (receive == nullptr) {
    results_.count(&MessageCounters::eager_kept);
    connection.eager_arrivals.keep({.advertised = message.advertised,
                                    .tag = message.tag,
                                    .lane = message.lane,
                                    .bytes = connection.eager_arrivals.copy_of(message.bytes)});
    relieve(connection);
    return;
  }
  const auto keep = connection.receives.remove(*receive);
  const bool memory_gone = registrations_.retired(receive->registration());
  release(*receive);
  if (memory_gone) {
    results_.fail(*receive, Failure::kClosed, "its memory was taken back before the message came");
  } else {
    deliver(*receive, message);
  }
  done(connection);
  relieve(connection);
}

/// Advertises the receives that are not, and those to come until the next eager message.
void Receives::advertise_all(Connection& connection) {
  connection.eager_arrivals.hold(false);
  for (Request* receive = connection.receives.front(); receive != nullptr; receive = receive->next) {
    if (!receive->sequence) advertisements_.add(*receive);
  }
}

/// The messages that are kept meet none of the receives, and the sender, whose next message may, has no credit left. It
/// gets those that there are, or learns of the receives.
void Receives::relieve(Connection& connection) {
  EagerArrivals& arrivals = connection.eager_arrivals;
  if (!arrivals.holds() || !arrivals.used_up()) return;
  if (connection.state != Connection::State::kOpen || connection.peer_quiet) return;
  const Request* receive = connection.receives.front();
  while (receive != nullptr && receive->sequence) receive = receive->next;
  if (receive == nullptr) return;
  if (arrivals.owes()) {
    advertisements_.grant(connection);
  } else {
    advertise_all(connection);
  }
}

bool Receives::take_kept(Request& request) {
  Connection& connection = *request.connection;
  if (!connection.eager_arrivals.keeps_any()) return false;
  auto message = connection.eager_arrivals.kept(request.tag);
  if (!message) return false;
  deliver(request, {.tag = message->tag, .lane = message->lane, .bytes = message->bytes});
  connection.eager_arrivals.reuse(std::move(message->bytes));
  done(connection);
  return true;
}

/// The receive is in no list, and has no slot.
void Receives::deliver(Request& request, const InOrder& message) {
  Connection& connection = *request.connection;
  if (message.bytes.size() > request.length) {
    connection.overrun = std::make_unique<std::string>(overrun_text(message.bytes.size(), request.length));
    results_.fail(request, Failure::kTransport, *connection.overrun);
    return;
  }
  if (!message.bytes.empty()) std::memcpy(request.data, message.bytes.data(), message.bytes.size());
  if (request.trace && connection.peer != nullptr) {
    const std::uint32_t qpn = connection.peer->lanes[message.lane].qp.qpn;
    const Nanos t = now();
    request.trace->expect(1);
    request.trace->begin(message.lane, qpn, 0, static_cast<std::uint32_t>(message.bytes.size()), t);
    request.trace->end(qpn, t);
  }
  request.bytes = message.bytes.size();
  ++connection.received;
  results_.finish(request);
}

void Receives::done(Connection& connection) {
  const bool tell = connection.eager_arrivals.done();
  if (tell && connection.state == Connection::State::kOpen && !connection.peer_quiet) advertisements_.grant(connection);
}

void Receives::release(Request& request) {
  Peer& peer = *request.connection->peer;
  peer.slots.release(request.slot);
  const std::uint32_t rkey = request.registration();
  if (!registrations_.retired(rkey) || peers_.awaits(rkey)) return;
  registrations_.deregister_retired(rkey);
}

void Receives::on(Peer& peer, const handshake::Overrun& frame) {
  const auto connection = peers_.connection(peer, frame.connection);
  Request* request = peer.slots.at(frame.slot);
  if (!connection || request == nullptr || request->connection != connection) return;
  const auto keep = connection->receives.remove(*request);
  release(*request);
  connection->overrun = std::make_unique<std::string>(overrun_text(frame.message_bytes, request->length));
  results_.fail(*request, Failure::kTransport, *connection->overrun);
}

void Receives::fail_all(Connection& connection, Failure failure, const std::string& error) {
  while (Request* receive = connection.receives.front()) {
    release(*receive);
    results_.fail(*connection.receives.remove(*receive), failure, error);
  }
}

}  // namespace paralet
