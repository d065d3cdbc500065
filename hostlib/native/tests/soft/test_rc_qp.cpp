// SPDX-License-Identifier: Apache-2.0
// Two QPs joined by a simulated wire, with a clock of their own: no sockets, no sleeping, every run the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "bytes.hpp"
#include "soft/rc_qp.hpp"

namespace paralet {
namespace {

using test::Bytes;
using wire::Opcode;
using wire::Syndrome;

constexpr std::uint32_t kRequesterQpn = 0x11;
constexpr std::uint32_t kResponderQpn = 0x22;
constexpr Nanos kOneWay = 100 * kMicrosecond;

std::uint8_t code(Syndrome syndrome) { return static_cast<std::uint8_t>(syndrome); }

/// A packet as bytes on the wire. The ICRC, checked outside the machine, stays zero.
Bytes serialize(const wire::Header& header, std::span<const std::byte> payload = {}, std::uint8_t pad = 0) {
  Bytes out(header.bytes.begin(), header.bytes.begin() + header.length);
  out.insert(out.end(), payload.begin(), payload.end());
  out.resize(out.size() + pad + wire::kIcrcBytes);
  return out;
}

struct Parsed {
  explicit Parsed(Bytes b) : bytes(std::move(b)) { REQUIRE(wire::parse(bytes, packet) == wire::ParseError::kNone); }
  Bytes bytes;
  wire::Packet packet;
};

struct LinkOptions {
  std::uint32_t path_mtu = 1024;
  std::uint32_t first_psn = 0;
  std::uint32_t remote_first_psn = 0x123456;
  Nanos retry_time = 10 * kSecond;
  std::size_t receive_buffers = 1 << 16;
  std::uint32_t receive_bytes = 64;
  double initial_window = 4;
  std::uint32_t burst = 1;
  Nanos ask_after = kNever;
};

/// One requester and one responder, and what may happen to packets between them.
class Link {
 public:
  /// The delays after which copies of a packet arrive: none is a loss, two a duplicate, a long one reorders.
  using Fate = std::function<std::vector<Nanos>(const wire::Packet&, std::size_t index)>;

  explicit Link(const LinkOptions& options = {}) : options_(options), receive_memory_(1 << 20) {
    for (std::size_t i = 0; i < options.receive_buffers; ++i) post_receive();
    requester_ = make(kRequesterQpn, kResponderQpn, options.first_psn, options.remote_first_psn, requester_memory_,
                      requester_queue_, requester_done_);
    responder_ =
        make(kResponderQpn, kRequesterQpn, options.remote_first_psn, options.first_psn, memory_, queue_, received_);
  }

  RcQp& requester() { return *requester_; }
  RcQp& responder() { return *responder_; }
  MemoryTable& memory() { return memory_; }
  std::vector<Completion>& sent() { return requester_done_; }
  std::vector<Completion>& received() { return received_; }
  [[nodiscard]] const Bytes& receive_memory() const { return receive_memory_; }
  [[nodiscard]] const std::vector<std::uint8_t>& opcodes() const { return opcodes_; }
  /// Packets that left together, one number for each time.
  [[nodiscard]] const std::vector<std::size_t>& bursts() const { return bursts_; }
  [[nodiscard]] Nanos now() const { return now_; }

  Fate data_fate = [](const wire::Packet&, std::size_t) { return std::vector{kOneWay}; };
  Fate ack_fate = data_fate;

  void post_receive() {
    const std::size_t slots = receive_memory_.size() / options_.receive_bytes;
    const std::size_t slot = posted_receives_++ % slots;
    queue_.push_back({.data = receive_memory_.data() + slot * options_.receive_bytes,
                      .length = options_.receive_bytes,
                      .cookie = slot});
  }

  /// Lets everything happen until the requester is idle or `until`. A stalled machine is an error.
  void run(Nanos until = 3600 * kSecond) {
    for (int steps = 0; !requester_->idle(); ++steps) {
      REQUIRE(steps < 2'000'000);
      while (requester_->should_send(now_)) bursts_.push_back(send_burst());
      const Nanos arrival = wire_.empty() ? kNever : wire_.begin()->first;
      const Nanos next = std::min(arrival, requester_->deadline());
      REQUIRE(next != kNever);  // nothing would ever happen again
      if (next > until) {
        now_ = until;
        return;
      }
      now_ = std::max(now_, next);
      while (!wire_.empty() && wire_.begin()->first <= now_) {
        const Flying flying = std::move(wire_.begin()->second);
        wire_.erase(wire_.begin());
        deliver(flying);
      }
      requester_->on_timer(now_);
    }
  }

  /// Hands what is still on the wire to whom it is for: late copies, after all is done.
  void drain() {
    while (!wire_.empty()) {
      now_ = std::max(now_, wire_.begin()->first);
      const Flying flying = std::move(wire_.begin()->second);
      wire_.erase(wire_.begin());
      deliver(flying);
    }
  }

  void inject(const Bytes& request) {
    const Parsed parsed(request);
    responder_->on_request(parsed.packet);
  }

 private:
  struct Flying {
    Bytes bytes;
    bool to_responder;
  };

  std::unique_ptr<RcQp> make(std::uint32_t qpn, std::uint32_t remote, std::uint32_t psn, std::uint32_t remote_psn,
                             MemoryTable& memory, ReceiveQueue& queue, std::vector<Completion>& done) const {
    return std::make_unique<RcQp>(RcQpOptions{.qpn = qpn,
                                              .first_psn = psn,
                                              .remote_qpn = remote,
                                              .remote_first_psn = remote_psn,
                                              .path_mtu = options_.path_mtu,
                                              .retry_time = options_.retry_time,
                                              .ask_after = options_.ask_after,
                                              .burst = options_.burst},
                                  DelayControlOptions{.initial_window = options_.initial_window}, memory, queue, done);
  }

  std::size_t send_burst() {
    std::size_t packets = 0;
    for (; packets < options_.burst && requester_->can_send(now_); ++packets) {
      const std::size_t announced = requester_->next_packet_bytes();
      const auto packet = requester_->next_packet(now_);
      REQUIRE(packet);
      const Bytes bytes = serialize(packet->header, packet->payload, packet->pad);
      REQUIRE(bytes.size() == announced);
      launch(bytes, data_fate, data_index_, true);
    }
    return packets;
  }

  void launch(Bytes bytes, const Fate& fate, std::size_t& index, bool to_responder) {
    const Parsed parsed(std::move(bytes));
    REQUIRE(parsed.packet.dest_qpn == (to_responder ? kResponderQpn : kRequesterQpn));
    if (to_responder) opcodes_.push_back(parsed.packet.opcode);
    for (const Nanos delay : fate(parsed.packet, index++)) {
      wire_.emplace(now_ + delay, Flying{parsed.bytes, to_responder});
    }
  }

  void deliver(const Flying& flying) {
    const Parsed parsed(flying.bytes);
    if (!flying.to_responder) {
      requester_->on_acknowledge(parsed.packet, now_, base_rtt_);
      base_rtt_ = std::min(base_rtt_, requester_->control().min_rtt());
      return;
    }
    responder_->on_request(parsed.packet);
    if (const auto ack = responder_->take_acknowledgement()) launch(serialize(*ack), ack_fate, ack_index_, false);
    CHECK_FALSE(responder_->take_acknowledgement());
  }

  LinkOptions options_;
  MemoryTable requester_memory_;
  MemoryTable memory_;
  ReceiveQueue requester_queue_;
  ReceiveQueue queue_;
  std::vector<Completion> requester_done_;
  std::vector<Completion> received_;
  Bytes receive_memory_;
  std::size_t posted_receives_ = 0;
  std::unique_ptr<RcQp> requester_;
  std::unique_ptr<RcQp> responder_;
  std::multimap<Nanos, Flying> wire_;
  std::size_t data_index_ = 0;
  std::size_t ack_index_ = 0;
  std::vector<std::uint8_t> opcodes_;
  std::vector<std::size_t> bursts_;
  Nanos now_ = kSecond;
  Nanos base_rtt_ = kNever;
};

/// Memory on the responder's side that may be written.
struct Target {
  Target(Link& link, std::size_t length) : bytes(length), rkey(link.memory().add(bytes.data(), length)) {}
  Bytes bytes;
  std::uint32_t rkey;
};

WorkRequest write(const Bytes& data, const Target& target, std::uint64_t cookie = 1,
                  WorkKind kind = WorkKind::kWriteImm) {
  return {.kind = kind,
          .cookie = cookie,
          .data = data.data(),
          .length = static_cast<std::uint32_t>(data.size()),
          .rkey = target.rkey,
          .imm = static_cast<std::uint32_t>(0xA0000000 + cookie)};
}

/// Requests completed with success, in order and once each.
void check_sent(const Link& /*link*/, const std::vector<Completion>& sent, std::size_t count) {
  REQUIRE(sent.size() == count);
  for (std::size_t i = 0; i < count; ++i) {
    CHECK(sent[i].kind == Completion::Kind::kSent);
    CHECK(sent[i].status == Status::kSuccess);
    CHECK(sent[i].cookie == i + 1);
  }
}

TEST_CASE("a write with immediate arrives whole and completes once on each side") {
  Link link;
  const Bytes data = test::random_fill(1, 5000);
  Target target(link, 5000);
  link.requester().post(write(data, target));
  link.run();
  CHECK(target.bytes == data);
  check_sent(link, link.sent(), 1);
  CHECK(link.sent()[0].byte_length == 5000);
  REQUIRE(link.received().size() == 1);
  CHECK(link.received()[0].kind == Completion::Kind::kReceivedWriteImm);
  CHECK(link.received()[0].byte_length == 5000);
  CHECK(link.received()[0].imm == 0xA0000001);
  CHECK(link.received()[0].qpn == kResponderQpn);
  const std::vector<std::uint8_t> expected{0x06, 0x07, 0x07, 0x07, 0x09};
  CHECK(link.opcodes() == expected);
  CHECK(link.requester().counters().tx_packets == 5);
  CHECK(link.requester().counters().tx_bytes == 5000);
  CHECK(link.requester().counters().retransmits == 0);
  CHECK(link.responder().counters().rx_packets == 5);
  CHECK(link.responder().counters().rx_bytes == 5000);
  CHECK(link.requester().all_acknowledged());
}

TEST_CASE("lengths around the path MTU, for every path MTU") {
  for (const std::uint32_t mtu : {256U, 512U, 1024U, 2048U, 4096U}) {
    for (const std::uint32_t length : {0U, 1U, 3U, 4U, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu - 1}) {
      CAPTURE(mtu);
      CAPTURE(length);
      Link link({.path_mtu = mtu});
      const Bytes data = test::random_fill(length, length);
      Target target(link, length + 8);
      link.requester().post(write(data, target));
      link.run();
      CHECK(std::equal(data.begin(), data.end(), target.bytes.begin()));
      CHECK(std::all_of(target.bytes.begin() + length, target.bytes.end(),
                        [](std::byte b) { return b == std::byte{0}; }));
      check_sent(link, link.sent(), 1);
      REQUIRE(link.received().size() == 1);
      CHECK(link.received()[0].byte_length == length);
      CHECK(link.opcodes().size() == std::max(1U, (length + mtu - 1) / mtu));
    }
  }
}

TEST_CASE("a write without immediate takes no receive buffer and tells the responder nothing") {
  Link link({.receive_buffers = 0});
  const Bytes data = test::random_fill(1, 3000);
  Target target(link, 3000);
  link.requester().post(write(data, target, 1, WorkKind::kWrite));
  link.run();
  CHECK(target.bytes == data);
  check_sent(link, link.sent(), 1);
  CHECK(link.received().empty());
  const std::vector<std::uint8_t> expected{0x06, 0x07, 0x08};
  CHECK(link.opcodes() == expected);
}

TEST_CASE("sends of one and of several packets land in receive buffers, in order") {
  Link link({.path_mtu = 256, .receive_bytes = 1024});
  const std::array<Bytes, 4> messages{test::random_fill(1, 40), test::random_fill(2, 1024), Bytes{},
                                      test::random_fill(3, 257)};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    link.requester().post({.kind = WorkKind::kSend,
                           .cookie = i + 1,
                           .data = messages[i].data(),
                           .length = static_cast<std::uint32_t>(messages[i].size())});
  }
  link.run();
  check_sent(link, link.sent(), messages.size());
  REQUIRE(link.received().size() == messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Completion& c = link.received()[i];
    CHECK(c.kind == Completion::Kind::kReceivedSend);
    CHECK(c.cookie == i);
    REQUIRE(c.byte_length == messages[i].size());
    CHECK(std::equal(messages[i].begin(), messages[i].end(),
                     link.receive_memory().begin() + static_cast<std::ptrdiff_t>(i * 1024)));
  }
  const std::vector<std::uint8_t> expected{0x04, 0x00, 0x01, 0x01, 0x02, 0x04, 0x00, 0x02};
  CHECK(link.opcodes() == expected);
}

TEST_CASE("PSNs wrap around") {
  Link link({.path_mtu = 256, .first_psn = 0xFFFFF0, .remote_first_psn = 0xFFFFFF});
  const Bytes data = test::random_fill(1, 40 * 256);
  Target target(link, data.size());
  for (std::uint64_t i = 1; i <= 3; ++i) link.requester().post(write(data, target, i));
  // One packet on each side of the turn is lost, and one right at it.
  std::vector<std::size_t> lost{14, 16, 40};
  link.data_fate = [&lost](const wire::Packet&, std::size_t index) {
    return std::ranges::count(lost, index) != 0 ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  link.run();
  CHECK(target.bytes == data);
  check_sent(link, link.sent(), 3);
  CHECK(link.received().size() == 3);
}

// -- bursts and memory -------------------------------------------------------------------------------------------

/// Packets reach the responder one after the other, as over a link, and are acknowledged one by one.
Link::Fate serialized(const Link& link, Nanos& busy_until) {
  return [&](const wire::Packet&, std::size_t) {
    busy_until = std::max(busy_until, link.now()) + 10 * kMicrosecond;
    return std::vector{busy_until - link.now() + kOneWay};
  };
}

TEST_CASE("what the window holds back leaves in bursts, and no timer has to help") {
  constexpr std::size_t kPackets = 2000;
  for (const std::uint32_t burst : {1U, 15U}) {
    CAPTURE(burst);
    Link link({.path_mtu = 256, .burst = burst});
    const Bytes data = test::random_fill(1, kPackets * 256);
    Target target(link, data.size());
    Nanos busy_until = 0;
    link.data_fate = serialized(link, busy_until);
    link.requester().post(write(data, target));
    link.run();
    CHECK(target.bytes == data);
    CHECK(link.requester().counters().timeouts == 0);
    CHECK(link.requester().counters().tx_packets == kPackets);
    CHECK(link.bursts().size() < (burst == 1 ? kPackets + 1 : kPackets / 10));
  }
}

TEST_CASE("a window that has no room for another burst grows") {
  constexpr std::size_t kPackets = 1000;
  Link link({.path_mtu = 256, .initial_window = 32, .burst = 15});
  const Bytes data = test::random_fill(1, kPackets * 256);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  link.run();
  CHECK(target.bytes == data);
  CHECK(link.requester().control().window() > 64);
}

TEST_CASE("bursts of messages of every length around them arrive, also when packets get lost") {
  for (const std::size_t packets : {1U, 2U, 14U, 15U, 16U, 31U, 46U}) {
    CAPTURE(packets);
    Link link({.path_mtu = 256, .burst = 15});
    const Bytes data = test::random_fill(packets, packets * 256);
    Target target(link, data.size());
    link.data_fate = [](const wire::Packet&, std::size_t index) {
      return index % 23 == 11 ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    for (std::uint64_t i = 1; i <= 20; ++i) link.requester().post(write(data, target, i));
    link.run();
    CHECK(target.bytes == data);
    check_sent(link, link.sent(), 20);
  }
}

TEST_CASE("an idle requester gives its memory back and works on; a busy one keeps it") {
  Link link({.path_mtu = 256});
  const Bytes data = test::random_fill(1, 100 * 256);
  Target target(link, data.size());
  for (std::uint64_t i = 1; i <= 3; ++i) {
    link.requester().post(write(data, target, i));
    link.run(link.now() + kOneWay);  // some are under way
    link.requester().release_spare();
    link.run();
    link.requester().release_spare();
  }
  CHECK(target.bytes == data);
  check_sent(link, link.sent(), 3);
  CHECK(link.requester().counters().retransmits == 0);
  CHECK(link.requester().control().min_rtt() == 2 * kOneWay);
}

// -- loss --------------------------------------------------------------------------------------------------------

/// A QP that asks before it takes silence for a timeout, and has measured its path.
struct Asking {
  explicit Asking(std::size_t packets)
      : link({.path_mtu = 256, .initial_window = 64, .ask_after = kMillisecond}),
        data(test::random_fill(7, packets * 256)),
        target(link, data.size()) {
    link.requester().post(write(data, target));
    link.run();
    link.requester().post(write(data, target, 2));
    packets_before = link.requester().counters().tx_packets;
    window_before = link.requester().control().window();
  }
  void check() {
    check_sent(link, link.sent(), 2);
    CHECK(target.bytes == data);
    CHECK(link.requester().counters().timeouts == 0);
  }
  Link link;
  Bytes data;
  Target target;
  std::uint64_t packets_before;
  double window_before;
};

TEST_CASE("acknowledgements lost at the end cost one packet that asks, no timeout and no window") {
  Asking asking(40);
  const Nanos begin = asking.link.now();
  const Nanos deaf = begin + 2 * kOneWay;
  asking.link.ack_fate = [&](const wire::Packet&, std::size_t) {
    return asking.link.now() < deaf ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  asking.link.run();
  asking.check();
  CHECK(asking.link.now() - begin < 5 * kMillisecond);  // the timeout's floor
  CHECK(asking.link.requester().counters().retransmits == 1);
  CHECK(asking.link.requester().control().window() >= asking.window_before);
}

TEST_CASE("a lost end, or a lost NAK, is found by asking") {
  for (const std::size_t first_lost : {0, 17, 39}) {
    CAPTURE(first_lost);
    Asking asking(40);
    const std::uint64_t before = asking.packets_before;
    asking.link.data_fate = [&](const wire::Packet&, std::size_t index) {
      return index >= before + first_lost && index < before + 40 ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    asking.link.run();
    asking.check();
  }
  Asking asking(40);
  asking.link.data_fate = [&](const wire::Packet&, std::size_t index) {
    return index == asking.packets_before + 5 ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  bool refused = false;
  asking.link.ack_fate = [&](const wire::Packet& packet, std::size_t) {
    const bool lost = !refused && packet.syndrome == code(Syndrome::kNakSequence);
    refused = refused || lost;
    return lost ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  asking.link.run();
  asking.check();
  CHECK(refused);
  CHECK(asking.link.requester().control().window() < asking.window_before);  // packets were lost
}

TEST_CASE("who asks in vain waits for the timeout, and asks once") {
  Asking asking(1);
  std::vector<Nanos> tries;
  const Nanos heals = asking.link.now() + 30 * kMillisecond;
  asking.link.data_fate = [&](const wire::Packet&, std::size_t) {
    tries.push_back(asking.link.now());
    return asking.link.now() < heals ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  asking.link.run();
  check_sent(asking.link, asking.link.sent(), 2);
  REQUIRE(tries.size() >= 4);
  CHECK(tries[1] - tries[0] < 2 * kMillisecond);
  for (std::size_t i = 2; i < tries.size(); ++i) CHECK(tries[i] - tries[i - 1] >= 5 * kMillisecond);
  CHECK(asking.link.requester().counters().timeouts == tries.size() - 2);
}

struct Transfer {
  explicit Transfer(const LinkOptions& options = {.path_mtu = 256})
      : link(options), data(test::random_fill(7, 20 * 256 + 17)), target(link, data.size()) {
    for (std::uint64_t i = 1; i <= 3; ++i) link.requester().post(write(data, target, i));
  }
  void check() {
    link.drain();
    CHECK(target.bytes == data);
    check_sent(link, link.sent(), 3);
    REQUIRE(link.received().size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(link.received()[i].imm == 0xA0000001 + i);
    CHECK_FALSE(link.requester().failed());
  }
  Link link;
  Bytes data;
  Target target;
};

constexpr std::size_t kTransferPackets = 63;

TEST_CASE("the loss of any single packet is repaired") {
  for (std::size_t lost = 0; lost < kTransferPackets; ++lost) {
    CAPTURE(lost);
    Transfer transfer;
    transfer.link.data_fate = [lost](const wire::Packet&, std::size_t index) {
      return index == lost ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    transfer.link.run();
    transfer.check();
    const QpCounters& c = transfer.link.requester().counters();
    CHECK(c.retransmits >= 1);
    // What follows a lost packet reports the gap; only a lost tail takes a timeout.
    CHECK(c.naks_received + c.timeouts == 1);
    if (lost + 1 == kTransferPackets) CHECK(c.timeouts == 1);
  }
}

TEST_CASE("the loss of any single acknowledgement is repaired, mostly by the next one") {
  Transfer whole;
  std::size_t acks = 0;
  whole.link.ack_fate = [&acks](const wire::Packet&, std::size_t) {
    ++acks;
    return std::vector{kOneWay};
  };
  whole.link.run();
  REQUIRE(acks > 5);
  std::uint64_t timeouts = 0;
  for (std::size_t lost = 0; lost < acks; ++lost) {
    CAPTURE(lost);
    Transfer transfer;
    transfer.link.ack_fate = [lost](const wire::Packet&, std::size_t index) {
      return index == lost ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    transfer.link.run();
    transfer.check();
    timeouts += transfer.link.requester().counters().timeouts;
  }
  CHECK(timeouts >= 1);  // the last one has no successor
  CHECK(timeouts < acks);
}

TEST_CASE("duplicates are acknowledged and change nothing") {
  Transfer transfer;
  transfer.link.data_fate = [](const wire::Packet&, std::size_t) {
    return std::vector{kOneWay, kOneWay + 10, 3 * kOneWay};
  };
  transfer.link.ack_fate = [](const wire::Packet&, std::size_t) { return std::vector{kOneWay, 2 * kOneWay}; };
  transfer.link.run();
  transfer.check();
  CHECK(transfer.link.responder().counters().duplicates >= 2 * kTransferPackets);
  CHECK(transfer.link.responder().counters().rx_bytes == 3 * transfer.data.size());
  CHECK(transfer.link.requester().counters().stale_acks > 0);
}

TEST_CASE("a late copy of a write does not overwrite what came after it") {
  Link link({.path_mtu = 256});
  const Bytes older = test::random_fill(1, 256);
  const Bytes newer = test::random_fill(2, 256);
  Target target(link, 256);
  link.data_fate = [](const wire::Packet&, std::size_t index) {
    return index == 0 ? std::vector{kOneWay, 100 * kOneWay} : std::vector{kOneWay};
  };
  link.requester().post(write(older, target, 1));
  link.run();
  CHECK(target.bytes == older);
  link.requester().post(write(newer, target, 2));
  link.run();
  link.drain();
  CHECK(target.bytes == newer);
  CHECK(link.received().size() == 2);
  CHECK(link.responder().counters().duplicates == 1);
}

TEST_CASE("overtaken packets cost a NAK, not the transfer") {
  Transfer transfer;
  transfer.link.data_fate = [](const wire::Packet&, std::size_t index) {
    return std::vector{index % 7 == 3 ? kOneWay * 2 : kOneWay};
  };
  transfer.link.run();
  transfer.check();
  CHECK(transfer.link.responder().counters().out_of_order > 0);
  CHECK(transfer.link.requester().counters().naks_received > 0);
}

TEST_CASE("a gap is reported once until it is filled") {
  Link link({.path_mtu = 256});
  const auto send = [](std::uint32_t psn) {
    return serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, psn, true, 0, 0, 0, 0, 0));
  };
  link.inject(send(0));
  REQUIRE(link.responder().take_acknowledgement());
  link.inject(send(2));
  const auto nak = link.responder().take_acknowledgement();
  REQUIRE(nak);
  const Parsed parsed(serialize(*nak));
  CHECK(parsed.packet.syndrome == code(Syndrome::kNakSequence));
  CHECK(parsed.packet.psn == 1);  // the one that is missing
  CHECK(parsed.packet.msn == 1);
  for (std::uint32_t psn = 3; psn < 10; ++psn) {
    link.inject(send(psn));
    CHECK_FALSE(link.responder().take_acknowledgement());
  }
  link.inject(send(1));
  const auto ack = link.responder().take_acknowledgement();
  REQUIRE(ack);
  CHECK(Parsed(serialize(*ack)).packet.syndrome == wire::kAckNoCredits);
  CHECK(Parsed(serialize(*ack)).packet.psn == 1);
  link.inject(send(3));
  const auto again = link.responder().take_acknowledgement();
  REQUIRE(again);
  CHECK(Parsed(serialize(*again)).packet.syndrome == code(Syndrome::kNakSequence));
}

TEST_CASE("acknowledgements coalesce until they are taken, and come for what asks for one") {
  Link link({.path_mtu = 256});
  const auto send = [](std::uint32_t psn, bool ask) {
    return serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, psn, ask, 0, 0, 0, 0, 0));
  };
  link.inject(send(0, false));
  CHECK_FALSE(link.responder().take_acknowledgement());
  link.inject(send(1, true));
  link.inject(send(2, false));
  const auto ack = link.responder().take_acknowledgement();
  REQUIRE(ack);
  const Parsed parsed(serialize(*ack));
  CHECK(parsed.packet.psn == 2);
  CHECK(parsed.packet.msn == 3);
  CHECK_FALSE(link.responder().take_acknowledgement());
}

TEST_CASE("a peer that never answers is given up after the retry time, and everything queued fails") {
  LinkOptions options{.path_mtu = 256};
  options.retry_time = 3 * kSecond;
  Transfer transfer(options);
  transfer.link.data_fate = [](const wire::Packet&, std::size_t) { return std::vector<Nanos>{}; };
  const Nanos start = transfer.link.now();
  transfer.link.run();
  CHECK(transfer.link.requester().failed());
  const double waited = to_seconds(transfer.link.now() - start);
  CHECK(waited >= 3);
  CHECK(waited <= 3.001);
  REQUIRE(transfer.link.sent().size() == 3);
  CHECK(transfer.link.sent()[0].status == Status::kRetryExceeded);
  CHECK(transfer.link.sent()[1].status == Status::kFlushed);
  CHECK(transfer.link.sent()[2].status == Status::kFlushed);
  CHECK(transfer.link.requester().deadline() == kNever);
  CHECK_FALSE(transfer.link.requester().next_packet(transfer.link.now()));
}

TEST_CASE("a peer that refuses without end is given up after the retry time") {
  Link link({.path_mtu = 256, .retry_time = 3 * kSecond});
  const Bytes data = test::random_fill(1, 1000);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  const Nanos start = link.now();
  RcQp& requester = link.requester();
  Nanos now = start;
  while (!requester.failed() && now < start + 10 * kSecond) {
    now += 10 * kMillisecond;
    while (requester.next_packet(now)) {
    }
    wire::Packet nak;
    nak.psn = requester.options().first_psn;
    nak.syndrome = static_cast<std::uint8_t>(wire::Syndrome::kNakSequence);
    requester.on_acknowledge(nak, now, kNever);
    requester.on_timer(now);
  }
  CHECK(requester.failed());
  CHECK(to_seconds(now - start) == doctest::Approx(3).epsilon(0.02));
}

TEST_CASE("timeouts back off") {
  Transfer transfer({.path_mtu = 256, .retry_time = 1000 * kSecond});
  std::vector<Nanos> first_packets;
  transfer.link.data_fate = [&](const wire::Packet& packet, std::size_t) {
    if (packet.psn == 0) first_packets.push_back(transfer.link.now());
    return std::vector<Nanos>{};
  };
  transfer.link.run(300 * kSecond);
  REQUIRE(first_packets.size() >= 5);
  for (std::size_t i = 2; i < std::min<std::size_t>(first_packets.size(), 6); ++i) {
    const double before = to_seconds(first_packets[i - 1] - first_packets[i - 2]);
    CHECK(to_seconds(first_packets[i] - first_packets[i - 1]) ==
          doctest::Approx(std::min(2 * before, 1.0)).epsilon(0.05));
  }
}

TEST_CASE("a QP survives any silence shorter than the retry time") {
  Transfer transfer({.path_mtu = 256, .retry_time = 10 * kSecond});
  const Nanos heals = transfer.link.now() + 5 * kSecond;
  transfer.link.data_fate = [&](const wire::Packet&, std::size_t index) {
    return index >= 10 && transfer.link.now() < heals ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  transfer.link.run();
  transfer.check();
}

// -- receiver not ready ------------------------------------------------------------------------------------------

TEST_CASE("a receiver without buffers puts the sender off until it has one") {
  Link link({.path_mtu = 256, .receive_buffers = 0});
  const Bytes data = test::random_fill(1, 1000);
  Target target(link, 1000);
  link.requester().post(write(data, target, 1));
  link.requester().post(write(data, target, 2));
  link.run(link.now() + 50 * kMillisecond);
  CHECK(link.sent().empty());
  CHECK(link.received().empty());
  const QpCounters before = link.requester().counters();
  CHECK(before.rnr_received > 10);
  // One attempt per RNR delay (0.64 ms) and round trip, not a flood.
  CHECK(before.rnr_received < 100);
  CHECK(before.timeouts == 0);
  link.post_receive();
  link.post_receive();
  link.run();
  check_sent(link, link.sent(), 2);
  CHECK(link.received().size() == 2);
  CHECK(target.bytes == data);
}

TEST_CASE("RNR has no limit: a busy receiver is not a dead one") {
  Link link({.path_mtu = 256, .retry_time = kSecond, .receive_buffers = 0});
  const Bytes data = test::random_fill(1, 10);
  Target target(link, 10);
  link.requester().post(write(data, target));
  link.run(link.now() + 20 * kSecond);
  CHECK_FALSE(link.requester().failed());
  link.post_receive();
  link.run();
  check_sent(link, link.sent(), 1);
}

TEST_CASE("a SEND that meets no buffer consumes nothing") {
  Link link({.receive_buffers = 0});
  const auto send = serialize(wire::data_header(Opcode::kSendOnly, kResponderQpn, 0, true, 0, 0, 0, 0, 0));
  link.inject(send);
  const auto nak = link.responder().take_acknowledgement();
  REQUIRE(nak);
  const Parsed parsed(serialize(*nak));
  CHECK((parsed.packet.syndrome & 0xE0) == code(Syndrome::kRnrNak));
  CHECK(wire::rnr_delay_ns(parsed.packet.syndrome & 0x1F) > 0);
  CHECK(parsed.packet.psn == 0);
  link.post_receive();
  link.inject(send);
  CHECK(link.received().size() == 1);
}

TEST_CASE("after RNR, a QP whose packets are spaced does not ask to be called at once") {
  Link link({.path_mtu = 256, .retry_time = 1000 * kSecond, .receive_buffers = 0});
  const Bytes data = test::random_fill(1, 256);
  Target target(link, 256);
  link.requester().post(write(data, target, 1));
  link.run(link.now() + 10 * kMillisecond);
  REQUIRE(link.requester().counters().rnr_received > 0);
  link.post_receive();
  link.run();
  // Two timeouts in a row leave a window below one packet.
  link.requester().post(write(data, target, 2));
  link.data_fate = [](const wire::Packet&, std::size_t) { return std::vector<Nanos>{}; };
  while (link.requester().control().window() >= 1) link.run(link.now() + 100 * kMillisecond);
  link.data_fate = [](const wire::Packet&, std::size_t) { return std::vector{kOneWay}; };
  link.post_receive();
  link.run();
  link.requester().post(write(data, target, 3));
  if (!link.requester().can_send(link.now())) CHECK(link.requester().deadline() > link.now());
}

// -- refusals ----------------------------------------------------------------------------------------------------

TEST_CASE("a write outside its region is refused and writes nothing") {
  struct Case {
    std::uint64_t offset;
    std::uint32_t length;
    bool right_key;
  };
  for (const Case& c : {Case{0, 1001, true}, Case{1000, 1, true}, Case{999, 2, true}, Case{UINT64_MAX, 2, true},
                        Case{UINT64_MAX - 499, 1000, true}, Case{1ULL << 63, 10, true}, Case{0, 10, false}}) {
    CAPTURE(c.offset);
    CAPTURE(c.length);
    Link link({.path_mtu = 256});
    const Bytes data = test::random_fill(1, c.length);
    Target target(link, 1000);
    WorkRequest request = write(data, target, 1);
    request.remote_address = c.offset;
    if (!c.right_key) request.rkey ^= 1;
    link.requester().post(request);
    link.requester().post(write(test::random_fill(2, 0), target, 2));
    link.run();
    CHECK(link.requester().failed());
    REQUIRE(link.sent().size() == 2);
    CHECK(link.sent()[0].status == Status::kRemoteAccess);
    CHECK(link.sent()[1].status == Status::kFlushed);
    CHECK(link.received().empty());
    CHECK(target.bytes == Bytes(1000));
  }
}

TEST_CASE("a region that goes away in the middle of a message is no longer written") {
  Link link({.path_mtu = 256});
  Target target(link, 512);
  const Bytes ones(256, std::byte{1});
  link.inject(
      serialize(wire::data_header(Opcode::kWriteFirst, kResponderQpn, 0, false, 0, 0, target.rkey, 512, 0), ones));
  CHECK(std::equal(ones.begin(), ones.end(), target.bytes.begin()));
  REQUIRE(link.memory().remove(target.rkey));
  link.inject(serialize(wire::data_header(Opcode::kWriteLast, kResponderQpn, 1, true, 0, 0, 0, 0, 0), ones));
  const auto nak = link.responder().take_acknowledgement();
  REQUIRE(nak);
  CHECK(Parsed(serialize(*nak)).packet.syndrome == code(Syndrome::kNakRemoteAccess));
  CHECK(std::equal(target.bytes.begin() + 256, target.bytes.end(), Bytes(256).begin()));
}

/// A responder that is sent a WRITE of `length` bytes, packet by packet.
struct PlacedWrite {
  explicit PlacedWrite(std::uint32_t bytes) : target(link, bytes), length(bytes) {}
  Link link{{.path_mtu = 256, .receive_bytes = 1024}};
  Target target;
  std::uint32_t length;

  void take(Opcode opcode, std::uint32_t psn, std::size_t bytes = 256) {
    const auto pad = static_cast<std::uint8_t>((4 - bytes % 4) % 4);
    link.inject(serialize(wire::data_header(opcode, kResponderQpn, psn, false, pad, 0, target.rkey, length, 0),
                          Bytes(bytes, std::byte{1}), pad));
  }
  /// The payloads still to come have this much room, from this place in the region.
  void check(std::size_t offset, std::size_t bytes) {
    const auto placement = link.responder().placement_target();
    CHECK(placement.size() == bytes);
    if (bytes > 0) CHECK(placement.data() == target.bytes.data() + offset);
  }
};

TEST_CASE("there is room for payloads from a WRITE's first packet on until only its last is missing") {
  for (const std::uint32_t rest : {1U, 100U, 255U, 256U}) {
    CAPTURE(rest);
    PlacedWrite placed(4 * 256 + rest);
    placed.check(0, 0);
    placed.take(Opcode::kWriteFirst, 0);
    placed.check(256, std::size_t{3} * 256);
    placed.take(Opcode::kWriteFirst, 0);        // a duplicate
    placed.take(Opcode::kWriteMiddle, 2);       // out of order
    placed.take(Opcode::kWriteMiddle, 1, 252);  // refused
    placed.check(256, std::size_t{3} * 256);
    placed.take(Opcode::kWriteMiddle, 1);
    placed.check(512, std::size_t{2} * 256);
    placed.take(Opcode::kWriteMiddle, 2);
    placed.check(768, 256);
    placed.take(Opcode::kWriteMiddle, 3);
    placed.check(0, 0);
    placed.take(Opcode::kWriteLast, 4, rest);
    placed.check(0, 0);
    CHECK(placed.target.bytes == Bytes(placed.length, std::byte{1}));
  }
}

TEST_CASE("there is no room for payloads without a WRITE of several packets, on a failed QP, or without its region") {
  PlacedWrite placed(1000);
  const auto begin = [&] {
    placed.take(Opcode::kWriteFirst, 0);
    placed.check(256, 512);
  };
  SUBCASE("a WRITE of one packet") {
    placed.length = 100;
    placed.take(Opcode::kWriteOnly, 0, 100);
  }
  SUBCASE("a WRITE of two packets") {
    placed.length = 512;
    placed.take(Opcode::kWriteFirst, 0);
  }
  SUBCASE("a SEND") {
    placed.take(Opcode::kSendFirst, 0);
    CHECK(placed.link.responder().held_buffer() != nullptr);
  }
  SUBCASE("failed") {
    begin();
    placed.link.responder().fail(Status::kFlushed);
  }
  SUBCASE("deregistered") {
    begin();
    REQUIRE(placed.link.memory().remove(placed.target.rkey));
  }
  SUBCASE("retired") {
    begin();
    placed.link.memory().retire(placed.target.rkey);
  }
  placed.check(0, 0);
}

TEST_CASE("a payload may lie where it belongs already, or where a later one does") {
  PlacedWrite placed(4 * 256);
  placed.take(Opcode::kWriteFirst, 0);
  const auto room = placed.link.responder().placement_target();
  const Bytes payloads = test::random_fill(1, room.size());
  std::ranges::copy(payloads, room.begin());
  Parsed second(serialize(wire::data_header(Opcode::kWriteMiddle, kResponderQpn, 1, false, 0, 0, 0, 0, 0)));
  SUBCASE("its own place") { second.packet.payload = room.first(256); }
  SUBCASE("a later place") { second.packet.payload = room.last(256); }
  SUBCASE("between two places") { second.packet.payload = room.subspan(100, 256); }
  const Bytes payload(second.packet.payload.begin(), second.packet.payload.end());
  placed.link.responder().on_request(second.packet);
  CHECK(std::equal(payload.begin(), payload.end(), placed.target.bytes.begin() + 256));
  placed.check(512, 256);
}

TEST_CASE("packets in an order that no message has, or of wrong sizes, are refused") {
  struct Step {
    Opcode opcode;
    std::size_t bytes;
    std::uint32_t dma_length = 0;
  };
  struct Case {
    const char* what;
    std::vector<Step> steps;  ///< all but the last are fine
  };
  const std::vector<Case> cases{
      {"middle of nothing", {{Opcode::kWriteMiddle, 256}}},
      {"last of nothing", {{Opcode::kSendLast, 10}}},
      {"last with immediate of nothing", {{Opcode::kWriteLastImm, 10}}},
      {"first within a message", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kWriteFirst, 256, 600}}},
      {"only within a message", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kWriteOnly, 10, 10}}},
      {"send within a write", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kSendMiddle, 256}}},
      {"write within a send", {{Opcode::kSendFirst, 256}, {Opcode::kWriteLast, 10}}},
      {"short first", {{Opcode::kWriteFirst, 255, 600}}},
      {"short middle", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kWriteMiddle, 255}}},
      {"empty last", {{Opcode::kWriteFirst, 256, 256 + 1}, {Opcode::kWriteLast, 0}}},
      {"beyond the path MTU", {{Opcode::kWriteOnly, 257, 257}}},
      {"only shorter than it says", {{Opcode::kWriteOnly, 10, 11}}},
      {"only longer than it says", {{Opcode::kWriteOnly, 10, 9}}},
      {"only with bytes but of length 0", {{Opcode::kWriteOnly, 4, 0}}},
      {"only empty but of length 4", {{Opcode::kWriteOnlyImm, 0, 4}}},
      {"first that would be all", {{Opcode::kWriteFirst, 256, 256}}},
      {"last shorter than what is left", {{Opcode::kWriteFirst, 256, 600}, {Opcode::kWriteLast, 100}}},
      {"middle beyond what is left", {{Opcode::kWriteFirst, 256, 300}, {Opcode::kWriteMiddle, 256}}},
      {"send beyond the buffer", {{Opcode::kSendFirst, 256}, {Opcode::kSendMiddle, 256}, {Opcode::kSendLast, 256}}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    Link link({.path_mtu = 256, .receive_bytes = 600});
    Target target(link, 1000);
    for (std::uint32_t psn = 0; psn < c.steps.size(); ++psn) {
      const Step& step = c.steps[psn];
      const auto pad = static_cast<std::uint8_t>((4 - step.bytes % 4) % 4);
      link.inject(
          serialize(wire::data_header(step.opcode, kResponderQpn, psn, true, pad, 0, target.rkey, step.dma_length, 7),
                    Bytes(step.bytes, std::byte{9}), pad));
      const auto answer = link.responder().take_acknowledgement();
      REQUIRE(answer);
      const Parsed parsed(serialize(*answer));
      const bool last = psn + 1 == c.steps.size();
      CHECK(parsed.packet.syndrome == (last ? code(Syndrome::kNakInvalidRequest) : wire::kAckNoCredits));
      CHECK(parsed.packet.psn == psn);
    }
    CHECK(link.received().empty());
  }
}

TEST_CASE("READ, atomics and reserved requests are answered by NAK invalid request, in their turn") {
  for (const std::uint8_t opcode : {0x0C, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x1C, 0x1D, 0x1F}) {
    CAPTURE(static_cast<int>(opcode));
    Link link({.path_mtu = 256});
    Target target(link, 1000);
    const auto request = [&](std::uint32_t psn) {
      // A READ request looks like a WRITE without payload, an atomic has 12 bytes more.
      Bytes bytes = serialize(
          wire::data_header(Opcode::kWriteOnly, kResponderQpn, psn, true, 0, 0, target.rkey, 100, 0), Bytes(12));
      bytes[0] = static_cast<std::byte>(opcode);
      return bytes;
    };
    link.inject(request(1));  // another packet is missing: that comes first (section 9.7.4.1.1)
    CHECK(Parsed(serialize(*link.responder().take_acknowledgement())).packet.syndrome == code(Syndrome::kNakSequence));
    link.inject(request(0));
    const auto answer = link.responder().take_acknowledgement();
    REQUIRE(answer);
    const Parsed parsed(serialize(*answer));
    CHECK(parsed.packet.syndrome == code(Syndrome::kNakInvalidRequest));
    CHECK(parsed.packet.psn == 0);
    CHECK(target.bytes == Bytes(1000));
    CHECK(link.received().empty());
  }
}

TEST_CASE("every kind of NAK fails the request it names and flushes the rest") {
  const std::array<std::pair<Syndrome, Status>, 3> cases{{{Syndrome::kNakInvalidRequest, Status::kRemoteInvalid},
                                                          {Syndrome::kNakRemoteAccess, Status::kRemoteAccess},
                                                          {Syndrome::kNakRemoteOperation, Status::kRemoteOperation}}};
  for (const auto& [syndrome, status] : cases) {
    Link link({.path_mtu = 256});
    const Bytes data(300);
    Target target(link, 300);
    for (std::uint64_t i = 1; i <= 3; ++i) link.requester().post(write(data, target, i));
    for (int i = 0; i < 4; ++i) REQUIRE(link.requester().next_packet(kSecond));
    // It refuses the second message's first packet: the first message is done.
    const Parsed nak(serialize(wire::ack_header(kRequesterQpn, 2, code(syndrome), 1)));
    link.requester().on_acknowledge(nak.packet, kSecond + kOneWay, kNever);
    REQUIRE(link.sent().size() == 3);
    CHECK(link.sent()[0].status == Status::kSuccess);
    CHECK(link.sent()[1].status == status);
    CHECK(link.sent()[2].status == Status::kFlushed);
    CHECK(std::string(to_string(status)) != to_string(Status::kFlushed));
  }
}

TEST_CASE("acknowledgements of what was never sent are ignored") {
  Transfer transfer;
  const std::array<std::uint8_t, 3> syndromes{wire::kAckNoCredits, code(Syndrome::kNakSequence),
                                              code(Syndrome::kNakRemoteAccess)};
  for (int i = 0; i < 4; ++i) REQUIRE(transfer.link.requester().next_packet(transfer.link.now()));
  for (const std::uint8_t syndrome : syndromes) {
    for (const std::uint32_t psn : {4U, 100U, 0x7FFFFFU, 0xFFFFFFU}) {
      const Parsed ack(serialize(wire::ack_header(kRequesterQpn, psn, syndrome, 0)));
      transfer.link.requester().on_acknowledge(ack.packet, transfer.link.now(), kNever);
    }
  }
  CHECK(transfer.link.requester().counters().stale_acks == 12);
  CHECK(transfer.link.sent().empty());
  CHECK_FALSE(transfer.link.requester().failed());
}

TEST_CASE("failing flushes what is queued, and what comes later") {
  Transfer transfer;
  REQUIRE(transfer.link.requester().next_packet(transfer.link.now()));
  transfer.link.requester().fail(Status::kFlushed);
  CHECK(transfer.link.requester().idle());
  CHECK(transfer.link.requester().all_acknowledged());
  transfer.link.requester().fail(Status::kRetryExceeded);  // once is enough
  transfer.link.requester().post(write(transfer.data, transfer.target, 4));
  REQUIRE(transfer.link.sent().size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(transfer.link.sent()[i].status == Status::kFlushed);
    CHECK(transfer.link.sent()[i].cookie == i + 1);
  }
  CHECK_FALSE(transfer.link.requester().can_send(transfer.link.now()));
  const Parsed ack(serialize(wire::ack_header(kRequesterQpn, 0, wire::kAckNoCredits, 0)));
  transfer.link.requester().on_acknowledge(ack.packet, transfer.link.now(), kNever);
  CHECK(transfer.link.sent().size() == 4);
}

// -- sending -----------------------------------------------------------------------------------------------------

TEST_CASE("packets that the kernel did not take are made again, the same") {
  Transfer transfer;
  RcQp& qp = transfer.link.requester();
  const Nanos now = transfer.link.now();
  REQUIRE(qp.next_packet(now));
  const RcQp::Checkpoint before = qp.checkpoint();
  const auto second = qp.next_packet(now);
  const auto third = qp.next_packet(now);
  REQUIRE(second);
  REQUIRE(third);
  qp.rewind(before);
  CHECK(qp.counters().tx_packets == 1);
  const auto again = qp.next_packet(now);
  REQUIRE(again);
  CHECK((wire::get_u32(again->header.bytes.data() + 8) & wire::kPsnMask) == 1);
  CHECK(again->payload.data() == second->payload.data());
  CHECK(qp.counters().retransmits == 0);
}

TEST_CASE("a rewind to nothing sent leaves no timer behind") {
  Transfer transfer;
  RcQp& qp = transfer.link.requester();
  const RcQp::Checkpoint before = qp.checkpoint();
  REQUIRE(qp.next_packet(transfer.link.now()));
  CHECK(qp.deadline() != kNever);
  qp.rewind(before);
  CHECK(qp.can_send(transfer.link.now()));
  qp.on_timer(transfer.link.now() + 100 * kSecond);
  CHECK(qp.counters().timeouts == 0);
  transfer.link.run();
  transfer.check();
}

TEST_CASE("a rewind may cross a request's end") {
  Link link({.path_mtu = 256});
  const Bytes data = test::random_fill(1, 256);
  Target target(link, 256);
  for (std::uint64_t i = 1; i <= 3; ++i) link.requester().post(write(data, target, i));
  const RcQp::Checkpoint before = link.requester().checkpoint();
  for (int i = 0; i < 3; ++i) REQUIRE(link.requester().next_packet(link.now()));
  link.requester().rewind(before);
  link.run();
  check_sent(link, link.sent(), 3);
  CHECK(link.received().size() == 3);
  CHECK(link.requester().counters().retransmits == 0);
}

TEST_CASE("the window bounds what is in flight, and the last packet of a window asks for an answer") {
  Link link({.path_mtu = 256});
  const Bytes data = test::random_fill(1, 256 * 1000);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  std::vector<bool> asks;
  while (const auto packet = link.requester().next_packet(link.now())) {
    asks.push_back((packet->header.bytes[8] & std::byte{0x80}) != std::byte{0});
  }
  CHECK(asks.size() == static_cast<std::size_t>(link.requester().control().window()));
  CHECK(asks.back());
}

TEST_CASE("round trips are measured whatever packet of a batch the peer acknowledges") {
  // A receiver that takes many packets at once answers for the last of them, which need not have asked.
  constexpr std::uint32_t kPackets = 64;
  const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
  for (std::uint32_t acknowledged = 0; acknowledged < kPackets; ++acknowledged) {
    CAPTURE(acknowledged);
    Link link({.path_mtu = 256, .initial_window = kPackets});
    Target target(link, data.size());
    link.requester().post(write(data, target));
    for (std::uint32_t i = 0; i < kPackets; ++i) REQUIRE(link.requester().next_packet(kSecond + i));
    const Parsed ack(serialize(wire::ack_header(kRequesterQpn, acknowledged, wire::kAckNoCredits, 0)));
    link.requester().on_acknowledge(ack.packet, kSecond + kMillisecond, kNever);
    CHECK(link.requester().control().min_rtt() == kMillisecond - acknowledged);
  }
}

TEST_CASE("a retransmitted packet gives no round trip") {
  Link link({.path_mtu = 256});
  const Bytes data = test::random_fill(1, 256);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  REQUIRE(link.requester().next_packet(kSecond));
  link.requester().on_timer(10 * kSecond - 1);
  REQUIRE(link.requester().counters().timeouts == 1);
  REQUIRE(link.requester().next_packet(10 * kSecond));
  const Parsed ack(serialize(wire::ack_header(kRequesterQpn, 0, wire::kAckNoCredits, 0)));
  link.requester().on_acknowledge(ack.packet, 10 * kSecond + 1, kNever);
  CHECK(link.sent().size() == 1);
  CHECK(link.requester().control().min_rtt() == kNever);
}

TEST_CASE("a peer that was only slow costs one packet sent again, and neither window nor rate") {
  constexpr std::uint64_t kPackets = 300;
  Link link({.path_mtu = 256, .initial_window = 64});
  const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  // All acknowledgements of the first window come late, as when the peer's process did not run.
  const Nanos wakes = link.now() + 700 * kMillisecond;
  link.data_fate = [&](const wire::Packet&, std::size_t) { return std::vector{std::max(kOneWay, wakes - link.now())}; };
  link.run();
  check_sent(link, link.sent(), 1);
  CHECK(target.bytes == data);
  const QpCounters& c = link.requester().counters();
  CHECK(c.timeouts >= 1);
  CHECK(c.retransmits == c.timeouts);
  CHECK(c.naks_received == 0);
  CHECK(link.requester().control().window() >= 64);
}

TEST_CASE("acknowledgements that are lost say nothing of the round trip") {
  constexpr std::uint64_t kPackets = 64;
  Link link({.path_mtu = 256, .initial_window = kPackets});
  const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
  Target target(link, data.size());
  link.requester().post(write(data, target));
  link.run();
  const Nanos usual = link.requester().control().smoothed_rtt();
  REQUIRE(usual > 0);
  // The path back is dead for a while: the answer to a probe acknowledges what arrived long ago.
  const Nanos heals = link.now() + 700 * kMillisecond;
  link.ack_fate = [&](const wire::Packet&, std::size_t) {
    return link.now() < heals ? std::vector<Nanos>{} : std::vector{kOneWay};
  };
  link.requester().post(write(data, target, 1));
  link.run();
  CHECK(link.requester().counters().timeouts >= 1);
  CHECK(link.requester().control().smoothed_rtt() <= 2 * usual);
}

TEST_CASE("timeouts back off, but many fit into the retry time") {
  for (const Nanos retry_time : {10 * kSecond, 60 * kSecond}) {
    CAPTURE(retry_time);
    Link link({.retry_time = retry_time});
    const Bytes data = test::random_fill(1, 100);
    Target target(link, data.size());
    std::vector<Nanos> tries;
    link.data_fate = [&](const wire::Packet&, std::size_t) {
      tries.push_back(link.now());
      return std::vector<Nanos>{};
    };
    link.requester().post(write(data, target));
    link.run();
    CHECK(link.sent().at(0).status == Status::kRetryExceeded);
    REQUIRE(tries.size() >= 16);
    CHECK(tries.back() - tries[tries.size() - 2] <= kSecond);
  }
}

TEST_CASE("after a timeout that came too early sending goes on behind several requests, with the right sizes") {
  Link link({.path_mtu = 256, .initial_window = 64});
  const Bytes data = test::random_fill(1, 700);
  Target target(link, data.size());
  for (std::uint32_t i = 0; i < 100; ++i) link.requester().post(write(data, target, i));
  const Nanos wakes = link.now() + 700 * kMillisecond;
  link.data_fate = [&](const wire::Packet&, std::size_t) { return std::vector{std::max(kOneWay, wakes - link.now())}; };
  link.run();
  CHECK(link.sent().size() == 100);
  CHECK(link.requester().counters().timeouts >= 1);
}

TEST_CASE("after a timeout that was right, what was lost goes again, and the window is smaller") {
  constexpr std::uint64_t kPackets = 64;
  for (const std::size_t lost_from : {0, 1, 40, 63}) {
    CAPTURE(lost_from);
    Link link({.path_mtu = 256, .initial_window = kPackets});
    const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
    Target target(link, data.size());
    link.requester().post(write(data, target));
    link.data_fate = [&](const wire::Packet&, std::size_t index) {
      return index >= lost_from && index < kPackets ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    link.run();
    check_sent(link, link.sent(), 1);
    CHECK(target.bytes == data);
    // A quarter of the window may have arrived without having asked for an acknowledgement; its first packet goes
    // again.
    CHECK(link.requester().counters().retransmits >= kPackets - lost_from);
    CHECK(link.requester().counters().retransmits <= kPackets - lost_from + 1);
    CHECK(link.requester().control().window() < kPackets);
  }
}

TEST_CASE("what was in flight when its path died goes again at once, and comes once") {
  constexpr std::uint64_t kPackets = 32;
  for (const std::uint64_t arrived : {0U, 5U, 32U}) {
    CAPTURE(arrived);
    Link link({.path_mtu = 256, .initial_window = kPackets});
    const Bytes data = test::random_fill(1, std::size_t{256} * kPackets);
    Target target(link, data.size());
    link.requester().post(write(data, target));
    link.data_fate = [&](const wire::Packet&, std::size_t index) {
      return index >= arrived && index < kPackets ? std::vector<Nanos>{} : std::vector{kOneWay};
    };
    link.run(link.now() + 3 * kOneWay);  // acknowledged as far as it arrived, long before any timeout
    CHECK(link.requester().counters().timeouts == 0);
    const bool all = link.requester().all_acknowledged();
    link.requester().on_path_changed(link.now());
    link.run(link.now() + 3 * kOneWay);
    check_sent(link, link.sent(), 1);
    CHECK(target.bytes == data);
    CHECK(link.requester().counters().timeouts == 0);
    CHECK((link.requester().counters().retransmits == 0) == all);
  }
}

// -- everything at once ------------------------------------------------------------------------------------------

struct Weather {
  double loss;
  double duplicate;
  double late;
};

void storm(std::uint64_t seed, const Weather& weather) {
  SplitMix64 random(seed);
  constexpr std::array<std::uint32_t, 3> kMtus{256, 1024, 4096};
  Link link({.path_mtu = kMtus[random.below(kMtus.size())],
             .first_psn = static_cast<std::uint32_t>(random.next()) & wire::kPsnMask,
             .remote_first_psn = static_cast<std::uint32_t>(random.next()) & wire::kPsnMask,
             .retry_time = 1000 * kSecond,
             .ask_after = seed % 2 == 0 ? kMillisecond : kNever});
  const Link::Fate fate = [&](const wire::Packet&, std::size_t) {
    std::vector<Nanos> delays;
    if (random.uniform() >= weather.loss) delays.push_back(kOneWay);
    if (random.uniform() < weather.duplicate) delays.push_back(kOneWay + static_cast<Nanos>(random.below(2 * kOneWay)));
    if (!delays.empty() && random.uniform() < weather.late) delays[0] += static_cast<Nanos>(random.below(kMillisecond));
    return delays;
  };
  link.data_fate = fate;
  link.ack_fate = fate;

  const std::size_t count = 1 + random.below(40);
  std::vector<Bytes> messages;
  for (std::size_t i = 0; i < count; ++i) messages.push_back(test::random_fill(random, random.below(20'000)));
  std::size_t total = 0;
  for (const Bytes& message : messages) total += message.size();
  Target target(link, total);
  std::size_t offset = 0;
  for (std::size_t i = 0; i < count; ++i) {
    WorkRequest request = write(messages[i], target, i + 1);
    request.remote_address = offset;
    link.requester().post(request);
    offset += messages[i].size();
    if (random.uniform() < 0.3) link.run(link.now() + static_cast<Nanos>(random.below(kMillisecond)));
  }
  link.run();
  link.drain();
  check_sent(link, link.sent(), count);
  REQUIRE(link.received().size() == count);
  offset = 0;
  for (std::size_t i = 0; i < count; ++i) {
    CHECK(link.received()[i].imm == 0xA0000001 + i);
    CHECK(link.received()[i].byte_length == messages[i].size());
    REQUIRE(
        std::equal(messages[i].begin(), messages[i].end(), target.bytes.begin() + static_cast<std::ptrdiff_t>(offset)));
    offset += messages[i].size();
  }
  CHECK(link.responder().counters().rx_bytes == total);
}

TEST_CASE("whatever the wire does, every message arrives once, whole and in order") {
  const std::array<Weather, 6> weathers{{{.loss = 0.01, .duplicate = 0, .late = 0},
                                         {.loss = 0.05, .duplicate = 0, .late = 0},
                                         {.loss = 0, .duplicate = 0.2, .late = 0},
                                         {.loss = 0, .duplicate = 0, .late = 0.2},
                                         {.loss = 0.05, .duplicate = 0.05, .late = 0.05},
                                         {.loss = 0.3, .duplicate = 0.3, .late = 0.3}}};
  for (std::size_t w = 0; w < weathers.size(); ++w) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      CAPTURE(w);
      CAPTURE(seed);
      storm(seed, weathers[w]);
    }
  }
}

TEST_CASE("random requests never hurt the responder") {
  SplitMix64 random(3);
  Link link({.path_mtu = 256, .receive_buffers = 64, .receive_bytes = 300});
  Target target(link, 2000);
  std::uint32_t psn = 0;
  for (int i = 0; i < 100'000; ++i) {
    const auto opcode = static_cast<std::uint8_t>(random.below(0x0C));
    const Bytes payload(random.uniform() < 0.6 ? 256 : random.below(400), std::byte{5});
    const auto pad = static_cast<std::uint8_t>((4 - payload.size() % 4) % 4);
    const auto length = static_cast<std::uint32_t>(random.uniform() < 0.5 ? payload.size() : random.below(1500));
    const std::uint64_t address = random.uniform() < 0.9 ? random.below(2500) : random.next();
    const std::uint32_t jitter = random.uniform() < 0.9 ? 0 : static_cast<std::uint32_t>(random.below(5)) - 2;
    link.inject(serialize(wire::data_header(static_cast<Opcode>(opcode), kResponderQpn, psn + jitter,
                                            random.uniform() < 0.5, pad, address, target.rkey, length, 1),
                          payload, pad));
    if (const auto answer = link.responder().take_acknowledgement()) {
      // The machine says where it stands: carry on from there.
      const Parsed parsed(serialize(*answer));
      const bool ack = (parsed.packet.syndrome & 0xE0) == 0;
      psn = (parsed.packet.psn + (ack ? 1 : 0)) & wire::kPsnMask;
    } else if (jitter == 0) {
      psn = (psn + 1) & wire::kPsnMask;
    }
    if (random.uniform() < 0.05) link.post_receive();
  }
  CHECK(link.received().size() > 100);
  CHECK(link.responder().counters().rx_packets == 100'000);
}

}  // namespace
}  // namespace paralet
