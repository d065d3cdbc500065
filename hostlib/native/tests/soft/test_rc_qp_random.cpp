// SPDX-License-Identifier: Apache-2.0
// RC QP: random networks and random requests.
#include "rc_qp_link.hpp"

namespace paralet::rc_qp_test {
namespace {

struct NetworkFaults {
  double loss;
  double duplicate;
  double late;
};

/// `psns`: how many are left before they wrap, in both directions; 0: any number.
void transfer_over(std::uint64_t seed, const NetworkFaults& faults, bool selective, std::uint32_t psns = 0) {
  SplitMix64 random(seed);
  const auto first_psn = [&] {
    return (psns == 0 ? static_cast<std::uint32_t>(random.next()) : 0U - psns) & wire::kPsnMask;
  };
  constexpr std::array<std::uint32_t, 3> kMtus{256, 1024, 4096};
  Link link({.path_mtu = kMtus[random.below(kMtus.size())],
             .first_psn = first_psn(),
             .remote_first_psn = first_psn(),
             .retry_time = 1000 * kSecond,
             .probe_after = seed % 2 == 0 ? kMillisecond : kNever,
             .selective = selective});
  const Link::Fate fate = [&](const wire::Packet&, std::size_t) {
    std::vector<Nanos> delays;
    if (random.uniform() >= faults.loss) delays.push_back(kOneWay);
    if (random.uniform() < faults.duplicate) delays.push_back(kOneWay + static_cast<Nanos>(random.below(2 * kOneWay)));
    if (!delays.empty() && random.uniform() < faults.late) delays[0] += static_cast<Nanos>(random.below(kMillisecond));
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
  CHECK(link.reassembly().left == kPeerReassemblyBytes);
}

constexpr std::array<NetworkFaults, 6> kNetworks{{{.loss = 0.01, .duplicate = 0, .late = 0},
                                                  {.loss = 0.05, .duplicate = 0, .late = 0},
                                                  {.loss = 0, .duplicate = 0.2, .late = 0},
                                                  {.loss = 0, .duplicate = 0, .late = 0.2},
                                                  {.loss = 0.05, .duplicate = 0.05, .late = 0.05},
                                                  {.loss = 0.3, .duplicate = 0.3, .late = 0.3}}};

TEST_CASE("with loss, duplication and reordering every message arrives once, complete and in order") {
  for (std::size_t w = 0; w < kNetworks.size(); ++w) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      CAPTURE(w);
      CAPTURE(seed);
      transfer_over(seed, kNetworks[w], false);
      transfer_over(seed, kNetworks[w], true);
    }
  }
}

TEST_CASE("the same while PSNs wrap around") {
  for (std::size_t w = 0; w < kNetworks.size(); ++w) {
    for (const std::uint32_t left : {1, 2, 3, 8, 21, 63, 64, 65, 100, 250}) {
      CAPTURE(w);
      CAPTURE(left);
      transfer_over(left, kNetworks[w], false, left);
      transfer_over(left, kNetworks[w], true, left);
    }
  }
}

TEST_CASE("random requests do not break the responder") {
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
      // The answer gives the expected PSN: continue from there.
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
}  // namespace paralet::rc_qp_test
