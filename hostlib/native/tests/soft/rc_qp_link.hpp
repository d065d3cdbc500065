// SPDX-License-Identifier: Apache-2.0
// Two QPs joined by a simulated wire with its own clock: no sockets, no sleeping, every run the same.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "soft/rc_qp.hpp"

namespace paralet::rc_qp_test {

using test::Bytes;
using wire::Opcode;
using wire::Syndrome;

inline constexpr std::uint32_t kRequesterQpn = 0x11;
inline constexpr std::uint32_t kResponderQpn = 0x22;
inline constexpr Nanos kOneWay = 100 * kMicrosecond;

inline std::uint8_t code(Syndrome syndrome) { return static_cast<std::uint8_t>(syndrome); }

/// A packet as bytes on the wire. The ICRC stays zero, because RcQp does not check it.
inline Bytes serialize(const wire::Header& header, std::span<const std::byte> payload = {}, std::uint8_t pad = 0) {
  Bytes out(header.bytes.begin(), header.bytes.begin() + header.length);
  out.insert(out.end(), payload.begin(), payload.end());
  out.resize(out.size() + pad + wire::kIcrcBytes);
  return out;
}

inline Bytes serialize(const OutgoingPacket& packet) { return serialize(packet.header, packet.payload, packet.pad); }

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
  double max_window = 512;
  double delay_floor = 0;
  const char* law = "delay";
  std::uint32_t burst = 1;
  Nanos probe_after = kNever;
  bool selective = false;  ///< selective repeat, else go-back-N
  bool mark_counts = false;
  bool host_delays = false;
  std::size_t reassembly_bytes = kPeerReassemblyBytes;
};

/// One requester, one responder, and the network between them.
class Link {
 public:
  /// Delays after which copies of a packet arrive: none means loss, two a duplicate, a long one reordering.
  using Fate = std::function<std::vector<Nanos>(const wire::Packet&, std::size_t index)>;

  explicit Link(const LinkOptions& options = {}) : options_(options), receive_memory_(1 << 20) {
    for (std::size_t i = 0; i < options.receive_buffers; ++i) post_receive();
    requester_qp_ = make(kRequesterQpn, kResponderQpn, options.first_psn, options.remote_first_psn, requester_context_);
    responder_qp_ = make(kResponderQpn, kRequesterQpn, options.remote_first_psn, options.first_psn, context_);
  }

  /// The half of each queue pair that the test is about, and the whole queue pairs.
  Requester& requester() { return requester_qp_->requester(); }
  Responder& responder() { return responder_qp_->responder(); }
  RcQp& requester_qp() { return *requester_qp_; }
  RcQp& responder_qp() { return *responder_qp_; }
  MemoryTable& memory() { return memory_; }
  [[nodiscard]] const ReassemblyMemory& reassembly() const { return reassembly_; }
  std::vector<Completion>& sent() { return requester_done_; }
  std::vector<Completion>& received() { return received_; }
  [[nodiscard]] const Bytes& receive_memory() const { return receive_memory_; }
  [[nodiscard]] const std::vector<std::uint8_t>& opcodes() const { return opcodes_; }
  /// Number of packets of each burst.
  [[nodiscard]] const std::vector<std::size_t>& bursts() const { return bursts_; }
  [[nodiscard]] Nanos now() const { return now_; }
  [[nodiscard]] Nanos min_timeout() const { return requester_context_.min_timeout; }

  Fate data_fate = [](const wire::Packet&, std::size_t) { return std::vector{kOneWay}; };
  Fate ack_fate = data_fate;
  /// Whether a data packet arrives with a congestion mark.
  std::function<bool(std::size_t index)> marked = [](std::size_t) { return false; };

  void post_receive() {
    const std::size_t slots = receive_memory_.size() / options_.receive_bytes;
    const std::size_t slot = slots - 1 - posted_receives_++ % slots;  // the last one is taken first
    queue_.push_back({.data = receive_memory_.data() + slot * options_.receive_bytes,
                      .length = options_.receive_bytes,
                      .cookie = slot});
  }

  /// Runs until the requester is idle, or until time `until`. A stalled QP is an error.
  void run(Nanos until = 3600 * kSecond) {
    for (int steps = 0; !requester().idle(); ++steps) {
      REQUIRE(steps < 2'000'000);
      while (requester().should_send(now_)) bursts_.push_back(send_burst());
      const Nanos arrival = wire_.empty() ? kNever : wire_.begin()->first;
      const Nanos next = std::min(arrival, requester().deadline());
      REQUIRE(next != kNever);  // otherwise nothing would ever happen again
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
      requester().on_timer(now_);
    }
  }

  /// Delivers what is still on the wire, such as late copies.
  void drain() {
    while (!wire_.empty()) {
      now_ = std::max(now_, wire_.begin()->first);
      const Flying flying = std::move(wire_.begin()->second);
      wire_.erase(wire_.begin());
      deliver(flying);
    }
  }

  void inject(const Bytes& request, bool mark = false) {
    const Parsed parsed(request);
    responder().on_request(parsed.packet, mark);
  }

 private:
  struct Flying {
    Bytes bytes;
    bool to_responder;
    bool marked;
  };

  RcQpContext context(MemoryTable& memory, ReceiveQueue& queue, std::vector<Completion>& done) {
    return {.memory = memory,
            .receive_queue = queue,
            .completions = done,
            .congestion = {.law = options_.law,
                           .initial_window = options_.initial_window,
                           .max_window = options_.max_window,
                           .delay_floor = options_.delay_floor},
            .retry_time = options_.retry_time};
  }

  std::unique_ptr<RcQp> make(std::uint32_t qpn, std::uint32_t remote, std::uint32_t psn, std::uint32_t remote_psn,
                             RcQpContext& context) {
    return std::make_unique<RcQp>(RcQpOptions{.qpn = qpn,
                                              .first_psn = psn,
                                              .remote_qpn = remote,
                                              .remote_first_psn = remote_psn,
                                              .path_mtu = options_.path_mtu,
                                              .burst = options_.burst,
                                              .probe_after = options_.probe_after,
                                              .reassembly = options_.selective ? &reassembly_ : nullptr,
                                              .host_delays = options_.host_delays,
                                              .mark_counts = options_.mark_counts},
                                  context);
  }

  std::size_t send_burst() {
    std::size_t packets = 0;
    for (; packets < options_.burst && requester().can_send(now_); ++packets) {
      const std::size_t announced = requester().next_packet_bytes();
      const auto packet = requester().next_packet(now_);
      REQUIRE(packet);
      const Bytes bytes = serialize(*packet);
      REQUIRE(bytes.size() == announced);
      launch(bytes, data_fate, data_index_, true);
    }
    return packets;
  }

  void launch(Bytes bytes, const Fate& fate, std::size_t& index, bool to_responder) {
    const Parsed parsed(std::move(bytes));
    REQUIRE(parsed.packet.dest_qpn == (to_responder ? kResponderQpn : kRequesterQpn));
    if (to_responder) opcodes_.push_back(parsed.packet.opcode);
    const bool mark = to_responder && marked(index);
    for (const Nanos delay : fate(parsed.packet, index++)) {
      wire_.emplace(now_ + delay, Flying{parsed.bytes, to_responder, mark});
    }
  }

  void deliver(const Flying& flying) {
    const Parsed parsed(flying.bytes);
    if (!flying.to_responder) {
      requester().on_acknowledge(parsed.packet, now_, base_rtt_);
      base_rtt_ = std::min(base_rtt_, requester().round_trip().smallest());
      return;
    }
    responder().on_request(parsed.packet, flying.marked);
    if (const auto ack = responder().take_acknowledgement()) launch(serialize(*ack), ack_fate, ack_index_, false);
    CHECK_FALSE(responder().take_acknowledgement());
  }

  LinkOptions options_;
  ReassemblyMemory reassembly_{.left = options_.reassembly_bytes};
  MemoryTable requester_memory_;
  MemoryTable memory_;
  ReceiveQueue requester_queue_;
  ReceiveQueue queue_;
  std::vector<Completion> requester_done_;
  std::vector<Completion> received_;
  RcQpContext requester_context_ = context(requester_memory_, requester_queue_, requester_done_);
  RcQpContext context_ = context(memory_, queue_, received_);
  Bytes receive_memory_;
  std::size_t posted_receives_ = 0;
  std::unique_ptr<RcQp> requester_qp_;
  std::unique_ptr<RcQp> responder_qp_;
  std::multimap<Nanos, Flying> wire_;
  std::size_t data_index_ = 0;
  std::size_t ack_index_ = 0;
  std::vector<std::uint8_t> opcodes_;
  std::vector<std::size_t> bursts_;
  Nanos now_ = kSecond;
  Nanos base_rtt_ = kNever;
};

/// Registered memory of the responder.
struct Target {
  Target(Link& link, std::size_t length) : bytes(length), rkey(link.memory().add(bytes.data(), length)) {}
  Bytes bytes;
  std::uint32_t rkey;
};

inline WorkRequest write(const Bytes& data, const Target& target, std::uint64_t cookie = 1,
                         WorkKind kind = WorkKind::kWriteImm) {
  return {.kind = kind,
          .cookie = cookie,
          .data = data.data(),
          .length = static_cast<std::uint32_t>(data.size()),
          .rkey = target.rkey,
          .imm = static_cast<std::uint32_t>(0xA0000000 + cookie)};
}

/// Requests completed with success, in order and once each.
inline void check_sent(const Link& /*link*/, const std::vector<Completion>& sent, std::size_t count) {
  REQUIRE(sent.size() == count);
  for (std::size_t i = 0; i < count; ++i) {
    CHECK(sent[i].kind == Completion::Kind::kSent);
    CHECK(sent[i].status == Status::kSuccess);
    CHECK(sent[i].cookie == i + 1);
  }
}

/// Three writes of 21 packets each.
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

inline constexpr std::size_t kTransferPackets = 63;

}  // namespace paralet::rc_qp_test
