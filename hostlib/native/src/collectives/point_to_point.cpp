// SPDX-License-Identifier: Apache-2.0
#include "collectives/point_to_point.hpp"

#include <string>

#include "collectives/header.hpp"

namespace paralet::collectives {

bool PointToPoint::start(Device& device, Links& links, Message& message, bool sends) {
  if (!message.peer && !find_sender(links, message)) return false;
  const int peer = *message.peer;
  try {
    Link& link = links.to(peer);
    if (!link.open()) return false;
    if (sends) {
      const auto announcement = encode(Announcement{.tag = message.tag, .bytes = message.bytes});
      if (!link.announcements().send(announcement, {})) return false;
    } else {
      ++matched_[static_cast<std::size_t>(peer)][message.tag].received;
    }
    message.request = std::make_shared<Request>();
    message.request->kind = sends ? Request::Kind::kSend : Request::Kind::kReceive;
    message.request->connection = link.bulk();
    message.request->data = message.data;
    message.request->length = message.bytes;
    message.request->tag = kPointToPointTag | message.tag;
    device.submit(message.request);
    return true;
  } catch (const LinkError& error) {
    throw LinkError{error.failure, links.describe(peer, error.text)};
  }
}

bool PointToPoint::find_sender(Links& links, Message& message) {
  for (int rank = 0; rank < place_.size; ++rank) {
    if (rank == place_.rank) continue;
    static_cast<void>(links.to(rank));  // this rank may be the one that has to connect
    const auto& matched = matched_[static_cast<std::size_t>(rank)];
    const auto found = matched.find(message.tag);
    if (found == matched.end() || found->second.announced <= found->second.received) continue;
    message.peer = rank;
    return true;
  }
  return false;
}

void PointToPoint::read_announcements(Links& links, bool from_any) {
  for (int rank = 0; rank < place_.size; ++rank) {
    Link& link = links.known(rank);
    if (!link.open()) continue;
    auto& matched = matched_[static_cast<std::size_t>(rank)];
    try {
      while (const auto message = link.announcements().front()) {
        if (const auto why = decode_notice(*message)) throw LinkError{Failure::kClosed, *why};
        const auto announcement = decode_announcement(*message);
        if (!announcement) throw LinkError{Failure::kTransport, "it sent a malformed announcement"};
        Matched& counts = matched[announcement->tag];
        if (++counts.announced == counts.received) matched.erase(announcement->tag);
        link.announcements().pop();
      }
    } catch (const LinkError& error) {
      // A rank that has left matters only to a receive that it might have been the sender of.
      if (from_any) throw LinkError{error.failure, links.describe(rank, error.text)};
    }
  }
}

void check(const Links& links, const Message& message) {
  if (message.request == nullptr || pending(*message.request)) return;
  const Request& request = *message.request;
  if (request.state == Request::State::kFailed) {
    throw LinkError{request.failure, links.describe(*message.peer, request.error)};
  }
  if (request.bytes != message.bytes) {
    throw LinkError{Failure::kTransport,
                    links.describe(*message.peer, "it sent " + std::to_string(request.bytes) +
                                                      " bytes to a receive of " + std::to_string(message.bytes))};
  }
}

}  // namespace paralet::collectives
