// SPDX-License-Identifier: Apache-2.0
// Two leaves of two hosts each under two spines, all links alike. Times are known in closed form, in picoseconds.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "simulation.hpp"

namespace paralet::packet {
namespace {

constexpr std::int64_t kRate = 10'000'000'000;
constexpr Time kPropagation = kSecond / 1'000'000;
constexpr std::int64_t kPayload = 4096;
constexpr std::int64_t kHeaders = 58;
constexpr Time kPacket = (kPayload + kHeaders) * 8 * (kSecond / kRate);  // on a link
constexpr std::int64_t kPackets = 200;                                   // of a message

// Nodes: hosts 0 to 3, leaves 4 and 5, spines 6 and 7. Links 2k and 2k + 1 are the directions of cable k.
constexpr std::array<NodeId, 16> kHeads{4, 0, 4, 1, 5, 2, 5, 3, 6, 4, 7, 4, 5, 6, 5, 7};
constexpr std::array<bool, 8> kSwitches{false, false, false, false, true, true, true, true};
constexpr std::array<LinkId, 2> kUp{8, 10};     // from the first leaf to either spine
constexpr std::array<LinkId, 2> kDown{12, 14};  // from there to the second leaf
constexpr std::array<LinkId, 6> kRelayed{0, 3, 2, 8, 12, 5};
constexpr std::array<LinkId, 4> kStraightBack{4, 13, 9, 1};

constexpr NetworkOptions kNetwork{.switch_bytes = 9'000'000,
                                  .port_bytes = 9'000'000,
                                  .mark_bytes = 0,
                                  .pause = false,
                                  .largest_bytes = kPayload + kHeaders,
                                  .scheme = Scheme::kHashed,
                                  .flowlet_gap = 0,
                                  .hold = 0};
constexpr TransportOptions kTransport{.payload_bytes = kPayload,
                                      .header_bytes = kHeaders,
                                      .ack_bytes = 62,
                                      .receiver = Receiver::kGoBackN,
                                      .dctcp = false,
                                      .window_bdp = 2.0,
                                      .timeout_rtts = 100.0,
                                      .scheme = Scheme::kHashed,
                                      .reroute_rtts = 2.0,
                                      .lanes_per_host = false};

constexpr NetworkOptions shallow(bool pause) {
  NetworkOptions options = kNetwork;
  options.switch_bytes = options.port_bytes = 200'000;
  options.pause = pause;
  return options;
}

constexpr TransportOptions eager(Receiver receiver) {
  TransportOptions options = kTransport;
  options.receiver = receiver;
  options.window_bdp = 20.0;
  return options;
}

class Fabric {
 public:
  explicit Fabric(const NetworkOptions& network = kNetwork, const TransportOptions& transport = kTransport,
                  std::uint64_t seed = 1, Time uplink_propagation = kPropagation)
      : simulation_(kRates, propagations(uplink_propagation), kHeads, kSwitches, network, transport, seed) {}

  /// A message of `kPackets` packets from host 0 or 1 to host 2 or 3, over one spine, on its own channel.
  MessageId send(NodeId src, NodeId dst, std::size_t spine) {
    const std::array<LinkId, 4> links{src * 2, kUp[spine], kDown[spine], dst * 2 + 1};
    const std::array<std::uint32_t, 1> routes{simulation_.routes().add(links)};
    routes_.push_back(routes[0]);
    return transport().add_message(transport().add_channel(routes, 8 * kPayload), kPackets * kPayload, 0, 0);
  }

  /// A message from host 0 to host 2, which host 1 relays; acknowledgements go straight back.
  MessageId send_relayed() {
    const std::array<std::uint32_t, 1> routes{simulation_.routes().add(kRelayed, kStraightBack)};
    routes_.push_back(routes[0]);
    return transport().add_message(transport().add_channel(routes, 8 * kPayload), kPackets * kPayload, 0, 0);
  }

  /// Runs three messages to one host until they are delivered.
  void overload() {
    send(0, 2, 0);
    send(1, 2, 0);
    send(1, 2, 1);
    run();
  }

  void advance(Time until) { simulation_.advance(until); }

  void run() {
    simulation_.advance(Simulation::kForever);
    REQUIRE(transport().undelivered() == 0);
    const auto& totals = transport().totals();
    CHECK(totals.sent == totals.arrived + totals.dropped + network().in_flight());
  }

  Transport& transport() { return simulation_.transport(); }
  Network& network() { return simulation_.network(); }
  [[nodiscard]] Time now() const { return simulation_.now(); }

  /// Over all links, and over all routes.
  std::uint64_t sum(std::uint64_t Network::Counters::*counter) {
    std::uint64_t total = 0;
    for (LinkId link = 0; link < kHeads.size(); ++link) total += network().counters(link).*counter;
    return total;
  }
  std::uint64_t sum(std::uint64_t Transport::Counters::*counter) {
    std::uint64_t total = 0;
    for (const auto route : routes_) total += transport().counters(route).*counter;
    return total;
  }

 private:
  static std::array<Time, kHeads.size()> propagations(Time of_first_uplink) {
    std::array<Time, kHeads.size()> found{};
    std::ranges::fill(found, kPropagation);
    found.at(kUp[0]) = of_first_uplink;
    return found;
  }

  static constexpr auto kRates = [] {
    std::array<std::int64_t, kHeads.size()> rates{};
    std::ranges::fill(rates, kRate);
    return rates;
  }();

  Simulation simulation_;
  std::vector<std::uint32_t> routes_;
};

/// Arrival time of the last of `packets` back-to-back packets over four links.
constexpr Time end_of(std::int64_t packets) { return (packets + 3) * kPacket + 4 * kPropagation; }

TEST_CASE("flows on disjoint paths take exactly the time of a single flow") {
  Fabric fabric;
  const std::array messages{fabric.send(0, 2, 0), fabric.send(1, 3, 1)};
  fabric.run();
  for (const auto message : messages) CHECK(fabric.transport().delivered(message) == end_of(kPackets));
  CHECK(fabric.sum(&Transport::Counters::retransmits) == 0);
}

TEST_CASE("colliding flows share the link packet by packet and end when twice as many packets would") {
  Fabric fabric;
  const std::array messages{fabric.send(0, 2, 0), fabric.send(1, 3, 0)};
  fabric.run();
  const auto [first, last] =
      std::minmax({fabric.transport().delivered(messages[0]), fabric.transport().delivered(messages[1])});
  CHECK(last == end_of(2 * kPackets));
  CHECK(first >= last - 2 * kPacket);
  CHECK(fabric.network().counters(kUp[0]).packets == 2 * kPackets);
  CHECK(fabric.network().counters(kUp[1]).packets == 0);
}

TEST_CASE("a host relays without loss, and acknowledgements take their own route") {
  Fabric fabric;
  const MessageId message = fabric.send_relayed();
  fabric.run();
  CHECK(fabric.transport().delivered(message) == (kPackets + 5) * kPacket + 6 * kPropagation);
  for (const LinkId link : kRelayed) CHECK(fabric.network().counters(link).packets == kPackets);
  // The simulation ends with the last delivery, before the last acknowledgement is sent.
  for (const LinkId link : kStraightBack) CHECK(fabric.network().counters(link).packets == kPackets - 1);
}

TEST_CASE("a relay sends packets of its own and of others in turn") {
  Fabric fabric;
  const std::array messages{fabric.send_relayed(), fabric.send(1, 3, 1)};
  fabric.run();
  CHECK(fabric.network().counters(kRelayed[2]).packets == 2 * kPackets);
  CHECK(fabric.sum(&Network::Counters::dropped) == 0);
  for (const auto message : messages) {
    CHECK(fabric.transport().delivered(message) >= (2 * kPackets - 4) * kPacket);
    CHECK(fabric.transport().delivered(message) <= (2 * kPackets + 6) * kPacket + 6 * kPropagation);
  }
}

TEST_CASE("a pause begins after the last wait, with or without data to send") {
  Fabric fabric;
  const MessageId first = fabric.send(0, 2, 0);
  Transport& transport = fabric.transport();
  constexpr Time kPause = kSecond / 1000;
  const MessageId computing = transport.add_message(kNone, 0, 0, kPause);
  const MessageId second = transport.add_message(0, kPackets * kPayload, 0, 2 * kPause);
  const MessageId late = transport.add_message(kNone, 0, kSecond, kPause);
  transport.waits().add_wait(first, computing);
  transport.waits().add_wait(computing, second);
  transport.waits().add_wait(second, late);
  fabric.run();
  CHECK(transport.delivered(computing) == end_of(kPackets) + kPause);
  CHECK(transport.delivered(second) == 2 * end_of(kPackets) + 3 * kPause);
  CHECK(transport.delivered(late) == kSecond + kPause);
}

TEST_CASE("with PFC a shallow buffer pauses, never drops, and keeps the bottleneck link busy") {
  Fabric fabric(shallow(true), eager(Receiver::kGoBackN));
  fabric.send(0, 2, 0);
  fabric.send(1, 2, 1);
  fabric.run();
  CHECK(fabric.sum(&Network::Counters::pauses) > 0);
  CHECK(fabric.sum(&Network::Counters::dropped) == 0);
  CHECK(fabric.sum(&Transport::Counters::retransmits) == 0);
  CHECK(fabric.now() == end_of(2 * kPackets));
}

TEST_CASE("dropped packets are retransmitted; go-back-N also retransmits the packets after them") {
  for (const auto receiver : {Receiver::kGoBackN, Receiver::kSelectiveRepeat}) {
    Fabric fabric(shallow(false), eager(receiver));
    fabric.overload();
    const auto dropped = fabric.sum(&Network::Counters::dropped);
    const auto retransmits = fabric.sum(&Transport::Counters::retransmits);
    CHECK(dropped > 0);
    CHECK(fabric.transport().totals().out_of_order > 0);
    CHECK((receiver == Receiver::kGoBackN ? retransmits > dropped : retransmits == dropped));
    CHECK(fabric.sum(&Transport::Counters::bytes) == 3 * kPackets * kPayload);
    CHECK(fabric.sum(&Transport::Counters::packets) == 3 * kPackets + retransmits);
    CHECK(fabric.now() >= end_of(3 * kPackets));
  }
}

TEST_CASE("a link with a longer delay delays every packet, and a change does not let packets overtake") {
  Fabric fabric;
  constexpr Time kLonger = 5 * kPacket;
  fabric.network().set_conditions(kUp[0], {.propagation = kPropagation + kLonger, .mark_bytes = 0, .loss = 0});
  const MessageId message = fabric.send(0, 2, 0);
  fabric.advance(kPackets / 2 * kPacket);
  fabric.network().set_conditions(kUp[0], {.propagation = kPropagation, .mark_bytes = 0, .loss = 0});
  fabric.run();
  CHECK(fabric.transport().totals().out_of_order == 0);
  // Later packets catch up with the delayed ones, and wait in the next queue instead.
  CHECK(fabric.transport().delivered(message) == end_of(kPackets) + kLonger);
  Fabric other;
  other.network().set_conditions(kUp[0], {.propagation = kPropagation + kLonger, .mark_bytes = 0, .loss = 0});
  const MessageId late = other.send(0, 2, 0);
  other.run();
  CHECK(other.transport().delivered(late) == end_of(kPackets) + kLonger);
}

TEST_CASE("a link with loss loses its share of the data, which is retransmitted") {
  for (const auto receiver : {Receiver::kGoBackN, Receiver::kSelectiveRepeat}) {
    Fabric fabric(kNetwork, eager(receiver));
    fabric.network().set_conditions(kUp[0], {.propagation = kPropagation, .mark_bytes = 0, .loss = 0.1});
    fabric.overload();
    const auto& lossy = fabric.network().counters(kUp[0]);
    CHECK(lossy.lost > lossy.packets / 20);
    CHECK(lossy.lost < lossy.packets / 5);
    CHECK(fabric.sum(&Network::Counters::lost) == lossy.lost);
    CHECK(fabric.sum(&Transport::Counters::retransmits) >= lossy.lost);
  }
}

TEST_CASE("a link has a threshold for marks of its own") {
  Fabric fabric(kNetwork, eager(Receiver::kGoBackN));
  fabric.network().set_conditions(kDown[0], {.propagation = kPropagation, .mark_bytes = 1, .loss = 0});
  fabric.network().set_conditions(kUp[0], {.propagation = kPropagation, .mark_bytes = 10 * kPayload, .loss = 0});
  fabric.overload();
  CHECK(fabric.network().counters(kUp[0]).marked > 0);
  CHECK(fabric.network().counters(kUp[0]).marked < fabric.network().counters(kUp[0]).packets);
  CHECK(fabric.sum(&Network::Counters::marked) ==
        fabric.network().counters(kUp[0]).marked + fabric.network().counters(kDown[0]).marked);
}

TEST_CASE("every link has its own propagation") {
  Fabric fabric(kNetwork, kTransport, 1, 5 * kPropagation);
  const std::array messages{fabric.send(0, 2, 0), fabric.send(1, 3, 1)};
  fabric.run();
  CHECK(fabric.transport().delivered(messages[0]) == end_of(kPackets) + 4 * kPropagation);
  CHECK(fabric.transport().delivered(messages[1]) == end_of(kPackets));
}

TEST_CASE("priority flow control takes no longer delay than its buffers were laid out for") {
  Fabric fabric(shallow(true), kTransport, 1, 2 * kPropagation);
  const auto delay = [&](LinkId link, Time propagation) {
    fabric.network().set_conditions(link, {.propagation = propagation, .mark_bytes = 0, .loss = 0});
  };
  CHECK_THROWS_AS(delay(0, kPropagation + 1), std::invalid_argument);
  CHECK_THROWS_AS(delay(kUp[0], 2 * kPropagation + 1), std::invalid_argument);
  delay(kUp[0], 2 * kPropagation);
}

TEST_CASE("priority flow control refuses delays for which no buffer is large enough, however long they are") {
  for (const Time longest : {kSecond / 1000, kSecond, 1'000'000 * kSecond})
    CHECK_THROWS_AS(Fabric(shallow(true), kTransport, 1, longest), std::invalid_argument);
}

TEST_CASE("a lost packet is repeated within a round trip; without packets behind it, after the timeout") {
  for (const bool tail : {false, true}) {
    TransportOptions selective = kTransport;
    selective.receiver = Receiver::kSelectiveRepeat;
    Fabric fabric(kNetwork, selective);
    const MessageId message = fabric.send(0, 2, 0);
    const auto lose = [&](double loss) {
      fabric.network().set_conditions(kUp[0], {.propagation = kPropagation, .mark_bytes = 0, .loss = loss});
    };
    const Time left = (tail ? kPackets : kPackets / 2) * kPacket + kPropagation;  // when this packet comes to the leaf
    fabric.advance(left + kPacket / 2);
    lose(1.0);
    fabric.advance(left + kPacket + kPacket / 2);
    lose(0.0);
    fabric.run();
    CHECK(fabric.sum(&Network::Counters::lost) == 1);
    CHECK(fabric.sum(&Transport::Counters::retransmits) == 1);
    CHECK(fabric.sum(&Transport::Counters::timeouts) == (tail ? 1 : 0));
    const Time late = fabric.transport().delivered(message) - end_of(kPackets);
    CHECK((tail ? late > 50 * kPacket : late == kPacket));  // the link has no other gap
  }
}

TEST_CASE("equal seeds give equal runs, and others do not") {
  const auto run = [](std::uint64_t seed) {
    Fabric fabric(shallow(false), eager(Receiver::kGoBackN), seed);
    fabric.network().set_conditions(kUp[0], {.propagation = kPropagation, .mark_bytes = 0, .loss = 0.1});
    fabric.overload();
    return std::pair(fabric.now(), fabric.transport().totals().sent);
  };
  CHECK(run(1) == run(1));
  CHECK(run(1) != run(2));
}

}  // namespace
}  // namespace paralet::packet
