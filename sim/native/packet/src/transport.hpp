// SPDX-License-Identifier: Apache-2.0
// RoCE-like queue pairs: flowlets of messages, windows, acknowledgements and loss recovery.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "context.hpp"
#include "message_waits.hpp"
#include "network.hpp"
#include "routes.hpp"
#include "selective_repeat.hpp"

namespace paralet::packet {

enum class Receiver : std::uint8_t { kGoBackN, kSelectiveRepeat };

struct TransportOptions {
  std::int64_t payload_bytes;  // of a full packet
  std::int64_t header_bytes;   // of every packet, as links count it
  std::int64_t ack_bytes;      // of an acknowledgement, headers included
  Receiver receiver;
  bool dctcp;           // windows shrink when packets are marked; otherwise they are fixed
  double window_bdp;    // sum of a channel's windows, in bandwidth-delay products
  double timeout_rtts;  // round trips without progress until unacknowledged packets are sent again
  Scheme scheme;
  double reroute_rtts;  // ConWeave: a queue pair is rerouted when its probe is not answered within this
  bool lanes_per_host;  // the channels of a NIC share its lanes
};

/// A *channel* joins two hosts by queue pairs (lanes). A queue pair takes the next flowlet of the channel's message
/// when it has sent its last flowlet and its window is open. A NIC serves its queue pairs that can send in round robin,
/// packet by packet. Packets are numbered by queue pair. Flowlets are RDMA WRITEs, so they may arrive in any order.
/// With `lanes_per_host` (ParaLet, section 5.3) a NIC has as many lanes as each of its channels has queue pairs. Lane i
/// sends one flowlet at a time, by queue pair i of the flowlet's channel, and has a single window for all its peers.
/// Channels with waiting messages give one flowlet each in turn.
class Transport {
 public:
  struct Counters {             // by route
    std::uint64_t bytes = 0;    // payload, without retransmissions
    std::uint64_t packets = 0;  // data packets, with retransmissions
    std::uint64_t flowlets = 0;
    std::uint64_t retransmits = 0;
    std::uint64_t timeouts = 0;
  };
  struct Totals {
    std::uint64_t sent = 0;  // packets of all kinds that have entered the network
    std::uint64_t arrived = 0;
    std::uint64_t dropped = 0;
    std::uint64_t out_of_order = 0;  // data packets
  };

  Transport(Context& context, const Routes& routes, Network& network, const TransportOptions& options);

  /// A channel with one lane for each of `routes`, or, where queue pairs choose, with one lane that has all of them.
  /// Routes must have consecutive numbers and begin with the same NIC's link. Throws std::invalid_argument when a
  /// window is too large, or when channels of a NIC that share lanes have different numbers of routes.
  std::uint32_t add_channel(std::span<const std::uint32_t> routes, std::int64_t flowlet_bytes);
  /// With `channel` kNone and `bytes` 0 a host only computes: the message is delivered when its pause is over.
  /// The delivery of a `milestone` is put into `reached`.
  MessageId add_message(std::uint32_t channel, std::int64_t bytes, Time release, Time pause, bool milestone = false);
  /// From now on the queue pair sends by this route, which joins the same NICs; its window and timeout stay. Only for
  /// queue pairs with one route.
  void move(QpId number, std::uint32_t route) { qps_[number].route = route; }
  /// Waits may be added to a message until the next call of `activate`.
  [[nodiscard]] sim::MessageWaits& waits() { return waits_; }
  /// Schedules all messages added since the last call that wait for nothing.
  void activate();

  /// The next data packet of the NIC that sends on `link`; kNone: none.
  PacketId next(LinkId link);
  void receive(PacketId id);
  void dropped(const Packet&) { ++totals_.dropped; }
  void timer(QpId number);
  /// Selective repeat: a reordering window may have passed.
  void reorder_timer(QpId number);
  void release(MessageId message);

  [[nodiscard]] std::size_t channels() const { return channels_.size(); }
  [[nodiscard]] std::size_t messages() const { return messages_.size(); }
  [[nodiscard]] std::size_t undelivered() const { return waits_.undelivered(); }
  [[nodiscard]] Time delivered(MessageId message) const { return messages_[message].delivered; }  // -1: not yet
  /// Of a route with which a channel was added. What a queue pair sends after it has moved counts there, too.
  [[nodiscard]] const Counters& counters(std::uint32_t route) const { return counters_[route]; }
  [[nodiscard]] std::size_t counted_routes() const { return counters_.size(); }
  /// Milestones delivered since the caller last cleared this.
  [[nodiscard]] std::vector<MessageId>& reached() { return reached_; }
  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  static constexpr std::uint32_t kRecycled = 8;  // size of REPS's buffer

  struct Slot {  // a packet that is not acknowledged
    MessageId message;
    std::uint16_t bytes;
  };
  struct Qp {
    std::uint32_t channel;
    std::uint32_t first_route;
    std::uint32_t routes;
    std::uint32_t route;  // of the last packet
    LinkId nic;
    // The sender. Packet sequence numbers:
    std::uint32_t first = 0;    // the first that is not acknowledged
    std::uint32_t next = 0;     // the next to be sent
    std::uint32_t highest = 0;  // one above the last that was ever sent
    std::uint32_t end = 0;      // one above the last packet of its last flowlet
    MessageId flowlet_message = kNone;
    std::uint32_t flowlet_packet = 0;  // packet of the message to be sent next
    std::vector<Slot> slots;           // by number, modulo their size, which is a power of two
    double window = 0;                 // packets
    double max_window = 0;             // packets
    double alpha = 0;                  // DCTCP: average fraction of marked packets
    std::uint32_t round_end = 0;
    std::uint32_t round_acks = 0;
    std::uint32_t round_marks = 0;
    SelectiveRepeat repeat;
    Time reorder_at = kNeverTime;  // selective repeat: the event of the reordering timer
    std::uint32_t reach = 0;       // selective repeat: packets from `first` on that may be sent; a power of two
    Time progress = 0;             // when packets were last acknowledged, or one was sent while none was outstanding
    Time timeout = 0;
    Time reroute = 0;
    std::uint32_t counted = 0;                        // packets that its NIC's lane counts as being under way
    bool ready = false;                               // in its NIC's ready queue
    QpId behind = kNone;                              // the queue pair behind it there
    bool timer_set = false;                           // a timer event is pending
    std::array<std::uint32_t, kRecycled> recycled{};  // REPS: a ring buffer of routes, from `oldest` on
    std::uint32_t oldest = 0;
    std::uint32_t recycled_count = 0;
    std::uint32_t congested = 0;  // PLB: congested rounds in succession
    std::uint32_t epoch = 0;      // ConWeave
    std::uint32_t epoch_begin = 0;
    std::uint32_t probe = 0;
    Time probed = -1;  // when the probe was sent; -1: none is outstanding
    // The receiver.
    bool nak_sent = false;  // for `expected`
    std::uint32_t expected = 0;
    std::vector<bool> early;  // selective repeat: packets above `expected` that have arrived, modulo `reach`
  };
  struct Channel {
    QpId first;
    std::uint32_t lanes;
    std::uint32_t flowlet;  // packets per flowlet
    MessageId head = kNone;
    MessageId tail = kNone;
    std::uint32_t behind = kNone;  // the channel behind it among those that wait for the NIC's lanes
  };
  struct SharedLane {
    QpId sending = kNone;         // the queue pair whose flowlet it sends
    std::uint32_t under_way = 0;  // packets of all its queue pairs
    double window = 0;            // packets
  };
  struct SharedLanes {                    // of a NIC
    std::vector<SharedLane> lanes;        // empty unless channels share them
    std::uint32_t first_waiting = kNone;  // channels with messages that are not assigned completely
    std::uint32_t last_waiting = kNone;
    std::size_t turn = 0;  // the lane that is asked first
  };
  struct Message {
    std::int64_t bytes;
    Time release;
    Time pause;  // from when it is released and its waits are over until it is sent
    Time delivered = -1;
    std::uint32_t channel;
    std::uint32_t packets;
    std::uint32_t assigned = 0;  // packets assigned to lanes
    std::uint32_t arrived = 0;
    MessageId next = kNone;
    bool milestone = false;
  };
  struct ReadyQueue {  // queue pairs of a NIC that can send
    QpId head = kNone;
    QpId tail = kNone;
  };

  [[nodiscard]] static Slot& slot(Qp& qp, std::uint32_t psn) { return qp.slots[psn & (qp.slots.size() - 1)]; }
  [[nodiscard]] bool selective() const { return options_.receiver == Receiver::kSelectiveRepeat; }
  [[nodiscard]] static SelectiveRepeat::Range flight(const Qp& qp) { return {qp.first, qp.next}; }
  [[nodiscard]] std::uint16_t payload(const Message& message, std::uint32_t packet) const;
  [[nodiscard]] bool can_send(QpId number) const;
  [[nodiscard]] std::uint32_t any_route(const Qp& qp) { return qp.first_route + context_.random.below(qp.routes); }
  [[nodiscard]] Counters& counters_of(const Qp& qp) { return counters_[qp.routes == 1 ? qp.first_route : qp.route]; }
  std::uint32_t next_route(Qp& qp);
  bool reroute_after(Qp& qp, std::uint32_t psn);
  [[nodiscard]] SharedLane& shared_lane(const Qp& qp, QpId number) {
    return shared_[qp.nic].lanes[number - channels_[qp.channel].first];
  }
  void share_lanes(const Channel& channel);
  void wait_for_lanes(std::uint32_t channel);
  void take_turns(LinkId nic);
  bool give_flowlet(LinkId nic, std::size_t lane);
  void proceed(QpId number);
  void make_ready(QpId number);
  void take_flowlet(Qp& qp);
  void make_room(Qp& qp);
  void set_timer(QpId number);
  void receive_data(QpId number, PacketId id);
  void receive_ack(QpId number, const Packet& packet);
  void acknowledge(Qp& qp, std::uint32_t expected);
  void detect_losses(QpId number);
  void update_window(Qp& qp, bool marked, std::uint32_t count);
  void schedule(MessageId message);
  void packet_arrived(MessageId message);
  void deliver(MessageId message);

  Context& context_;
  const Routes& routes_;
  Network& network_;
  TransportOptions options_;
  std::vector<Qp> qps_;
  std::vector<Channel> channels_;
  std::vector<Message> messages_;
  sim::MessageWaits waits_;
  std::vector<ReadyQueue> ready_;    // by the NIC's link
  std::vector<SharedLanes> shared_;  // by the NIC's link
  Totals totals_;
  std::vector<Counters> counters_;  // by route
  std::vector<MessageId> reached_;
};

}  // namespace paralet::packet
