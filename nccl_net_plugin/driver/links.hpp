// SPDX-License-Identifier: Apache-2.0
// Which connections a rank has in a collective, and how they come to be.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "patience.hpp"
#include "proxy.hpp"

namespace paralet::driver {

enum class Collective { kRing, kTree, kPingPong };

/// One direction of a connection, as one of its ends names it. Trees have a channel each.
struct Edge {
  unsigned peer;
  unsigned channel;
  bool operator<(const Edge& other) const { return std::tie(peer, channel) < std::tie(other.peer, other.channel); }
};

/// Ascending.
struct Edges {
  std::vector<Edge> incoming;
  std::vector<Edge> outgoing;
};

Edges edges_of(Collective collective, unsigned rank, unsigned ranks);

struct Links {
  std::map<Edge, std::unique_ptr<ReceiveLink>> incoming;
  std::map<Edge, std::unique_ptr<SendLink>> outgoing;
};

/// By peer: the handles of all connections from, or to, that rank in the order of their channels, as hexadecimal
/// digits.
using Handles = std::map<unsigned, std::string>;

/// Listens for every incoming edge, then connects all of them.
class Rendezvous {
 public:
  Rendezvous(Net& net, unsigned rank, Edges edges);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();

  /// For each rank that will connect to this one.
  [[nodiscard]] Handles handles() const;
  /// `handles`: from each rank that this one connects to. Throws NetError.
  Links connect(const Handles& handles, const SlotOptions& slots, Patience patience);

 private:
  Net& net_;
  unsigned rank_;
  Edges edges_;
  struct Listening {
    Edge edge;
    Handle handle;
    void* comm;
  };
  std::vector<Listening> listening_;
};

/// Sends a message of `bytes` on every link and waits until all have come: QPs are made, and switches learn flows, when
/// first used.
void warm_up(Links& links, std::size_t bytes, Patience patience);

}  // namespace paralet::driver
