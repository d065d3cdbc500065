// SPDX-License-Identifier: Apache-2.0
// The connections of a rank in a collective, and how they are set up.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "poll_deadline.hpp"
#include "proxy.hpp"

namespace paralet::driver {

enum class Collective { kRing, kTree, kPingPong };

/// One direction of a connection, named by its peer. Each of the two trees has its own channel.
struct Edge {
  unsigned peer;
  unsigned channel;
  bool operator<(const Edge& other) const { return std::tie(peer, channel) < std::tie(other.peer, other.channel); }
};

/// Each in ascending order.
struct Edges {
  std::vector<Edge> incoming;
  std::vector<Edge> outgoing;
};

Edges edges_of(Collective collective, unsigned rank, unsigned ranks);

struct Links {
  std::map<Edge, std::unique_ptr<ReceiveLink>> incoming;
  std::map<Edge, std::unique_ptr<SendLink>> outgoing;
};

/// By peer: the handles of all connections from or to that rank, in the order of their channels, in hexadecimal.
using Handles = std::map<unsigned, std::string>;

/// Sets up all connections: listens for every incoming edge, then connects every outgoing one.
class Rendezvous {
 public:
  Rendezvous(Net& net, unsigned rank, Edges edges);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();

  /// The handles for each rank that will connect to this one.
  [[nodiscard]] Handles handles() const;
  /// `handles`: of each rank that this one connects to. Throws NetError.
  Links connect(const Handles& handles, const SlotOptions& slots, PollDeadline deadline);

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

/// Sends a message of `bytes` on every link and waits until all have arrived: QPs are created, and switches learn
/// flows, on first use. Throws NetError.
void warm_up(Links& links, std::size_t bytes, PollDeadline deadline);

}  // namespace paralet::driver
