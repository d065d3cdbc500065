// SPDX-License-Identifier: Apache-2.0
#include "links.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "schedule.hpp"

namespace paralet::driver {
namespace {

std::string to_hex(const Handle& handle) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : handle.bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

Handle from_hex(std::string_view text) {
  Handle handle;
  for (std::size_t i = 0; i < Handle::kBytes; ++i) {
    unsigned value = 0;
    const char* digits = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, value, 16);
    if (error != std::errc() || end != digits + 2)
      throw NetError("a handle must consist of 256 hexadecimal digits per connection");
    handle.bytes[i] = static_cast<std::byte>(value);
  }
  return handle;
}

/// The handle of each outgoing edge.
std::map<Edge, Handle> by_edge(const std::vector<Edge>& edges, const Handles& handles) {
  std::map<unsigned, std::size_t> used;
  std::map<Edge, Handle> found;
  for (const Edge& edge : edges) {
    const auto text = handles.find(edge.peer);
    const std::size_t at = std::exchange(used[edge.peer], used[edge.peer] + 2 * Handle::kBytes);
    if (text == handles.end() || text->second.size() < at + 2 * Handle::kBytes) {
      throw NetError("the handle for the connection to rank " + std::to_string(edge.peer) + " is missing");
    }
    found[edge] = from_hex(std::string_view(text->second).substr(at, 2 * Handle::kBytes));
  }
  return found;
}

/// Names the first connection that is not yet there.
std::string missing(const Edges& edges, const Links& links) {
  for (const Edge& edge : edges.outgoing) {
    if (!links.outgoing.contains(edge)) return "the connection to rank " + std::to_string(edge.peer);
  }
  for (const Edge& edge : edges.incoming) {
    if (!links.incoming.contains(edge)) return "the connection from rank " + std::to_string(edge.peer);
  }
  return "nothing";
}

}  // namespace

Edges edges_of(Collective collective, unsigned rank, unsigned ranks) {
  Edges edges;
  switch (collective) {
    case Collective::kRing:
      edges.incoming.push_back({(rank + ranks - 1) % ranks, 0});
      edges.outgoing.push_back({(rank + 1) % ranks, 0});
      break;
    case Collective::kPingPong:
      edges.incoming.push_back({1 - rank, 0});
      edges.outgoing.push_back({1 - rank, 0});
      break;
    case Collective::kTree:
      const auto places = double_binary_tree(rank, ranks);
      for (unsigned channel = 0; channel < places.size(); ++channel) {
        if (places[channel].parent) edges.incoming.push_back({*places[channel].parent, channel});
        for (const unsigned child : places[channel].children) edges.incoming.push_back({child, channel});
      }
      std::sort(edges.incoming.begin(), edges.incoming.end());
      edges.outgoing = edges.incoming;
      break;
  }
  return edges;
}

Rendezvous::Rendezvous(Net& net, unsigned rank, Edges edges) : net_(net), rank_(rank), edges_(std::move(edges)) {
  for (const Edge& edge : edges_.incoming) {
    Listening& listening = listening_.emplace_back(Listening{edge, {}, nullptr});
    listening.comm = net_.listen(listening.handle);
  }
}

Rendezvous::~Rendezvous() {
  for (const Listening& listening : listening_) {
    if (listening.comm != nullptr) net_.close_listen(listening.comm);
  }
}

Handles Rendezvous::handles() const {
  Handles handles;
  for (const Listening& listening : listening_) handles[listening.edge.peer] += to_hex(listening.handle);
  return handles;
}

Links Rendezvous::connect(const Handles& handles, const SlotOptions& slots, PollDeadline deadline) {
  Links links;
  std::map<Edge, Handle> targets = by_edge(edges_.outgoing, handles);
  while (links.incoming.size() < edges_.incoming.size() || links.outgoing.size() < edges_.outgoing.size()) {
    bool progressed = false;
    for (auto& [edge, handle] : targets) {
      if (links.outgoing.contains(edge)) continue;
      if (void* comm = net_.connect(handle)) {
        links.outgoing[edge] = std::make_unique<SendLink>(net_, comm, static_cast<int>(rank_), slots);
        progressed = true;
      }
    }
    for (const Listening& listening : listening_) {
      if (links.incoming.contains(listening.edge)) continue;
      if (void* comm = net_.accept(listening.comm)) {
        const auto tag = static_cast<int>(listening.edge.peer);
        links.incoming[listening.edge] = std::make_unique<ReceiveLink>(net_, comm, tag, slots);
        progressed = true;
      }
    }
    deadline.poll(progressed, [&] { return missing(edges_, links); });
  }
  return links;
}

void warm_up(Links& links, std::size_t bytes, PollDeadline deadline) {
  for (const auto& [edge, link] : links.incoming) link->expect(1);
  for (const auto& [edge, link] : links.outgoing) {
    const std::span<std::byte> slot = link->free_slot();
    std::memset(slot.data(), 0, bytes);
    link->send(bytes);
  }
  std::string awaited = "the first messages";
  while (!awaited.empty()) {
    bool progressed = false;
    awaited.clear();
    for (const auto& [edge, link] : links.outgoing) {
      progressed |= link->progress();
      if (!link->idle()) awaited = "the first message to rank " + std::to_string(edge.peer);
    }
    for (const auto& [edge, link] : links.incoming) {
      progressed |= link->progress();
      if (!link->front()) awaited = "the first message from rank " + std::to_string(edge.peer);
    }
    deadline.poll(progressed, [&] { return awaited; });
  }
  for (const auto& [edge, link] : links.incoming) link->release();
}

}  // namespace paralet::driver
