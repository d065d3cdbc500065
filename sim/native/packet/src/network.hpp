// SPDX-License-Identifier: Apache-2.0
// Links with rate and delay between hosts and output-queued, store-and-forward switches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "context.hpp"
#include "routes.hpp"

namespace paralet::packet {

class Transport;

/// Properties of one direction of a link that may change at any time.
struct LinkConditions {
  Time propagation;
  std::int64_t mark_bytes;  // ECN: data packets that find a queue of at least this length are marked; 0: never
  double loss;              // probability with which a data packet that was sent does not arrive
};

struct NetworkOptions {
  std::int64_t switch_bytes;   // buffer of a switch, shared by its ports
  std::int64_t port_bytes;     // limit of one output queue
  std::int64_t mark_bytes;     // of every link at the start
  bool pause;                  // priority flow control
  std::int64_t largest_bytes;  // size of the largest packet
  Scheme scheme;
  Time flowlet_gap;  // LetFlow: a flow that was idle for longer may take another link
  Time hold;         // ConWeave: how long packets wait for the tail of the previous epoch
};

/// A switch receives a packet completely, queues it at its output port, and drops it when the buffer is full. With
/// `pause` (priority flow control), it counts the buffered bytes of each input link and pauses that link's sender
/// before they exceed their part of the buffer. Acknowledgements have a class of their own: they are sent first, are
/// never paused, and are not counted in buffers. Where switches choose links, they choose among the links of the
/// destination's group. Hosts accept every packet. A NIC asks the transport for data whenever it is idle. A host in the
/// middle of a route relays: it has queues and a buffer as a switch, and its NIC sends packets of its own and relayed
/// ones in turn.
class Network {
 public:
  struct Groups {
    std::size_t first_switch = 0;            // node number of the first switch; the others follow
    std::vector<std::int32_t> of;            // by switch, then by last link: a group; -1: none
    std::vector<std::vector<LinkId>> links;  // by group
  };
  struct Counters {
    std::uint64_t bytes = 0;
    std::uint64_t packets = 0;
    std::uint64_t dropped = 0;
    std::uint64_t marked = 0;
    std::uint64_t lost = 0;
    std::uint64_t pauses = 0;
    std::int64_t max_queued = 0;  // bytes
  };

  /// Links 2k and 2k + 1 are the directions of a cable. `heads` are the nodes that links lead to, `propagations` what
  /// they have at the start. Throws std::invalid_argument when the buffer of a switch is too small for `pause`.
  Network(Context& context, const Routes& routes, std::span<const std::int64_t> rates,
          std::span<const Time> propagations, std::span<const NodeId> heads, std::span<const bool> switches,
          const NetworkOptions& options);

  void attach(Transport& transport) { transport_ = &transport; }
  void set_groups(Groups groups);
  /// Applies to packets from now on. Packets never overtake those that the link carries already. Throws
  /// std::invalid_argument for a propagation for which buffers with priority flow control were not laid out.
  void set_conditions(LinkId link, const LinkConditions& conditions);
  /// Whether hosts can relay: switches choose no routes, hold no packets and pause nobody.
  [[nodiscard]] bool can_relay() const {
    return !switches_choose(options_.scheme) && options_.scheme != Scheme::kConWeave && !options_.pause;
  }
  /// Whether each lane has a route of its own.
  [[nodiscard]] bool hashed() const { return options_.scheme == Scheme::kHashed; }
  /// Whether switches can forward data: `set_groups` has been called if the scheme needs groups.
  [[nodiscard]] bool can_forward() const { return !switches_choose(options_.scheme) || !groups_.links.empty(); }

  /// Queues an acknowledgement at a host's NIC.
  void send_ack(PacketId id);
  /// Tells a host's NIC that the transport has data to send.
  void wake(LinkId link) {
    if (!links_[link].busy) start(link);
  }

  void sent(LinkId link);
  void arrived(LinkId link);
  void pause(LinkId link) { links_[link].paused = true; }
  void resume(LinkId link);
  /// ConWeave: forwards the held packets of a queue pair if the hold time is over.
  void flush(QpId qp);

  [[nodiscard]] std::size_t nodes() const { return nodes_.size(); }
  [[nodiscard]] std::size_t links() const { return links_.size(); }
  [[nodiscard]] bool from_switch(LinkId link) const { return nodes_[links_[link ^ 1U].head].is_switch; }
  [[nodiscard]] bool to_switch(LinkId link) const { return nodes_[links_[link].head].is_switch; }
  [[nodiscard]] NodeId head(LinkId link) const { return links_[link].head; }
  [[nodiscard]] std::int64_t rate(LinkId link) const { return links_[link].rate; }
  [[nodiscard]] Time propagation(LinkId link) const { return links_[link].conditions.propagation; }
  [[nodiscard]] const Counters& counters(LinkId link) const { return links_[link].counters; }
  /// For how long a packet of that size occupies the link.
  [[nodiscard]] Time serialisation(LinkId link, std::int64_t bytes) const {
    return bytes * 8 * kSecond / links_[link].rate;
  }
  /// Number of packets in queues and on links.
  [[nodiscard]] std::uint64_t in_flight();

 private:
  struct Link {
    std::int64_t rate;
    NodeId head;
    LinkConditions conditions;
    Time first_propagation;  // for which buffers are laid out
    Time last_arrival = 0;   // of a packet in `propagating`
    PacketQueue acks;
    PacketQueue queue;          // of data to be passed on; hosts ask the transport for their own
    PacketQueue propagating;    // sent completely; they arrive in this order
    std::int64_t queued = 0;    // bytes in `queue`
    std::int64_t buffered = 0;  // bytes that came by this link and are in the buffer of the switch it leads to
    PacketId sending = kNone;
    bool busy = false;
    bool paused = false;
    bool own_turn = false;    // the last packet of data was relayed
    bool pause_sent = false;  // its sender has been told to pause
    Counters counters;
  };
  struct Node {
    bool is_switch;
    std::int64_t buffered = 0;
    std::int64_t pause_above = 0;  // bytes per input link
  };

  struct Flowlet {
    Time last = -1;
    LinkId link = kNone;
  };
  struct Held {  // ConWeave: what the last switch holds of a queue pair
    std::uint32_t epoch = 0;
    Time since = 0;
    PacketQueue packets;
  };
  static constexpr std::size_t kHops = 8;  // hops that LetFlow distinguishes

  LinkId choose_link(NodeId at, const Packet& packet);
  bool may_forward(LinkId link, PacketId id);
  void release_held(Held& held);
  void enqueue(LinkId link, PacketId id);
  void enqueue_ack(LinkId link, PacketId id);
  void start(LinkId link);
  /// The next packet of the host that sends on `link`; kNone: it has none, or a switch sends there.
  PacketId own_data(LinkId link);
  void free_buffer(NodeId at, const Packet& packet);

  Context& context_;
  const Routes& routes_;
  Transport* transport_ = nullptr;
  NetworkOptions options_;
  std::vector<Link> links_;
  std::vector<Node> nodes_;
  Groups groups_;
  std::vector<LinkId> best_;       // DRILL: by switch and group
  std::vector<Flowlet> flowlets_;  // LetFlow: by queue pair and hop
  std::vector<Held> held_;         // ConWeave: by queue pair
};

}  // namespace paralet::packet
