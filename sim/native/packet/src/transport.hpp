// SPDX-License-Identifier: Apache-2.0
// RoCE-like queue pairs that carry messages: flowlets, windows, acknowledgements, loss recovery.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core.hpp"
#include "network.hpp"

namespace paralet::packet {

enum class Receiver : std::uint8_t { kGoBackN, kSelectiveRepeat };

struct TransportOptions {
  std::int64_t payload_bytes;  // of a full packet
  std::int64_t header_bytes;   // of every packet, as links count it
  std::int64_t ack_bytes;      // of an acknowledgement, in all
  Receiver receiver;
  bool reacts;          // windows shrink when marked (DCTCP); else they are fixed
  double window_bdp;    // a channel's windows together, in bandwidth-delay products
  double timeout_rtts;  // without any progress, until all is sent again
  double reorder_rtts;  // selective repeat: sent so much earlier than one that has arrived, it is lost
  Scheme scheme;
  double reroute_rtts;  // ConWeave: a probe not answered within that has its queue pair rerouted
};

/// A *channel* joins two hosts by queue pairs (lanes). Each takes a flowlet of the channel's next message whenever it
/// has sent all of its last one and its window is open; NICs serve the queue pairs that can send in turn, packet by
/// packet. A queue pair's packets are numbered; flowlets are RDMA WRITEs, so that they may arrive in any order.
class Transport {
 public:
  struct Counters {             // of what was sent by a route
    std::uint64_t bytes = 0;    // payload, what was sent again not counted
    std::uint64_t packets = 0;  // all
    std::uint64_t flowlets = 0;
    std::uint64_t again = 0;
    std::uint64_t timeouts = 0;
  };
  struct Totals {
    std::uint64_t sent = 0;  // packets of all kinds that entered the network
    std::uint64_t arrived = 0;
    std::uint64_t dropped = 0;
    std::uint64_t out_of_order = 0;  // data
  };

  Transport(Core& core, const Routes& routes, Network& network, const TransportOptions& options);

  /// A channel with a lane for each of `routes`, or, where queue pairs choose, with one lane that has all of them. The
  /// routes were added one after the other and begin with one NIC's link.
  std::uint32_t add_channel(std::span<const std::uint32_t> routes, std::int64_t flowlet_bytes);
  /// `channel` is kNone, and `bytes` 0, where a host only computes: it is delivered when its pause is over.
  MessageId add_message(std::uint32_t channel, std::int64_t bytes, Time release, Time pause);
  void add_wait(MessageId earlier, MessageId later);
  /// Messages since the last time that wait for nothing are sent from their release on, after their pause.
  void consider();

  /// What the NIC behind `link` sends next; kNone: nothing.
  PacketId next(LinkId link);
  void receive(PacketId id);
  void dropped(const Packet&) { ++totals_.dropped; }
  void timer(QpId number);
  void release(MessageId message);

  [[nodiscard]] std::size_t channels() const { return channels_.size(); }
  [[nodiscard]] std::size_t messages() const { return messages_.size(); }
  [[nodiscard]] std::size_t undelivered() const { return undelivered_; }
  [[nodiscard]] bool considered(MessageId message) const { return message < considered_; }
  [[nodiscard]] Time delivered(MessageId message) const { return messages_[message].delivered; }  // -1: not yet
  [[nodiscard]] const Counters& counters(std::uint32_t route) const { return counters_[route]; }
  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  static constexpr std::uint32_t kGood = 8;  // REPS's buffer

  struct Slot {  // of a packet that is not acknowledged
    Time sent;
    MessageId message;
    std::uint16_t bytes;
    bool has;   // the receiver has it
    bool lost;  // to be sent again
  };
  struct Qp {
    std::uint32_t channel;
    std::uint32_t first_route;
    std::uint32_t routes;
    std::uint32_t route;  // the last one taken
    LinkId nic;
    // The sender.
    std::uint32_t first = 0;    // not acknowledged
    std::uint32_t next = 0;     // to be sent
    std::uint32_t highest = 0;  // above all that were ever sent
    std::uint32_t end = 0;      // above all that it has been given
    MessageId flowlet_message = kNone;
    std::uint32_t flowlet_packet = 0;  // of the message, to be sent next
    std::uint32_t out = 0;             // selective repeat: sent, neither acknowledged nor lost
    std::uint32_t lost = 0;
    std::uint32_t mask = 0;  // of `slots`
    double window = 0;
    double most = 0;
    double marked_part = 0;  // DCTCP's alpha
    std::uint32_t round_end = 0;
    std::uint32_t round_acks = 0;
    std::uint32_t round_marks = 0;
    Time newest = 0;    // when the latest sent of what has arrived was sent
    Time progress = 0;  // when `first` last rose, or something was sent after nothing was out
    Time timeout = 0;
    Time reorder = 0;
    Time reroute = 0;
    bool ready = false;                       // in its NIC's line
    QpId behind = kNone;                      // it there
    bool timed = false;                       // a timer event is under way
    std::array<std::uint32_t, kGood> good{};  // recycled routes, oldest first from `oldest`
    std::uint32_t oldest = 0;
    std::uint32_t goods = 0;
    std::uint32_t congested = 0;  // PLB: rounds in succession
    std::uint32_t epoch = 0;      // ConWeave
    std::uint32_t epoch_begin = 0;
    std::uint32_t probe = 0;
    Time probed = -1;  // when the probe was sent; -1: none is out
    // The receiver.
    bool refused = false;  // has sent a NAK for `expected`
    std::uint32_t expected = 0;
    std::vector<Slot> slots;
    std::vector<bool> early;  // selective repeat: arrived, above `expected`
  };
  struct Channel {
    QpId first;
    std::uint32_t lanes;
    std::uint32_t flowlet;  // packets
    MessageId head = kNone;
    MessageId tail = kNone;
  };
  struct Message {
    std::int64_t bytes;
    Time release;
    Time pause;  // from when it is released, and all that it waits for is there, until it is sent
    Time delivered = -1;
    std::uint32_t channel;
    std::uint32_t packets;
    std::uint32_t given = 0;  // to lanes
    std::uint32_t arrived = 0;
    std::uint32_t awaited = 0;
    std::uint32_t first_wait = kNone;
    MessageId next = kNone;
  };
  struct Line {  // queue pairs that wait for their turn
    QpId head = kNone;
    QpId tail = kNone;
  };
  struct Wait {
    MessageId later;
    std::uint32_t next;
  };

  [[nodiscard]] Slot& slot(Qp& qp, std::uint32_t psn) const { return qp.slots[psn & qp.mask]; }
  [[nodiscard]] std::uint16_t payload(const Message& message, std::uint32_t packet) const;
  [[nodiscard]] bool can_send(const Qp& qp) const;
  [[nodiscard]] std::uint32_t any_route(const Qp& qp) { return qp.first_route + core_.dice.below(qp.routes); }
  std::uint32_t way(Qp& qp);
  bool last_on_route(Qp& qp, std::uint32_t psn);
  void make_ready(QpId number);
  void give(Qp& qp);
  void arm(QpId number);
  void take_data(QpId number, PacketId id);
  void take_answer(QpId number, const Packet& packet);
  void acknowledge(Qp& qp, std::uint32_t expected);
  void selected(Qp& qp, const Packet& packet);
  void adapt(Qp& qp, bool marked, std::uint32_t count);
  void schedule(MessageId message);
  void land(MessageId message);
  void deliver(MessageId message);

  Core& core_;
  const Routes& routes_;
  Network& network_;
  TransportOptions options_;
  std::vector<Qp> qps_;
  std::vector<Channel> channels_;
  std::vector<Message> messages_;
  std::vector<Wait> waits_;
  std::vector<Line> ready_;  // by NIC's link
  MessageId considered_ = 0;
  std::size_t undelivered_ = 0;
  Totals totals_;
  std::vector<Counters> counters_;  // by route
};

}  // namespace paralet::packet
