// SPDX-License-Identifier: Apache-2.0
// What arrives at a soft back end in the middle of a WRITE: handmade packets, in batches and alone.
#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "bytes.hpp"
#include "free_ports.hpp"
#include "soft_scene.hpp"
#include "udp_endpoint.hpp"

namespace paralet {
namespace {

using test::Bytes;
using test::kOurAddress;
using test::kPathMtu;
using test::kTheirAddress;
using test::kThird;
using test::soft_options;

// -- arrivals in the middle of a WRITE ---------------------------------------------------------------------------

using wire::Opcode;

/// A back end that receives handmade packets from the address that its QPs expect.
struct Stage {
  explicit Stage(std::uint32_t path_mtu) : mtu(path_mtu) {}
  SoftBackend b{soft_options(kTheirAddress)};
  fuzz::UdpEndpoint peer{kOurAddress};
  fuzz::UdpEndpoint stranger{kThird};
  std::uint32_t mtu;
  bool selective = false;       ///< QPs that connect from now on use selective repeat
  std::uint32_t connected = 0;  ///< QPs so far
  std::vector<Completion> done;

  QpIdentity connect(std::uint32_t first_psn) {
    const QpIdentity qp = b.create_qp();
    const RemoteQp remote{.address = kOurAddress,
                          .udp_port = peer.port(),
                          .qpn = 0x100,
                          .first_psn = first_psn,
                          .path_mtu = mtu,
                          .ece = soft_ece(selective ? kSelectiveRepeat : 0)};
    REQUIRE(b.connect_qp(qp.qpn, remote, test::free_port()));
    ++connected;
    return qp;
  }

  /// A packet without its ICRC.
  static Bytes packet(const wire::Header& header, std::span<const std::byte> payload = {}, std::uint8_t pad = 0) {
    Bytes out(header.bytes.begin(), header.bytes.begin() + header.length);
    out.insert(out.end(), payload.begin(), payload.end());
    out.resize(out.size() + pad + wire::kIcrcBytes);
    return out;
  }

  /// Sends packets as one batch and lets the back end receive them. All ICRCs are correct except that of packet
  /// `broken`. All packets have one size, the last may be shorter.
  void send(const std::vector<Bytes>& packets, std::optional<std::size_t> broken = {}) { send(packets, broken, peer); }
  void send(std::vector<Bytes> packets, std::optional<std::size_t> broken, const fuzz::UdpEndpoint& from) {
    Bytes batch;
    for (std::size_t i = 0; i < packets.size(); ++i) {
      REQUIRE((packets[i].size() == packets[0].size() || i + 1 == packets.size()));
      from.seal(packets[i], kTheirAddress, b.udp_port(), static_cast<std::uint16_t>(i));
      if (i == broken) packets[i].back() ^= std::byte{1};
      batch.insert(batch.end(), packets[i].begin(), packets[i].end());
    }
    from.send(kTheirAddress, b.udp_port(), batch, packets.size() > 1 ? packets[0].size() : 0);
    take();
  }

  /// Lets the back end receive what has been sent.
  void take() {
    pollfd arrived{.fd = b.event_fd(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&arrived, 1, 20'000) == 1);
    do b.progress(now(), done);
    while (::poll(&arrived, 1, 0) == 1);
    b.settle(now());
  }

  [[nodiscard]] std::size_t largest_batch() const {
    return std::min<std::size_t>(DirectPlacement::kMaxPackets, 65507 / (mtu + DirectPlacement::kFrameBytes));
  }
};

/// A WRITE with immediate data to its own memory, packet by packet, on its own QP.
struct Write {
  static constexpr std::size_t kAround = 70'000;  ///< bytes on both sides of the region: more than a batch has
  static constexpr std::byte kUntouched{0x5A};

  Write(Stage& on, std::uint32_t middle_packets, std::uint32_t last_bytes = 101)
      : stage(on),
        packets(middle_packets + 2),
        data(test::random_fill(on.connected, std::size_t{packets - 1} * on.mtu + last_bytes)),
        memory(data.size() + 2 * kAround, kUntouched),
        rkey(on.b.register_memory(memory.data() + kAround, data.size())),
        first_psn(0xFFFFF8),  // PSNs wrap soon
        qp(on.connect(first_psn)) {
    on.b.post_receive({});
  }
  Write(const Write&) = delete;
  ~Write() {
    stage.b.destroy_qp(qp.qpn);
    stage.b.deregister_memory(rkey);
  }

  Stage& stage;
  std::uint32_t packets;
  Bytes data;
  Bytes memory;
  std::uint32_t rkey;
  std::uint32_t first_psn;
  QpIdentity qp;
  std::uint32_t next = 0;  ///< index of the next packet

  [[nodiscard]] std::span<const std::byte> window() const { return std::span(memory).subspan(kAround, data.size()); }
  [[nodiscard]] std::size_t last_place() const { return std::size_t{packets - 1} * stage.mtu; }
  [[nodiscard]] QpCounters counters() const { return stage.b.statistics(qp.qpn).counters; }

  [[nodiscard]] Bytes packet(std::uint32_t index) const {
    Opcode opcode = Opcode::kWriteMiddle;
    if (index == 0) opcode = Opcode::kWriteFirst;
    if (index + 1 == packets) opcode = Opcode::kWriteLastImm;
    const std::size_t offset = std::size_t{index} * stage.mtu;
    const auto payload = std::span(data).subspan(offset, std::min<std::size_t>(stage.mtu, data.size() - offset));
    const auto pad = static_cast<std::uint8_t>((4 - payload.size() % 4) % 4);
    const auto length = static_cast<std::uint32_t>(data.size());
    return Stage::packet(
        wire::data_header(opcode, qp.qpn, (first_psn + index) & wire::kPsnMask, false, pad, 0, rkey, length, 7),
        payload, pad);
  }
  /// Up to `most` next packets from its middle.
  [[nodiscard]] std::vector<Bytes> middle(std::size_t most) const {
    std::vector<Bytes> out;
    for (std::uint32_t i = next; i + 1 < packets && out.size() < most; ++i) out.push_back(packet(i));
    return out;
  }

  void begin() { go_on(1); }
  /// Sends `packets` packets: the first and the last alone, the others in batches of up to `batch`.
  void go_on(std::size_t count, std::size_t batch = SIZE_MAX) {
    batch = std::min(batch, stage.largest_batch());
    for (const std::size_t end = next + count; next < end;) {
      const bool alone = next == 0 || next + 1 == packets;
      const std::vector<Bytes> sent = alone ? std::vector<Bytes>{packet(next)} : middle(std::min(batch, end - next));
      stage.send(sent);
      next += static_cast<std::uint32_t>(sent.size());
      check();
    }
  }
  void finish() {
    go_on(packets - next);
    const auto is_ours = [this](const Completion& c) {
      return c.kind == Completion::Kind::kReceivedWriteImm && c.qpn == qp.qpn;
    };
    REQUIRE(std::ranges::count_if(stage.done, is_ours) == 1);
    CHECK(std::ranges::find_if(stage.done, is_ours)->byte_length == data.size());
  }

  /// Received payloads are in place. The place of the last packet and the memory around the region are unchanged.
  void check() const {
    // By memcmp: byte by byte, this is most of the test's time without optimisation.
    const std::vector<std::byte> fresh(memory.size(), kUntouched);
    const auto same = [](std::span<const std::byte> a, std::span<const std::byte> b) {
      return a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0;
    };
    const auto untouched = [&](std::span<const std::byte> bytes) { return same(bytes, fresh); };
    const std::size_t come = std::min(std::size_t{next} * stage.mtu, data.size());
    CHECK(same(window().first(come), std::span(data).first(come)));
    if (next < packets) CHECK(untouched(window().subspan(last_place())));
    CHECK(untouched(std::span(memory).first(kAround)));
    CHECK(untouched(std::span(memory).last(kAround)));
  }
};

TEST_CASE("interleaved batches of two QPs' WRITEs both arrive complete") {
  for (const std::uint32_t mtu : {256U, 1024U, 4096U}) {
    // A full batch, while the other WRITE has room for more packets, as many, fewer, one, none.
    const auto batch = static_cast<std::uint32_t>(Stage(mtu).largest_batch());
    for (const std::uint32_t room : {2 * batch, batch, batch / 2, 1U, 0U}) {
      CAPTURE(mtu);
      CAPTURE(room);
      Stage stage(mtu);
      Write a(stage, batch + room);
      Write b(stage, 3 * batch);
      b.begin();
      a.begin();
      a.go_on(batch);  // `room` packets and the last one are missing
      b.go_on(batch);
      a.check();
      if (room > 1) a.go_on(room / 2);
      b.check();
      b.go_on(1);
      b.go_on(batch / 2);
      a.check();
      a.finish();
      b.check();
      b.finish();
      a.check();
      CHECK(a.counters().rx_packets == a.packets);
      CHECK(b.counters().rx_packets == b.packets);
    }
  }
}

TEST_CASE("WRITEs of several QPs arrive complete however packets are grouped into runs") {
  for (const std::uint32_t mtu : {256U, 1024U}) {
    CAPTURE(mtu);
    Stage stage(mtu);
    SplitMix64 random(mtu);
    Write one(stage, 700, mtu);  // the last packet is as long as those of the middle
    Write two(stage, 900, mtu - 4);
    Write three(stage, 500, 1);
    const std::array<Write*, 3> writes{&one, &two, &three};
    for (Write* write : writes) write->begin();
    for (unsigned step = 0; step < 200; ++step) {
      CAPTURE(step);
      Write& write = *writes[random.next() % writes.size()];
      const std::vector<Bytes> run = write.middle(1 + random.next() % stage.largest_batch());
      if (run.empty()) continue;
      std::optional<std::size_t> broken;
      if (random.next() % 4 == 0) broken = random.next() % run.size();
      stage.send(run, broken);
      write.next += static_cast<std::uint32_t>(broken.value_or(run.size()));
      for (const Write* each : writes) each->check();
    }
    for (Write* write : writes) write->finish();
    for (const Write* write : writes) write->check();
  }
}

TEST_CASE("two ends use the options that both of them offer") {
  constexpr std::uint32_t kAll = kSelectiveRepeat | kMarkCounts | kHostDelays;
  for (const std::uint32_t own : {0U, kSelectiveRepeat, kMarkCounts, kHostDelays, kAll}) {
    SoftOptions of_backend = soft_options(kTheirAddress);
    of_backend.offers = own;
    SoftBackend backend(of_backend);
    const auto agreed = [&](const Ece& offered) {
      const QpIdentity qp = backend.create_qp();
      CHECK(backend.ece(qp.qpn) == soft_ece(own));
      REQUIRE(backend.connect_qp(
          qp.qpn,
          {.address = kOurAddress, .udp_port = 4791, .qpn = 5, .first_psn = 0, .path_mtu = kPathMtu, .ece = offered},
          test::free_port()));
      return backend.ece(qp.qpn);
    };
    for (const std::uint32_t offered : {0U, kSelectiveRepeat, kMarkCounts, kAll, 0xFFFFFFFFU}) {
      CHECK(agreed(soft_ece(offered)) == soft_ece(own & offered));
    }
    CHECK(agreed({.vendor_id = 0x15B3, .options = kAll, .comp_mask = 0}) == Ece{});  // a NIC's
  }
  CHECK(soft_ece(kAll) == Ece{.vendor_id = 0x504C4554, .options = 7, .comp_mask = 0});
}

TEST_CASE("with selective repeat WRITEs arrive complete from runs in any order, with copies and losses") {
  for (const std::uint32_t mtu : {256U, 1024U}) {
    CAPTURE(mtu);
    Stage stage(mtu);
    stage.selective = true;
    SplitMix64 random(mtu);
    Write one(stage, 500, mtu);
    Write two(stage, 700, 1);
    const std::array<Write*, 2> writes{&one, &two};
    std::array<std::vector<bool>, 2> arrived;
    for (std::size_t w = 0; w < 2; ++w) {
      writes[w]->begin();
      arrived[w].resize(writes[w]->packets);
    }
    for (unsigned step = 0; step < 300; ++step) {
      CAPTURE(step);
      const std::size_t w = random.below(2);
      Write& write = *writes[w];
      // Most runs begin with what is missing, as retransmissions do, and some packets come from up to a window behind.
      const std::uint32_t spread = random.uniform() < 0.8 ? 40 : 1100;
      std::vector<std::uint32_t> indices;
      for (std::size_t i = 1 + random.below(stage.largest_batch()); i > 0; --i) {
        indices.push_back(write.next + static_cast<std::uint32_t>(random.below(spread)));
      }
      if (random.uniform() < 0.5) std::ranges::sort(indices);
      if (random.uniform() < 0.5) indices.front() = write.next;
      std::erase_if(indices, [&](std::uint32_t index) { return index + 1 >= write.packets; });
      if (indices.empty()) continue;
      std::vector<Bytes> run;
      run.reserve(indices.size());
      for (const std::uint32_t index : indices) run.push_back(write.packet(index));
      std::optional<std::size_t> broken;
      if (random.below(4) == 0) broken = random.below(run.size());
      stage.send(run, broken);
      for (std::size_t i = 0; i < indices.size(); ++i) {
        if (i != broken && indices[i] < write.next + Reassembly::kWindow) arrived[w][indices[i]] = true;
        while (arrived[w][write.next]) ++write.next;
      }
      for (const Write* each : writes) each->check();
    }
    CHECK(one.next > 100);
    CHECK(two.next > 100);
    for (Write* write : writes) write->finish();
    for (const Write* write : writes) write->check();
  }
}

TEST_CASE("a SEND and an acknowledgement in the middle of a WRITE are handled correctly") {
  constexpr std::uint32_t kMtu = 1024;
  for (const std::uint32_t room : {1U, 3U, 30U}) {
    CAPTURE(room);
    Stage stage(kMtu);
    const Bytes message = test::random_fill(5, 4 * std::size_t{kMtu} + 100);
    Bytes received(message.size());
    const std::uint32_t psn = 0x1234;
    const QpIdentity other = stage.connect(psn);
    const Bytes asked = test::random_fill(6, 100);
    stage.b.post(other.qpn, {.kind = WorkKind::kSend, .cookie = 3, .data = asked.data(), .length = 100});
    stage.b.flush(now());
    Write write(stage, 5 + room);
    stage.b.post_receive({.data = received.data(), .length = static_cast<std::uint32_t>(received.size()), .cookie = 9});
    write.begin();
    write.go_on(5);

    stage.send({Stage::packet(
        wire::ack_header(other.qpn, other.first_psn, static_cast<std::uint8_t>(wire::Syndrome::kAck), 1))});
    REQUIRE(stage.done.size() == 1);
    CHECK(stage.done[0].kind == Completion::Kind::kSent);
    CHECK(stage.done[0].status == Status::kSuccess);
    CHECK(stage.done[0].cookie == 3);
    write.check();

    // All but its last packet have the size of packets from the middle of a WRITE.
    constexpr std::array kOpcodes{Opcode::kSendFirst, Opcode::kSendMiddle, Opcode::kSendMiddle, Opcode::kSendMiddle,
                                  Opcode::kSendLast};
    std::vector<Bytes> packets;
    for (std::size_t i = 0; i < kOpcodes.size(); ++i) {
      const auto payload = std::span(message).subspan(i * kMtu).first(i < 4 ? kMtu : 100);
      packets.push_back(Stage::packet(
          wire::data_header(kOpcodes[i], other.qpn, psn + static_cast<std::uint32_t>(i), false, 0, 0, 0, 0, 0),
          payload));
    }
    stage.send(packets);
    REQUIRE(stage.done.size() == 2);
    CHECK(stage.done[1].kind == Completion::Kind::kReceivedSend);
    CHECK(stage.done[1].cookie == 9);
    CHECK(received == message);
    write.check();
    write.finish();
  }
}

/// The outcome of a batch from the middle of a WRITE.
struct BatchOutcome {
  std::size_t taken = 0;    ///< accepted packets
  std::size_t refused = 0;  ///< rejected by the QP with a NAK
  std::size_t late = 0;     ///< out of sequence behind a missing packet
  std::size_t duplicates = 0;
  Discards discards;
};

/// A fault of a batch at its packet k, and the expected outcome.
struct Spoiling {
  const char* what;
  std::function<BatchOutcome(std::vector<Bytes>& packets, std::size_t k, const Write& write)> spoil;
  bool broken = false;   ///< the ICRC of packet k
  bool strange = false;  ///< another host sends it
};

BatchOutcome discarded_at(std::size_t k, const std::vector<Bytes>& packets, const Discards& discards) {
  return {.taken = k, .late = packets.size() - k - 1, .discards = discards};
}

BatchOutcome refused_at(std::size_t k, const std::vector<Bytes>& packets) {
  return {.taken = k, .refused = 1, .late = packets.size() - k - 1};
}

/// Payloads of `bytes`, with no more packets than fit a datagram.
BatchOutcome resize(std::vector<Bytes>& packets, std::size_t bytes) {
  const std::size_t size = bytes + DirectPlacement::kFrameBytes;
  packets.resize(std::min(packets.size(), 65507 / size));
  for (Bytes& packet : packets) packet.resize(size);
  return refused_at(0, packets);
}

const std::vector<Spoiling> kSpoilings{
    {"not at all", [](auto& packets, auto, auto&) { return BatchOutcome{.taken = packets.size()}; }},
    {"a wrong ICRC", [](auto& packets, auto k, auto&) { return discarded_at(k, packets, {.icrc = 1}); }, true},
    {"one is missing",
     [](auto& packets, auto k, auto&) {
       packets.erase(packets.begin() + static_cast<std::ptrdiff_t>(k));
       return BatchOutcome{.taken = k, .late = packets.size() - k};
     }},
    {"a copy of an earlier one comes in between",
     [](auto& packets, auto k, auto& write) {
       packets.pop_back();
       packets.insert(packets.begin() + static_cast<std::ptrdiff_t>(k), write.packet(write.next - 1));
       return BatchOutcome{.taken = packets.size() - 1, .duplicates = 1};
     }},
    {"one for no QP",
     [](auto& packets, auto k, auto&) {
       wire::put_u32(packets[k].data() + 4, 0);
       return discarded_at(k, packets, {.unknown_qp = 1});
     }},
    {"one of another version",
     [](auto& packets, auto k, auto&) {
       packets[k][1] |= std::byte{1};
       return discarded_at(k, packets, {.malformed = 1});
     }},
    {"one from a SEND",
     [](auto& packets, auto k, auto&) {
       packets[k][0] = static_cast<std::byte>(Opcode::kSendMiddle);
       return refused_at(k, packets);
     }},
    {"one is an unsupported request",
     [](auto& packets, auto k, auto&) {
       packets[k][0] = std::byte{0x0C};  // READ
       return refused_at(k, packets);
     }},
    {"one is padded",
     [](auto& packets, auto k, auto&) {
       packets[k][1] |= std::byte{0x10};
       return refused_at(k, packets);
     }},
    {"the last is short",
     [](auto& packets, auto, auto&) {
       packets.back().resize(packets.back().size() - 4);
       return refused_at(packets.size() - 1, packets);
     }},
    {"the last ends within its header",
     [](auto& packets, auto, auto&) {
       packets.back().resize(DirectPlacement::kFrameBytes - 1);
       return discarded_at(packets.size() - 1, packets, {.malformed = 1});
     }},
    {"all are short", [](auto& packets, auto, auto& write) { return resize(packets, write.stage.mtu / 2); }},
    {"all are a word too long", [](auto& packets, auto, auto& write) { return resize(packets, write.stage.mtu + 4); }},
    {"all are twice as long", [](auto& packets, auto, auto& write) { return resize(packets, 2 * write.stage.mtu); }},
    {"another host sends it",
     [](auto& packets, auto, auto&) { return BatchOutcome{.discards = {.wrong_source = packets.size()}}; }, false,
     true},
};

/// Sends the next `n` packets of `write` with a fault at packet k.
void check_spoiled(Write& write, const Spoiling& spoiling, std::size_t n, std::size_t k) {
  Stage& stage = write.stage;
  const QpCounters before = write.counters();
  const Discards discards_before = stage.b.discards();
  std::vector<Bytes> packets = write.middle(n);
  REQUIRE(packets.size() == n);
  const BatchOutcome outcome = spoiling.spoil(packets, k, write);
  stage.send(packets, spoiling.broken ? std::optional(k) : std::nullopt,
             spoiling.strange ? stage.stranger : stage.peer);
  write.next += static_cast<std::uint32_t>(outcome.taken);
  write.check();
  const QpCounters after = write.counters();
  const Discards discards = stage.b.discards();
  CHECK(after.rx_packets - before.rx_packets == outcome.taken + outcome.refused + outcome.late + outcome.duplicates);
  CHECK(after.rx_bytes - before.rx_bytes == outcome.taken * stage.mtu);
  CHECK(after.out_of_order - before.out_of_order == outcome.late);
  CHECK(after.duplicates - before.duplicates == outcome.duplicates);
  CHECK(discards.icrc - discards_before.icrc == outcome.discards.icrc);
  CHECK(discards.malformed - discards_before.malformed == outcome.discards.malformed);
  CHECK(discards.unknown_qp - discards_before.unknown_qp == outcome.discards.unknown_qp);
  CHECK(discards.wrong_source - discards_before.wrong_source == outcome.discards.wrong_source);
}

TEST_CASE("a batch in the middle of a WRITE is accepted up to its first bad packet, and the rest is counted") {
  for (const std::uint32_t mtu : {256U, 1024U}) {
    Stage stage(mtu);
    for (const Spoiling& spoiling : kSpoilings) {
      for (const std::size_t n : {std::size_t{2}, std::size_t{7}, stage.largest_batch()}) {
        for (const std::size_t k : {std::size_t{0}, n / 2, n - 1}) {
          CAPTURE(mtu);
          CAPTURE(spoiling.what);
          CAPTURE(n);
          CAPTURE(k);
          Write write(stage, static_cast<std::uint32_t>(n) + 4);
          write.begin();
          write.go_on(4);
          check_spoiled(write, spoiling, n, k);
          write.finish();
        }
      }
    }
  }
}

TEST_CASE("data of another host in the middle of a WRITE does not stay in the WRITE's memory") {
  constexpr std::byte kSecret{0xEE};
  for (const std::uint32_t mtu : {256U, 4096U}) {
    Stage stage(mtu);
    for (const std::size_t bytes : {std::size_t{40}, std::size_t{mtu}, std::size_t{mtu} + 100}) {
      CAPTURE(mtu);
      CAPTURE(bytes);
      Write write(stage, 12);
      write.begin();
      write.go_on(2);
      std::vector<Bytes> packets(5, write.packet(write.next));
      for (Bytes& packet : packets) {
        packet.resize(bytes + DirectPlacement::kFrameBytes);
        std::ranges::fill(std::span(packet).subspan(wire::kBthBytes), kSecret);
      }
      stage.send(packets, std::nullopt, stage.stranger);
      CHECK(std::ranges::count(write.window().subspan(write.next * std::size_t{mtu}), kSecret) == 0);
      write.check();
      write.finish();
    }
  }
}

TEST_CASE("a bad batch in the middle of another WRITE does not harm that WRITE") {
  constexpr std::uint32_t kMtu = 1024;
  Stage stage(kMtu);
  for (const Spoiling& spoiling : kSpoilings) {
    for (const std::uint32_t room : {1U, 4U, 40U}) {
      for (const std::size_t k : {0, 3, 6}) {
        CAPTURE(spoiling.what);
        CAPTURE(room);
        CAPTURE(k);
        Write spoiled(stage, 20);
        Write other(stage, room + 3);
        spoiled.begin();
        spoiled.go_on(2);
        other.begin();
        other.go_on(3);
        check_spoiled(spoiled, spoiling, 7, k);
        other.check();
        other.finish();
        spoiled.finish();
      }
    }
  }
}

TEST_CASE("memory returned to the caller in the middle of a WRITE is not written any more") {
  constexpr std::byte kCallers{0x77};
  const std::array<std::function<void(Write&)>, 3> ends{
      [](Write& write) { write.stage.b.destroy_qp(write.qp.qpn); },
      [](Write& write) { write.stage.b.deregister_memory(write.rkey); },
      [](Write& write) { write.stage.b.retire_memory(write.rkey); },
  };
  for (std::size_t i = 0; i < ends.size(); ++i) {
    for (const bool another_first : {false, true}) {
      CAPTURE(i);
      CAPTURE(another_first);
      Stage stage(1024);
      Write ended(stage, 100);
      Write other(stage, 100);
      other.begin();
      ended.begin();
      ended.go_on(10);
      ends[i](ended);
      std::ranges::fill(ended.memory, kCallers);
      if (another_first) other.go_on(20);
      stage.send(ended.middle(20));
      other.go_on(30);
      stage.send(ended.middle(1));
      other.finish();
      CHECK(std::ranges::all_of(ended.memory, [](std::byte b) { return b == kCallers; }));
    }
  }
}

TEST_CASE("empty and too short datagrams are counted as malformed, also in the middle of a WRITE") {
  Stage stage(256);
  Write write(stage, 20);
  std::uint64_t count = 0;
  for (const bool within : {false, true}) {
    CAPTURE(within);
    if (within) {
      write.begin();
      write.go_on(3);
    }
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, DirectPlacement::kFrameBytes - 1}) {
      CAPTURE(bytes);
      stage.send({Bytes(bytes, std::byte{0x22})});
      CHECK(stage.b.discards().malformed == ++count);
      if (within) write.check();
    }
  }
  write.finish();
}

}  // namespace
}  // namespace paralet
