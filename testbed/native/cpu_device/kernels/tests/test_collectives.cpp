// SPDX-License-Identifier: Apache-2.0
// Every collective among some ranks in one process, against its definition.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "world.hpp"

namespace paralet::cpu_device::test {
namespace {

constexpr std::uint32_t guard = 0xfeedface;

using Values = std::vector<std::uint32_t>;

Function function(Collective collective, Algorithm algorithm, Protocol protocol) {
  const bool reduces = collective == Collective::all_reduce || collective == Collective::reduce ||
                       collective == Collective::reduce_scatter;
  return {.known = true,
          .collective = collective,
          .reduction = reduces ? Reduction::sum : Reduction::none,
          .element = reduces ? Element::u32 : Element::none,
          .algorithm = algorithm,
          .protocol = protocol,
          .name = "a_function"};
}

// One rank's buffers, each with a guard behind it.
struct Data {
  Values send;
  Values receive;
  bool in_place = false;
  std::size_t in_place_offset = 0;  // of the send buffer in the receive buffer

  const std::uint32_t* source() const { return in_place ? receive.data() + in_place_offset : send.data(); }
};

std::uint32_t value(unsigned rank, std::size_t i) {
  return static_cast<std::uint32_t>((i + 1) * 2654435761U + rank * 97);
}

struct Case {
  Collective collective;
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  std::size_t count = 0;  // of all-gather and reduce-scatter, per rank
  unsigned root = 0;
  bool in_place = false;
};

std::size_t send_count(const Case& what, unsigned ranks) {
  return what.collective == Collective::reduce_scatter ? what.count * ranks : what.count;
}
std::size_t receive_count(const Case& what, unsigned ranks) {
  return what.collective == Collective::all_gather ? what.count * ranks : what.count;
}

// What element i of a rank's receive buffer is in the end; guard where it is not written.
std::uint32_t expected(const Case& what, unsigned ranks, unsigned rank, std::size_t i) {
  std::uint32_t sum = 0;
  switch (what.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      for (unsigned other = 0; other < ranks; ++other) sum += value(other, i);
      return sum;
    case Collective::reduce_scatter:
      for (unsigned other = 0; other < ranks; ++other) sum += value(other, rank * what.count + i);
      return sum;
    case Collective::all_gather:
      return value(static_cast<unsigned>(i / what.count), i % what.count);
    default:
      return value(what.root, i);
  }
}

// `count` elements of `element_bytes`, over the channels of the world; an uneven split.
Collective96 work_of(const Case& what, unsigned channels, const Data& data) {
  // Functions without a reduction count bytes.
  const std::size_t unit =
      what.collective == Collective::all_gather || what.collective == Collective::broadcast ? 4 : 1;
  const std::size_t count = what.count * unit;
  Collective96 work{};
  work.channel_hi = channels - 1;
  work.root = what.root;
  work.send = data.source();
  work.receive = const_cast<std::uint32_t*>(data.receive.data());
  const std::size_t align = 16;
  work.count_lo = channels == 1 ? count : count / channels / align * align;
  work.count_mid = channels > 2 ? work.count_lo : 0;
  work.count_hi = channels == 1 ? 0 : count - work.count_lo - (channels - 2) * work.count_mid;
  // A ring's chunk is 4 steps, a tree's, a broadcast's and a reduce's is 1.
  const bool short_chunk = what.algorithm == Algorithm::tree || what.collective == Collective::broadcast ||
                           what.collective == Collective::reduce;
  work.grains_lo = what.protocol == Protocol::ll ? 512 / 16 : (short_chunk ? 1 : 4) * 4096 / 512;
  work.grains_mid = work.grains_hi = work.grains_lo;
  return work;
}

void check(World& world, const Case& what) {
  const unsigned ranks = world.options().ranks;
  const unsigned channels = world.options().channels;
  std::vector<Data> data(ranks);
  for (unsigned rank = 0; rank < ranks; ++rank) {
    Data& mine = data[rank];
    mine.in_place = what.in_place;
    mine.receive.assign(receive_count(what, ranks) + 1, guard);
    mine.send.assign(send_count(what, ranks) + 1, guard);
    std::uint32_t* source = mine.send.data();
    if (what.in_place) {
      if (what.collective == Collective::reduce_scatter) {
        mine.receive.assign(send_count(what, ranks) + 1, guard);
      } else if (what.collective == Collective::all_gather) {
        mine.in_place_offset = rank * what.count;
      }
      source = mine.receive.data() + mine.in_place_offset;
    }
    for (std::size_t i = 0; i < send_count(what, ranks); ++i) source[i] = value(rank, i);
  }
  const Function functions[] = {{}, function(what.collective, what.algorithm, what.protocol)};
  const auto results = world.run(functions, [&](unsigned rank, std::vector<std::byte>& memory) {
    Collective96 work = work_of(what, channels, data[rank]);
    if (what.in_place && what.collective == Collective::reduce_scatter) {
      work.receive = data[rank].receive.data() + rank * what.count;
      work.send = data[rank].receive.data();
    }
    // Work structs may wrap around the end of their ring buffer.
    const std::size_t offset = memory.size() - sizeof(work);
    std::memcpy(memory.data() + offset, &work, sizeof(work));
    return std::vector<Batch>(channels,
                              {.type = 1, .function = 1, .offset = static_cast<std::uint32_t>(offset), .bits = 1});
  });
  for (const BlockResult& result : results) {
    CAPTURE(result.reason);
    REQUIRE(result.outcome == Outcome::done);
  }
  for (unsigned rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    const Values& receive = data[rank].receive;
    const bool written = what.collective != Collective::reduce || rank == what.root;
    const std::size_t first = what.in_place && what.collective == Collective::reduce_scatter ? rank * what.count : 0;
    // One assertion for all elements: one for each would take most of the time of these tests.
    std::size_t right = 0;
    if (written) {
      while (right < receive_count(what, ranks) && receive[first + right] == expected(what, ranks, rank, right))
        ++right;
      REQUIRE(right == receive_count(what, ranks));
    } else if (!what.in_place) {
      REQUIRE(std::count(receive.begin(), receive.end(), guard) == static_cast<std::ptrdiff_t>(receive.size()));
    }
    REQUIRE(receive.back() == guard);
    REQUIRE(data[rank].send.back() == guard);
  }
}

constexpr std::size_t largest_count = 70'000;

std::size_t random_count(std::mt19937& random) {
  // Small ones often: 0, 1 and less than a line or a slice.
  const unsigned bits = std::uniform_int_distribution<unsigned>(0, 17)(random);
  return std::uniform_int_distribution<std::size_t>(0, std::min(largest_count, std::size_t{1} << bits))(random);
}

void check_many(WorldOptions options, Collective collective, Algorithm algorithm, unsigned rounds) {
  std::mt19937 random(options.ranks * 100 + options.channels);
  World world(options);
  for (unsigned round = 0; round < rounds; ++round) {
    Case what{.collective = collective, .algorithm = algorithm};
    what.protocol = !options.proxied && random() % 2 == 0 ? Protocol::ll : Protocol::simple;
    what.count = round == 0 ? 0 : random_count(random);
    what.root = static_cast<unsigned>(random() % options.ranks);
    what.in_place = random() % 2 == 0;
    CAPTURE(options.ranks);
    CAPTURE(options.channels);
    CAPTURE(what.count);
    CAPTURE(what.root);
    CAPTURE(what.in_place);
    CAPTURE(static_cast<int>(what.protocol));
    check(world, what);
  }
}

void check_worlds(Collective collective, Algorithm algorithm) {
  for (const unsigned ranks : {2, 3, 4, 7}) {
    for (const unsigned channels : {1, 2, 3})
      check_many({.ranks = ranks, .channels = channels}, collective, algorithm, 6);
  }
}

TEST_CASE("ring all-reduce of random sizes, both protocols, in and out of place") {
  check_worlds(Collective::all_reduce, Algorithm::ring);
}
TEST_CASE("tree all-reduce") { check_worlds(Collective::all_reduce, Algorithm::tree); }
TEST_CASE("all-gather") { check_worlds(Collective::all_gather, Algorithm::ring); }
TEST_CASE("reduce-scatter") { check_worlds(Collective::reduce_scatter, Algorithm::ring); }
TEST_CASE("broadcast") { check_worlds(Collective::broadcast, Algorithm::ring); }
TEST_CASE("reduce") { check_worlds(Collective::reduce, Algorithm::ring); }

TEST_CASE("a proxy chooses the places of steps") {
  check_many({.ranks = 3, .proxied = true}, Collective::broadcast, Algorithm::ring, 10);
  check_many({.ranks = 5, .proxied = true}, Collective::all_reduce, Algorithm::tree, 10);
}

TEST_CASE("the step of a connection goes on from launch to launch, past the clean-up of LL flags") {
  World world({.ranks = 2});
  for (unsigned rank = 0; rank < 2; ++rank) {
    Peer& peer = *world.communicator(rank).channels[0].peers[1 - rank];
    for (Info* info : {&peer.send[0], &peer.receive[0]}) {
      info->step = 0x7ffffff0;
      *info->head = *info->tail = info->step;
    }
  }
  for (unsigned i = 0; i < 10; ++i) {
    check(world, {.collective = Collective::broadcast, .protocol = Protocol::ll, .count = 300, .root = i % 2});
  }
}

TEST_CASE("the abort flag ends a block that waits") {
  World world({.ranks = 2});
  std::vector<std::uint32_t> buffer(10);
  const Function functions[] = {function(Collective::all_reduce, Algorithm::ring, Protocol::simple)};
  world.abort(0);
  world.abort(1);
  const auto results = world.run(functions, [&](unsigned rank, std::vector<std::byte>& memory) {
    Data data{.receive = {}, .in_place = false};
    Collective96 work = work_of({.collective = Collective::all_reduce, .count = rank == 0 ? 10U : 0U}, 1, data);
    work.send = work.receive = buffer.data();
    std::memcpy(memory.data(), &work, sizeof(work));
    return std::vector<Batch>{{.type = 1, .bits = 1}};
  });
  CHECK(results[0].outcome == Outcome::aborted);  // rank 1 does nothing, so rank 0 waits
  CHECK(results[1].outcome == Outcome::done);
}

TEST_CASE("work that cannot run is refused in one sentence") {
  World world({.ranks = 2});
  const auto reason = [&](const Function& wanted, unsigned registered, std::uint32_t type) {
    const Function functions[] = {wanted};
    const auto results = world.run(functions, [&](unsigned, std::vector<std::byte>& memory) {
      Data data;
      Collective96 work = work_of({.collective = Collective::all_reduce, .count = 0}, 1, data);
      work.registered = registered;
      std::memcpy(memory.data(), &work, sizeof(work));
      return std::vector<Batch>{{.type = type, .bits = 1}};
    });
    CHECK(results[0].outcome == Outcome::not_supported);
    CHECK(results[0].reason.back() == '.');
    return results[0].reason;
  };
  const Function ring = function(Collective::all_reduce, Algorithm::ring, Protocol::simple);
  CHECK(reason({}, 0, 1).find("device function 0") != std::string::npos);
  CHECK(reason(ring, 1, 1).find("NCCL_LOCAL_REGISTER=0") != std::string::npos);
  CHECK(reason(ring, 0, 3).find("broadcasts of a group") != std::string::npos);
  Function other = ring;
  other.protocol = Protocol::ll128;
  CHECK(reason(other, 0, 1).find("NCCL_PROTO=LL,Simple") != std::string::npos);
  other = ring;
  other.algorithm = Algorithm::nvls;
  CHECK(reason(other, 0, 1).find("NCCL_ALGO=Ring,Tree") != std::string::npos);
  other = ring;
  other.element = Element::f8e4m3;
  CHECK(reason(other, 0, 1).find("elements") != std::string::npos);
}

TEST_CASE("the kernel for a single rank is refused, since its arguments are others") {
  const Library library{.layout = layout()};
  const std::atomic<bool> cancelled{false};
  const Launch launch{library, "oneRankReduce<FuncPreMulSum<float>>", {}, 1, cancelled};
  CHECK(run_block(launch, 0).outcome == Outcome::not_supported);
}

}  // namespace
}  // namespace paralet::cpu_device::test
