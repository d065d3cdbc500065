// SPDX-License-Identifier: Apache-2.0
// Runs the programs of all ranks in memory, in random orders that the network and the ranks' speeds could produce. A
// message is read from the sender's memory when it is delivered, as an RDMA WRITE may be, so a program that changes
// data before it has left gives wrong results.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "collectives/schedule.hpp"

namespace paralet::collectives {
namespace {

using Element = std::int64_t;
constexpr std::uint64_t kElement = sizeof(Element);

class Network {
 public:
  Network(std::vector<Program> programs, unsigned seed) : programs_(std::move(programs)), random_(seed) {
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      done_.emplace_back(programs_[rank].size(), false);
      for (std::size_t i = 0; i < programs_[rank].size(); ++i) {
        const Action& action = programs_[rank][i];
        if (action.kind == Action::Kind::kCopy) continue;
        const int me = static_cast<int>(rank);
        REQUIRE(action.peer != me);
        if (action.kind == Action::Kind::kSend) {
          streams_[{me, action.peer}].sends.push_back(i);
        } else {
          streams_[{action.peer, me}].receives.push_back(i);
        }
      }
    }
  }

  /// Runs until nothing is left. Fails when nothing can go on.
  void run() {
    for (const auto& [ends, stream] : streams_) {
      REQUIRE(stream.sends.size() == stream.receives.size());
      messages += stream.sends.size();
    }
    while (!finished()) REQUIRE(step());
  }

  std::size_t messages = 0;
  std::uint64_t largest_reduction = 0;

 private:
  struct Stream {
    std::vector<std::size_t> sends;
    std::vector<std::size_t> receives;
    std::size_t begun_sends = 0;
    std::size_t begun_receives = 0;
    std::map<std::size_t, std::vector<std::byte>> arrived;  ///< not yet reduced, by number
    std::vector<bool> delivered = {};
    std::size_t reduced = 0;  ///< receives that are over, in their order
  };

  [[nodiscard]] bool finished() const {
    return std::ranges::all_of(done_, [](const auto& all) { return std::ranges::all_of(all, std::identity()); });
  }
  [[nodiscard]] const Action& at(int rank, std::size_t i) const { return programs_[static_cast<std::size_t>(rank)][i]; }
  [[nodiscard]] bool ready(int rank, std::size_t i) const {
    return std::ranges::all_of(at(rank, i).after, [&](std::uint32_t before) {
      if (before == Action::kNone) return true;
      REQUIRE(before < i);
      return static_cast<bool>(done_[static_cast<std::size_t>(rank)][before]);
    });
  }
  void finish(int rank, std::size_t i) { done_[static_cast<std::size_t>(rank)][i] = true; }

  /// One random thing that can happen.
  bool step() {
    std::vector<std::function<void()>> choices;
    for (auto& entry : streams_) {  // Clang 14 captures no structured bindings
      Stream& stream = entry.second;
      const int from = entry.first.first;
      const int to = entry.first.second;
      if (stream.begun_sends < stream.sends.size() && ready(from, stream.sends[stream.begun_sends])) {
        choices.emplace_back([&stream] { ++stream.begun_sends; });
      }
      if (stream.begun_receives < stream.receives.size()) {
        const std::size_t next = stream.receives[stream.begun_receives];
        // What is reduced is received elsewhere, so it may come at any time.
        if (at(to, next).kind == Action::Kind::kReduce || ready(to, next)) {
          choices.emplace_back([&stream] { ++stream.begun_receives; });
        }
      }
      stream.delivered.resize(stream.sends.size());
      for (std::size_t k = 0; k < std::min(stream.begun_sends, stream.begun_receives); ++k) {
        if (!stream.delivered[k]) choices.emplace_back([this, &stream, from, to, k] { deliver(stream, from, to, k); });
      }
      if (const auto oldest = stream.arrived.find(stream.reduced);
          oldest != stream.arrived.end() && ready(to, stream.receives[stream.reduced])) {
        choices.emplace_back([this, &stream, to] { reduce(stream, to); });
      }
    }
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      for (std::size_t i = 0; i < programs_[rank].size(); ++i) {
        const Action& action = programs_[rank][i];
        const int me = static_cast<int>(rank);
        if (action.kind != Action::Kind::kCopy || done_[rank][i] || !ready(me, i)) continue;
        choices.emplace_back([this, &action, me, i] {
          if (action.bytes > 0) std::memmove(action.data, action.local, action.bytes);
          finish(me, i);
        });
      }
    }
    if (choices.empty()) return false;
    choices[std::uniform_int_distribution<std::size_t>(0, choices.size() - 1)(random_)]();
    return true;
  }

  void deliver(Stream& stream, int from, int to, std::size_t k) {
    const Action& send = at(from, stream.sends[k]);
    const Action& receive = at(to, stream.receives[k]);
    REQUIRE(send.bytes == receive.bytes);
    stream.delivered[k] = true;
    finish(from, stream.sends[k]);
    if (receive.kind == Action::Kind::kReceive && send.bytes > 0) std::memcpy(receive.data, send.data, send.bytes);
    stream.arrived[k].assign(send.data, send.data + send.bytes);
    skip(stream, to);
  }
  /// Receives without a reduction are over when they and all before have come.
  void skip(Stream& stream, int to) {
    while (stream.arrived.contains(stream.reduced) &&
           at(to, stream.receives[stream.reduced]).kind == Action::Kind::kReceive) {
      finish(to, stream.receives[stream.reduced]);
      stream.arrived.erase(stream.reduced++);
    }
  }
  void reduce(Stream& stream, int to) {
    const Action& action = at(to, stream.receives[stream.reduced]);
    if (action.kind != Action::Kind::kReduce) return;
    largest_reduction = std::max(largest_reduction, action.bytes);
    const auto* received = reinterpret_cast<const Element*>(stream.arrived[stream.reduced].data());
    const auto* local = reinterpret_cast<const Element*>(action.local);
    auto* out = reinterpret_cast<Element*>(action.data);
    for (std::uint64_t i = 0; i < action.bytes / kElement; ++i) {
      out[i] = received[i] + local[i] + (action.last ? kLast : 0);
    }
    finish(to, stream.receives[stream.reduced]);
    stream.arrived.erase(stream.reduced++);
    skip(stream, to);
  }

 public:
  /// Added where a result is final: it must be there exactly once.
  static constexpr Element kLast = 1'000'000'000;

 private:
  std::vector<Program> programs_;
  std::mt19937 random_;
  std::vector<std::vector<bool>> done_;
  std::map<std::pair<int, int>, Stream> streams_;
};

/// Small, so that few elements make many pieces.
constexpr Limits kLimits{.short_bytes = 4 * kElement,
                         .medium_bytes = 16 * kElement,
                         .tree_bytes = 8 * kElement,
                         .least_chunk = 2 * kElement,
                         .most_chunk = 5 * kElement,
                         .direct_ranks = 6};
constexpr std::uint64_t kTemporary = 4 * 5 * kElement;

using Values = std::vector<Element>;
std::byte* bytes_of(Values& values) { return reinterpret_cast<std::byte*>(values.data()); }

/// Memory of all ranks: inputs with values that differ, and outputs.
struct Ranks {
  Ranks(int size, std::size_t in, std::size_t out) {
    for (int rank = 0; rank < size; ++rank) {
      inputs.emplace_back(in);
      std::iota(inputs.back().begin(), inputs.back().end(), 1000 * (rank + 1));
      outputs.emplace_back(out, -1);
      temporaries.emplace_back(kTemporary / kElement, -2);
    }
  }
  [[nodiscard]] Element sum(std::size_t i) const {
    Element total = inputs.size() > 1 ? Network::kLast : 0;
    for (const Values& input : inputs) total += input[i];
    return total;
  }
  Temporary temporary(int rank) { return {bytes_of(temporaries[static_cast<std::size_t>(rank)]), kTemporary}; }
  std::vector<Values> inputs;
  std::vector<Values> outputs;
  std::vector<Values> temporaries;
};

/// Calls `test` with group sizes, counts and seeds.
void for_each_case(const std::function<void(int size, std::size_t count, unsigned seed)>& test) {
  for (const int size : {1, 2, 3, 4, 5, 7, 8}) {
    for (const std::size_t count : {0U, 1U, 3U, 5U, 11U, 16U, 17U, 40U}) {
      for (unsigned seed = 0; seed < 3; ++seed) test(size, count, seed);
    }
  }
}

std::vector<Program> programs_of(int size, const std::function<Program(int)>& make) {
  std::vector<Program> out;
  out.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) out.push_back(make(rank));
  return out;
}

Blocks blocks_of(Values& values, const std::vector<std::size_t>& counts) {
  Blocks out;
  std::byte* next = bytes_of(values);
  for (const std::size_t count : counts) {
    out.push_back({next, count * kElement});
    next += count * kElement;
  }
  return out;
}

TEST_CASE("all_reduce in every order of events, in place and not") {
  for (const bool in_place : {false, true}) {
    for_each_case([&](int size, std::size_t count, unsigned seed) {
      CAPTURE(size);
      CAPTURE(count);
      CAPTURE(seed);
      CAPTURE(in_place);
      Ranks ranks(size, count, count);
      const Ranks before = ranks;
      Network network(
          programs_of(size,
                      [&](int rank) {
                        const auto r = static_cast<std::size_t>(rank);
                        std::byte* const source = bytes_of(ranks.inputs[r]);
                        std::byte* const target = in_place ? source : bytes_of(ranks.outputs[r]);
                        return all_reduce({rank, size}, source, target, count * kElement, kElement, kLimits);
                      }),
          seed);
      network.run();
      CHECK(network.largest_reduction <= kLimits.most_chunk);
      for (const Values& result : in_place ? ranks.inputs : ranks.outputs) {
        for (std::size_t i = 0; i < count; ++i) REQUIRE(result[i] == before.sum(i));
      }
      if (!in_place) CHECK(ranks.inputs == before.inputs);
    });
  }
}

TEST_CASE("reduce to every root") {
  for_each_case([&](int size, std::size_t count, unsigned seed) {
    const int root = static_cast<int>(seed) % size;
    CAPTURE(size);
    CAPTURE(count);
    CAPTURE(root);
    Ranks ranks(size, count, count);
    const Ranks before = ranks;
    Network network(programs_of(size,
                                [&](int rank) {
                                  const auto r = static_cast<std::size_t>(rank);
                                  std::byte* const target = rank == root ? bytes_of(ranks.outputs[r]) : nullptr;
                                  return reduce({rank, size}, root, bytes_of(ranks.inputs[r]), target, count * kElement,
                                                kElement, ranks.temporary(rank), kLimits);
                                }),
                    seed);
    network.run();
    for (std::size_t i = 0; i < count; ++i) REQUIRE(ranks.outputs[static_cast<std::size_t>(root)][i] == before.sum(i));
    CHECK(ranks.inputs == before.inputs);
  });
}

TEST_CASE("reduce_scatter of blocks of different sizes") {
  for_each_case([&](int size, std::size_t count, unsigned seed) {
    CAPTURE(size);
    CAPTURE(count);
    CAPTURE(seed);
    std::vector<std::size_t> counts;
    counts.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) counts.push_back((count + static_cast<std::size_t>(rank) * seed) % 41);
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    Ranks ranks(size, total, 64);
    const Ranks before = ranks;
    Network network(programs_of(size,
                                [&](int rank) {
                                  const auto r = static_cast<std::size_t>(rank);
                                  return reduce_scatter({rank, size}, blocks_of(ranks.inputs[r], counts),
                                                        bytes_of(ranks.outputs[r]), kElement, ranks.temporary(rank),
                                                        kLimits);
                                }),
                    seed);
    network.run();
    std::size_t first = 0;
    for (std::size_t r = 0; r < counts.size(); first += counts[r++]) {
      for (std::size_t i = 0; i < counts[r]; ++i) REQUIRE(ranks.outputs[r][i] == before.sum(first + i));
      REQUIRE(ranks.outputs[r][counts[r]] == -1);
    }
    CHECK(ranks.inputs == before.inputs);
  });
}

TEST_CASE("all_gather, gather and scatter move every block to its place") {
  for_each_case([&](int size, std::size_t count, unsigned seed) {
    const int root = static_cast<int>(seed) % size;
    CAPTURE(size);
    CAPTURE(count);
    CAPTURE(seed);
    std::vector<std::size_t> counts;
    counts.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) counts.push_back((count + static_cast<std::size_t>(rank) * seed) % 41);
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    Ranks ranks(size, 64, total);
    Values whole;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      whole.insert(whole.end(), ranks.inputs[r].begin(),
                   ranks.inputs[r].begin() + static_cast<std::ptrdiff_t>(counts[r]));
    }
    Network gathering(
        programs_of(
            size,
            [&](int rank) {
              const auto r = static_cast<std::size_t>(rank);
              return all_gather({rank, size}, bytes_of(ranks.inputs[r]), blocks_of(ranks.outputs[r], counts), kLimits);
            }),
        seed);
    gathering.run();
    for (const Values& result : ranks.outputs) REQUIRE(result == whole);

    Ranks others(size, 64, total);
    Values& at_root = others.outputs[static_cast<std::size_t>(root)];
    Network to_root(programs_of(size,
                                [&](int rank) {
                                  const auto r = static_cast<std::size_t>(rank);
                                  return gather({rank, size}, root,
                                                Block{bytes_of(others.inputs[r]), counts[r] * kElement},
                                                rank == root ? blocks_of(at_root, counts) : Blocks{});
                                }),
                    seed);
    to_root.run();
    REQUIRE(at_root == whole);

    Network from_root(programs_of(size,
                                  [&](int rank) {
                                    const auto r = static_cast<std::size_t>(rank);
                                    std::ranges::fill(others.inputs[r], -3);
                                    return scatter({rank, size}, root,
                                                   rank == root ? blocks_of(at_root, counts) : Blocks{},
                                                   Block{bytes_of(others.inputs[r]), counts[r] * kElement});
                                  }),
                      seed);
    from_root.run();
    for (std::size_t r = 0; r < counts.size(); ++r) {
      for (std::size_t i = 0; i < counts[r]; ++i) REQUIRE(others.inputs[r][i] == ranks.inputs[r][i]);
      REQUIRE(others.inputs[r][counts[r]] == -3);
    }
  });
}

TEST_CASE("broadcast from every root") {
  for_each_case([&](int size, std::size_t count, unsigned seed) {
    const int root = static_cast<int>(seed + 1) % size;
    CAPTURE(size);
    CAPTURE(count);
    CAPTURE(root);
    Ranks ranks(size, count, 0);
    const Values wanted = ranks.inputs[static_cast<std::size_t>(root)];
    Network network(programs_of(size,
                                [&](int rank) {
                                  return broadcast({rank, size}, root,
                                                   bytes_of(ranks.inputs[static_cast<std::size_t>(rank)]),
                                                   count * kElement, kLimits);
                                }),
                    seed);
    network.run();
    for (const Values& result : ranks.inputs) REQUIRE(result == wanted);
  });
}

TEST_CASE("all_to_all with sizes of each pair of ranks") {
  for_each_case([&](int size, std::size_t count, unsigned seed) {
    CAPTURE(size);
    CAPTURE(count);
    CAPTURE(seed);
    const auto items = [&](int from, int to) { return (count + static_cast<std::size_t>(from * 3 + to) * seed) % 7; };
    Ranks ranks(size, 64, 64);
    const auto blocks = [&](Values& values, int rank, bool sends) {
      std::vector<std::size_t> counts;
      counts.reserve(static_cast<std::size_t>(size));
      for (int other = 0; other < size; ++other) counts.push_back(sends ? items(rank, other) : items(other, rank));
      return blocks_of(values, counts);
    };
    Network network(programs_of(size,
                                [&](int rank) {
                                  const auto r = static_cast<std::size_t>(rank);
                                  return all_to_all({rank, size}, blocks(ranks.inputs[r], rank, true),
                                                    blocks(ranks.outputs[r], rank, false));
                                }),
                    seed);
    network.run();
    for (int to = 0; to < size; ++to) {
      std::size_t place = 0;
      for (int from = 0; from < size; ++from) {
        std::size_t first = 0;
        for (int before = 0; before < to; ++before) first += items(from, before);
        for (std::size_t i = 0; i < items(from, to); ++i) {
          REQUIRE(ranks.outputs[static_cast<std::size_t>(to)][place++] ==
                  ranks.inputs[static_cast<std::size_t>(from)][first + i]);
        }
      }
    }
  });
}

TEST_CASE("a barrier has ceil(log2(n)) messages per rank") {
  for (const auto& expected : std::map<int, std::size_t>{{1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}}) {
    const int size = expected.first;
    CAPTURE(size);
    Network network(programs_of(size, [size](int rank) { return barrier({rank, size}); }), 1);
    network.run();
    CHECK(network.messages == expected.second * static_cast<std::size_t>(size));
  }
}

TEST_CASE("a long all_reduce sends 2 (n - 1) / n of its bytes per rank, a short one takes log2(n) messages") {
  for (const int size : {2, 3, 4, 8}) {
    CAPTURE(size);
    const std::uint64_t bytes = 840 * kElement;
    Values values(840);
    for (int rank = 0; rank < size; ++rank) {
      std::uint64_t sent = 0;
      for (const Action& action :
           all_reduce({rank, size}, bytes_of(values), bytes_of(values), bytes, kElement, kLimits)) {
        if (action.kind == Action::Kind::kSend) sent += action.bytes;
      }
      CHECK(sent == 2 * bytes * static_cast<std::uint64_t>(size - 1) / static_cast<std::uint64_t>(size));
    }
  }
  Values values(4);
  const Program program = all_reduce({3, 8}, bytes_of(values), bytes_of(values), 4 * kElement, kElement, kLimits);
  CHECK(std::ranges::count(program, Action::Kind::kSend, &Action::kind) == 3);
}

}  // namespace
}  // namespace paralet::collectives
