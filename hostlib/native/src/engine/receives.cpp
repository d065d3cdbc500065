// SPDX-License-Identifier: Apache-2.0
#include "engine/receives.hpp"

#include "engine/send_copies.hpp"

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
  connection.receives.push_back(request);
  advertisements_.add(*request);
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
  received_long_ = received_long_ || request->bytes > SendCopies::kMostBytes;
  results_.finish(*request);
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
  connection->overrun = overrun_text(frame.message_bytes, request->length);
  results_.fail(*request, Failure::kTransport, connection->overrun);
}

void Receives::fail_all(Connection& connection, Failure failure, const std::string& error) {
  while (Request* receive = connection.receives.front()) {
    release(*receive);
    results_.fail(*connection.receives.remove(*receive), failure, error);
  }
}

}  // namespace paralet
