// SPDX-License-Identifier: Apache-2.0
// Links with rate and delay between hosts and output-queued, store-and-forward switches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core.hpp"

namespace paralet::packet {

class Transport;

struct NetworkOptions {
  Time propagation;            // per link
  std::int64_t switch_bytes;   // a switch's buffer, shared by its ports
  std::int64_t port_bytes;     // the most of it that one output queue may hold
  std::int64_t mark_bytes;     // queues at least this long mark data packets; 0: never
  bool pause;                  // priority flow control
  std::int64_t largest_bytes;  // of a packet
  Scheme scheme;
  Time flowlet_gap;  // LetFlow: idle for so long, a flow may take another way
  Time hold;         // ConWeave: how long packets wait for the tail of the epoch before
};

/// A switch takes a packet whole, queues it at the port that it leaves by, and drops it when the buffer is full. With
/// `pause` it counts what came by each of its links and stops that link's sender before this outgrows its part of the
/// buffer. Acknowledgements are a class of their own: sent first, never paused, too few to be counted in buffers.
/// Where switches choose ways, they do so among the links of a destination's group.
/// Hosts take whatever comes; their NICs draw data from the transport whenever they are free.
class Network {
 public:
  struct Groups {
    std::size_t first_switch = 0;            // the number of that node; the others follow
    std::vector<std::int32_t> of;            // by switch, then by the last link: a group; -1: none
    std::vector<std::vector<LinkId>> links;  // by group
  };
  struct Counters {
    std::uint64_t bytes = 0;
    std::uint64_t packets = 0;
    std::uint64_t dropped = 0;
    std::uint64_t marked = 0;
    std::uint64_t pauses = 0;
    std::int64_t longest = 0;  // bytes queued
  };

  /// Link 2k and 2k + 1 are the directions of a cable; `heads` are the nodes that links lead to.
  Network(Core& core, const Routes& routes, std::span<const std::int64_t> rates, std::span<const NodeId> heads,
          std::span<const bool> switches, const NetworkOptions& options);

  void attach(Transport& transport) { transport_ = &transport; }
  void set_groups(Groups groups);
  /// Whether switches can forward data.
  [[nodiscard]] bool knows_ways() const { return !switches_choose(options_.scheme) || !groups_.links.empty(); }

  /// A host's NIC gets an acknowledgement.
  void answer(PacketId id);
  /// A host's NIC is told that there are data to send.
  void wake(LinkId link) {
    if (!links_[link].busy) start(link);
  }

  void sent(LinkId link);
  void arrived(LinkId link);
  void pause(LinkId link) { links_[link].paused = true; }
  void resume(LinkId link);
  /// What is held for a queue pair goes on, if it has been held for long.
  void flush(QpId qp);

  [[nodiscard]] std::size_t nodes() const { return nodes_.size(); }
  [[nodiscard]] std::size_t links() const { return links_.size(); }
  [[nodiscard]] bool from_switch(LinkId link) const { return nodes_[links_[link ^ 1U].head].is_switch; }
  [[nodiscard]] bool to_switch(LinkId link) const { return nodes_[links_[link].head].is_switch; }
  [[nodiscard]] NodeId head(LinkId link) const { return links_[link].head; }
  [[nodiscard]] std::int64_t rate(LinkId link) const { return links_[link].rate; }
  [[nodiscard]] Time propagation() const { return options_.propagation; }
  [[nodiscard]] const Counters& counters(LinkId link) const { return links_[link].counters; }
  /// What a packet of that size occupies the link for.
  [[nodiscard]] Time serialisation(LinkId link, std::int64_t bytes) const {
    return bytes * 8 * kSecond / links_[link].rate;
  }
  /// Packets in queues and on links, counted one by one.
  [[nodiscard]] std::uint64_t in_flight();

 private:
  struct Link {
    std::int64_t rate;
    NodeId head;
    PacketQueue answers;
    PacketQueue queue;   // of data; hosts draw theirs from the transport
    PacketQueue flying;  // wholly sent; they arrive in this order
    std::int64_t queued = 0;
    std::int64_t held = 0;  // what came by it and is in the buffer of the switch it leads to
    PacketId sending = kNone;
    bool busy = false;
    bool paused = false;
    bool told = false;  // its sender has been told to pause
    Counters counters;
  };
  struct Node {
    bool is_switch;
    std::int64_t buffered = 0;
    std::int64_t pause_above = 0;  // per link
  };

  struct Flowlet {
    Time last = -1;
    LinkId link = kNone;
  };
  struct Held {  // by the last switch, of a queue pair
    std::uint32_t epoch = 0;
    Time since = 0;
    PacketQueue packets;
  };
  static constexpr std::size_t kHops = 8;  // that LetFlow tells apart

  LinkId chosen(NodeId at, const Packet& packet);
  bool in_order(LinkId link, PacketId id);
  void let_go(Held& held);
  void enqueue(LinkId link, PacketId id);
  void enqueue_answer(LinkId link, PacketId id);
  void start(LinkId link);
  void release(NodeId at, const Packet& packet);

  Core& core_;
  const Routes& routes_;
  Transport* transport_ = nullptr;
  NetworkOptions options_;
  std::vector<Link> links_;
  std::vector<Node> nodes_;
  Groups groups_;
  std::vector<LinkId> best_;       // DRILL's memory, by switch and group
  std::vector<Flowlet> flowlets_;  // LetFlow's, by queue pair and hop
  std::vector<Held> held_;         // ConWeave's, by queue pair
};

}  // namespace paralet::packet
