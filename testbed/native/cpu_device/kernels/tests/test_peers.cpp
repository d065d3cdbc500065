// SPDX-License-Identifier: Apache-2.0
// Grouped sends and receives among some ranks in one process.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "world.hpp"

namespace paralet::cpu_device::test {
namespace {

constexpr std::byte guard_byte{0xa5};
constexpr std::uint8_t chunk_code = 10 << 3;    // 8 << 9 = 4096 bytes, a step's
constexpr std::uint8_t ll_chunk_code = 7 << 3;  // 512 bytes, the data of an LL step

using Bytes = std::vector<std::byte>;

std::byte value(unsigned from, unsigned to, std::size_t i) {
  return static_cast<std::byte>(from * 31 + to * 7 + i * 3);
}

// The index of the first byte that is not `from`'s to `to`, or their number. An assertion for each byte would take most
// of the time of these tests.
std::size_t right_bytes(const Bytes& received, unsigned from, unsigned to) {
  std::size_t i = 0;
  while (i + 1 < received.size() && received[i] == value(from, to, i)) ++i;
  return i;
}

// Every rank sends to every rank, itself included; sizes[from][to] bytes, over `parts` channels.
void check(World& world, const std::vector<std::vector<std::size_t>>& sizes, bool ll, unsigned parts) {
  const unsigned ranks = world.options().ranks;
  const unsigned channels = world.options().channels;
  std::vector<std::vector<Bytes>> sent(ranks);
  std::vector<std::vector<Bytes>> received(ranks);
  for (unsigned rank = 0; rank < ranks; ++rank) {
    for (unsigned other = 0; other < ranks; ++other) {
      Bytes& send = sent[rank].emplace_back(sizes[rank][other] + 1, guard_byte);
      for (std::size_t i = 0; i < sizes[rank][other]; ++i) send[i] = value(rank, other, i);
      received[rank].emplace_back(sizes[other][rank] + 1, guard_byte);
    }
  }
  const Function functions[] = {{.known = true, .collective = Collective::send_recv, .name = "SendRecv"}};
  const auto results = world.run(functions, [&](unsigned rank, std::vector<std::byte>& memory) {
    for (unsigned round = 0; round < ranks; ++round) {
      const unsigned to = (rank + round) % ranks;
      const unsigned from = (rank + ranks - round) % ranks;
      const std::uint8_t code = ll ? ll_chunk_code : chunk_code;
      const PeerToPeer work{.send = sent[rank][to].data(),
                            .receive = received[rank][from].data(),
                            .send_bytes = sizes[rank][to],
                            .receive_bytes = sizes[from][rank],
                            .send_rank = static_cast<std::int32_t>(to),
                            .receive_rank = static_cast<std::int32_t>(from),
                            .channels = static_cast<std::uint8_t>(channels),
                            .base = static_cast<std::uint8_t>(round % channels),
                            .send_channels = static_cast<std::uint8_t>(parts),
                            .receive_channels = static_cast<std::uint8_t>(parts),
                            .send_chunk = code,
                            .receive_chunk = code,
                            .send_ll = ll,
                            .receive_ll = ll};
      std::memcpy(memory.data() + round * sizeof(work), &work, sizeof(work));
    }
    // Each block's works in two batches, of which the second extends the first.
    std::vector<Batch> batches;
    for (unsigned block = 0; block < channels; ++block) {
      batches.push_back({.next_jump = channels, .next_extends = 1, .bits = 1});
    }
    std::uint64_t others = 0;  // a bit for each work behind the first
    for (unsigned round = 1; round < ranks; ++round) others |= std::uint64_t{1} << (round - 1);
    for (unsigned block = 0; block < channels; ++block) {
      batches.push_back({.offset = sizeof(PeerToPeer), .bits = others});
    }
    return batches;
  });
  for (const BlockResult& result : results) {
    CAPTURE(result.reason);
    REQUIRE(result.outcome == Outcome::done);
  }
  for (unsigned rank = 0; rank < ranks; ++rank) {
    for (unsigned other = 0; other < ranks; ++other) {
      const Bytes& bytes = received[rank][other];
      REQUIRE(right_bytes(bytes, other, rank) == sizes[other][rank]);
      REQUIRE(bytes.back() == guard_byte);
    }
  }
}

void check_random(WorldOptions options, bool ll) {
  std::mt19937 random(options.ranks);
  World world(options);
  for (unsigned round = 0; round < 8; ++round) {
    std::vector<std::vector<std::size_t>> sizes(options.ranks, std::vector<std::size_t>(options.ranks));
    for (auto& row : sizes) {
      for (std::size_t& size : row) size = random() % 4 == 0 ? 0 : random() % (1U << (random() % 18));
    }
    const unsigned parts = round % 2 == 0 ? options.channels : 1;
    check(world, sizes, ll, parts);
  }
}

TEST_CASE("all ranks send to all before any has received: more than the slots hold") {
  World world({.ranks = 4, .channels = 2});
  check(world, std::vector<std::vector<std::size_t>>(4, std::vector<std::size_t>(4, 300'000)), false, 2);
  check(world, std::vector<std::vector<std::size_t>>(4, std::vector<std::size_t>(4, 300'000)), true, 2);
}

TEST_CASE("all-to-all of random sizes, none included, with protocol Simple") {
  for (const unsigned ranks : {2, 3, 5}) {
    check_random({.ranks = ranks, .channels = 1}, false);
    check_random({.ranks = ranks, .channels = 4}, false);
  }
}

TEST_CASE("all-to-all with protocol LL") {
  for (const unsigned ranks : {2, 4}) check_random({.ranks = ranks, .channels = 2}, true);
}

TEST_CASE("all-to-all through proxies that choose the places of steps") {
  check_random({.ranks = 3, .channels = 2, .proxied = true}, false);
}

}  // namespace
}  // namespace paralet::cpu_device::test
