// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plans.hpp"

namespace paralet::cpu_device {
namespace {

// Elements of a buffer as addresses.
struct Addresses {
  Buffers buffers;
  std::size_t element_bytes;

  const std::byte* source(std::size_t element) const { return buffers.send + element * element_bytes; }
  std::byte* target(std::size_t element) const { return buffers.receive + element * element_bytes; }
};

constexpr std::size_t alignment_bytes = 16;  // of chunks in the last round

std::size_t even_chunk(std::size_t count, std::size_t parts, std::size_t element_bytes) {
  const std::size_t unit = alignment_bytes / element_bytes;
  return ((count + parts - 1) / parts + unit - 1) / unit * unit;
}

// Calls chunk(first element, count) for every chunk of a part.
template <typename Chunk>
void for_each_chunk(const Part& part, Chunk chunk) {
  for (std::size_t done = 0; done < part.count; done += part.chunk) {
    chunk(part.offset + done, std::min(part.chunk, part.count - done));
  }
}

}  // namespace

// Every round moves one chunk per rank twice around the ring: first it collects the sum, then it hands the sum out.
Plan ring_all_reduce(const Part& part, const Ring& ring, std::size_t element_bytes, Buffers buffers) {
  const Addresses at{buffers, element_bytes};
  const unsigned ranks = ring.size();
  Plan plan;
  const std::size_t round = ranks * part.chunk;
  for (std::size_t done = 0; done < part.count; done += round) {
    const std::size_t rest = part.count - done;
    std::size_t chunk = part.chunk;
    if (rest < round) chunk = part.last_chunk != 0 ? part.last_chunk : even_chunk(rest, ranks, element_bytes);
    // The chunk that is `behind` ranks behind this one. Late chunks of a short round are empty.
    const auto add = [&](unsigned behind, Operation operation, bool from_user, bool to_user) {
      const std::size_t start = (ring.index + ranks - behind) % ranks * chunk;
      operation.count = start < rest ? std::min(chunk, rest - start) : 0;
      const std::size_t element = part.offset + done + std::min(start, rest);
      if (from_user) operation.source = at.source(element);
      if (to_user) operation.target = at.target(element);
      plan.push_back(operation);
    };
    add(1, {.send = true}, true, false);
    for (unsigned behind = 2; behind < ranks; ++behind) add(behind, {.receive = true, .send = true}, true, false);
    add(0, {.receive = true, .send = true, .post = true}, true, true);
    for (unsigned behind = 1; behind + 1 < ranks; ++behind) {
      add(behind, {.receive = true, .send = true}, false, true);
    }
    add(ranks - 1, {.receive = true}, false, true);
  }
  return plan;
}

Plan ring_all_gather(const Part& part, const Ring& ring, std::size_t element_bytes, Buffers buffers) {
  const Addresses at{buffers, element_bytes};
  const unsigned ranks = ring.size();
  Plan plan;
  for_each_chunk(part, [&](std::size_t element, std::size_t count) {
    const auto target = [&](unsigned after) {
      return at.target(element + static_cast<std::size_t>(ring.user_ranks[after]) * part.total);
    };
    std::byte* own = target(0);
    const std::byte* source = at.source(element);
    plan.push_back({.source = source, .target = source == own ? nullptr : own, .send = true, .count = count});
    for (unsigned after = ranks - 1; after > 1; --after) {
      plan.push_back({.receive = true, .target = target(after), .send = true, .count = count});
    }
    plan.push_back({.receive = true, .target = target(1), .count = count});
  });
  return plan;
}

Plan ring_reduce_scatter(const Part& part, const Ring& ring, std::size_t element_bytes, Buffers buffers) {
  const Addresses at{buffers, element_bytes};
  const unsigned ranks = ring.size();
  Plan plan;
  for_each_chunk(part, [&](std::size_t element, std::size_t count) {
    const auto source = [&](unsigned after) {
      return at.source(element + static_cast<std::size_t>(ring.user_ranks[after]) * part.total);
    };
    plan.push_back({.source = source(ranks - 1), .send = true, .count = count});
    for (unsigned after = ranks - 2; after > 0; --after) {
      plan.push_back({.source = source(after), .receive = true, .send = true, .count = count});
    }
    plan.push_back({.source = source(0), .receive = true, .target = at.target(element), .count = count, .post = true});
  });
  return plan;
}

Plan ring_broadcast(const Part& part, const Ring& ring, int root, std::size_t element_bytes, Buffers buffers) {
  const Addresses at{buffers, element_bytes};
  const bool is_root = ring.user_ranks[0] == root;
  const bool is_last = ring.user_ranks[1] == root;
  Plan plan;
  for_each_chunk(part, [&](std::size_t element, std::size_t count) {
    std::byte* target = at.target(element);
    if (is_root) {
      const bool in_place = buffers.send == buffers.receive;
      plan.push_back(
          {.source = at.source(element), .target = in_place ? nullptr : target, .send = true, .count = count});
    } else {
      plan.push_back({.receive = true, .target = target, .send = !is_last, .count = count});
    }
  });
  return plan;
}

Plan ring_shares(std::span<const Share> shares, unsigned ranks) {
  std::vector<Share> left(shares.begin(), shares.end());
  Plan plan;
  for (bool some = true; some;) {
    some = false;
    for (Share& share : left) {
      const std::size_t count = std::min(share.bytes, share.chunk_bytes);
      if (count == 0) continue;
      some = true;
      Operation operation{.target = share.buffers.receive + share.done, .send = true, .count = count};
      if (share.depth != 0) {
        operation.receive = true;
        operation.send = share.depth + 1 < ranks;
      } else {
        operation.source = share.buffers.send + share.done;
        if (share.buffers.send == share.buffers.receive) operation.target = nullptr;
      }
      plan.push_back(operation);
      share.done += count;
      share.bytes -= count;
    }
  }
  return plan;
}

Plan ring_reduce(const Part& part, const Ring& ring, int root, std::size_t element_bytes, Buffers buffers) {
  const Addresses at{buffers, element_bytes};
  const bool is_root = ring.user_ranks[0] == root;
  const bool is_first = ring.user_ranks.back() == root;
  Plan plan;
  for_each_chunk(part, [&](std::size_t element, std::size_t count) {
    if (is_root) {
      plan.push_back(
          {.source = at.source(element), .receive = true, .target = at.target(element), .count = count, .post = true});
    } else {
      plan.push_back({.source = at.source(element), .receive = !is_first, .send = true, .count = count});
    }
  });
  return plan;
}

}  // namespace paralet::cpu_device
