// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace paralet::collectives {
namespace {

constexpr std::uint32_t kNone = Action::kNone;
constexpr std::uint64_t kPieces = 4;  // of a block, so that its reduction overlaps its transfer

/// A range of a buffer, in bytes.
struct Range {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  [[nodiscard]] std::uint64_t bytes() const { return to - from; }
};

class Writer {
 public:
  explicit Writer(Place place) : place_(place) {}

  /// Adds an action and returns its index.
  std::uint32_t add(const Action& action) {
    program_.push_back(action);
    return static_cast<std::uint32_t>(program_.size() - 1);
  }
  std::uint32_t send(int peer, std::byte* data, std::uint64_t bytes, std::uint32_t after = kNone) {
    return add({.kind = Action::Kind::kSend, .peer = peer, .data = data, .bytes = bytes, .after = {after, kNone}});
  }
  std::uint32_t receive(int peer, std::byte* data, std::uint64_t bytes, std::uint32_t after = kNone) {
    return add({.kind = Action::Kind::kReceive, .peer = peer, .data = data, .bytes = bytes, .after = {after, kNone}});
  }
  std::uint32_t reduce(int peer, std::byte* data, const std::byte* local, std::uint64_t bytes, bool last,
                       std::array<std::uint32_t, 2> after = {kNone, kNone}) {
    return add({.kind = Action::Kind::kReduce,
                .received_first = peer < place_.rank,
                .last = last,
                .peer = peer,
                .data = data,
                .local = local,
                .bytes = bytes,
                .after = after});
  }
  /// An action that does nothing, but is done only when both are.
  std::uint32_t join(std::uint32_t one, std::uint32_t two) {
    return add({.kind = Action::Kind::kCopy, .after = {one, two}});
  }
  void copy(std::byte* data, const std::byte* local, std::uint64_t bytes) {
    if (data == local || bytes == 0) return;
    add({.kind = Action::Kind::kCopy, .data = data, .local = local, .bytes = bytes});
  }
  Program finish() { return std::move(program_); }

 private:
  Place place_;
  Program program_;
};

/// Part `index` of `parts` nearly equal parts of `bytes`, at boundaries of elements.
Range part(std::uint64_t bytes, std::uint64_t element, std::uint64_t index, std::uint64_t parts) {
  const std::uint64_t count = bytes / element;
  const auto boundary = [&](std::uint64_t i) { return (count / parts * i + std::min(i, count % parts)) * element; };
  return {boundary(index), boundary(index + 1)};
}

/// The size of the pieces of a block: whole elements.
std::uint64_t chunk_of(std::uint64_t block, std::uint64_t element, const Limits& limits) {
  const std::uint64_t wanted = std::clamp(block / kPieces, limits.least_chunk, limits.most_chunk);
  return std::max(element, wanted / element * element);
}

std::uint64_t pieces(std::uint64_t bytes, std::uint64_t chunk) { return (bytes + chunk - 1) / chunk; }

Range piece(Range range, std::uint64_t chunk, std::uint64_t index) {
  return {range.from + index * chunk, std::min(range.to, range.from + (index + 1) * chunk)};
}

int wrap(int rank, int size) { return ((rank % size) + size) % size; }

// -- all_reduce --------------------------------------------------------------------------------------------------

/// Ranks beyond the largest power of two give their data to a rank within it, and get the result from it.
struct Fold {
  explicit Fold(Place place)
      : core(static_cast<int>(std::bit_floor(static_cast<unsigned>(place.size)))), extra(place.size - core) {}
  int core;   ///< ranks that take part
  int extra;  ///< ranks that do not
};

/// What the core ranks hold: the source until something was reduced, then the target.
struct Partial {
  std::byte* data = nullptr;
  std::uint32_t after = kNone;  ///< the action that wrote it
};

Program all_reduce_doubling(Place place, std::byte* source, std::byte* target, std::uint64_t bytes) {
  Writer out(place);
  const Fold fold(place);
  const int rank = place.rank;
  if (rank >= fold.core) {
    out.send(rank - fold.core, source, bytes);
    out.receive(rank - fold.core, target, bytes);
    return out.finish();
  }
  Partial partial{source};
  if (rank < fold.extra) partial = {target, out.reduce(rank + fold.core, target, source, bytes, false)};
  for (int mask = 1; mask < fold.core; mask *= 2) {
    const int peer = rank ^ mask;
    const std::uint32_t sent = out.send(peer, partial.data, bytes, partial.after);
    // The sent data must have left before the sum replaces it.
    partial = {target, out.reduce(peer, target, partial.data, bytes, mask * 2 == fold.core, {partial.after, sent})};
  }
  if (rank < fold.extra) out.send(rank + fold.core, target, bytes, partial.after);
  return out.finish();
}

Program all_reduce_halving(Place place, std::byte* source, std::byte* target, std::uint64_t bytes,
                           std::uint64_t element, const Limits& limits) {
  Writer out(place);
  const Fold fold(place);
  const int rank = place.rank;
  const std::uint64_t chunk = std::max(element, limits.most_chunk / element * element);
  const Range all{0, bytes};
  // A range is exchanged in pieces of which each fits into the memory for reductions. Returns the last action.
  const auto send = [&](int peer, std::byte* data, Range range, std::uint32_t after) {
    for (std::uint64_t i = 0; i < pieces(range.bytes(), chunk); ++i) {
      const Range p = piece(range, chunk, i);
      out.send(peer, data + p.from, p.bytes(), after);
    }
  };
  const auto receive = [&](int peer, Range range) {
    std::uint32_t index = kNone;
    for (std::uint64_t i = 0; i < pieces(range.bytes(), chunk); ++i) {
      const Range p = piece(range, chunk, i);
      index = out.receive(peer, target + p.from, p.bytes());
    }
    return index;
  };
  const auto reduce = [&](int peer, const Partial& partial, Range range, bool last) {
    std::uint32_t index = partial.after;
    for (std::uint64_t i = 0; i < pieces(range.bytes(), chunk); ++i) {
      const Range p = piece(range, chunk, i);
      index = out.reduce(peer, target + p.from, partial.data + p.from, p.bytes(), last, {index, kNone});
    }
    return Partial{target, index};
  };

  if (rank >= fold.core) {
    send(rank - fold.core, source, all, kNone);
    receive(rank - fold.core, all);
    return out.finish();
  }
  Partial partial{source};
  if (rank < fold.extra) partial = reduce(rank + fold.core, partial, all, false);
  std::vector<std::pair<int, Range>> rounds;  // the peer, and what the two had in common
  Range kept = all;
  for (int mask = fold.core / 2; mask > 0; mask /= 2) {
    const int peer = rank ^ mask;
    rounds.emplace_back(peer, kept);
    const std::uint64_t middle = kept.from + part(kept.bytes(), element, 0, 2).to;
    Range given{middle, kept.to};
    Range next{kept.from, middle};
    if ((rank & mask) != 0) std::swap(given, next);
    send(peer, partial.data, given, partial.after);
    partial = reduce(peer, partial, next, mask == 1);
    kept = next;
  }
  std::uint32_t complete = partial.after;  // done when all of `kept` is final
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const auto& [peer, common] = *round;
    send(peer, target, kept, complete);
    const Range missing = kept.from == common.from ? Range{kept.to, common.to} : Range{common.from, kept.from};
    complete = out.join(complete, receive(peer, missing));
    kept = common;
  }
  if (rank < fold.extra) send(rank + fold.core, target, all, complete);
  return out.finish();
}

Program all_reduce_ring(Place place, std::byte* source, std::byte* target, std::uint64_t bytes, std::uint64_t element,
                        const Limits& limits) {
  Writer out(place);
  const auto [rank, size] = place;
  const int right = wrap(rank + 1, size);
  const int left = wrap(rank - 1, size);
  const auto parts = static_cast<std::uint64_t>(size);
  const auto block = [&, n = size](int index) {
    return part(bytes, element, static_cast<std::uint64_t>(wrap(index, n)), parts);
  };
  const std::uint64_t chunk = chunk_of(block(0).bytes(), element, limits);
  // Actions that wrote the pieces of the block that is sent next. In the first half of the steps partial sums travel,
  // in the second half results. A result overwrites a piece of `target` that was sent before: it can only arrive once
  // that piece has, because it contains it.
  std::vector<std::uint32_t> written;
  for (int step = 0; step < 2 * (size - 1); ++step) {
    const bool reduces = step < size - 1;
    const Range sent = block(rank - step);
    const Range received = block(rank - step - 1);
    std::byte* const from = step == 0 ? source : target;
    for (std::uint64_t i = 0; i < pieces(sent.bytes(), chunk); ++i) {
      const Range p = piece(sent, chunk, i);
      out.send(right, from + p.from, p.bytes(), step == 0 ? kNone : written[i]);
    }
    written.clear();
    for (std::uint64_t i = 0; i < pieces(received.bytes(), chunk); ++i) {
      const Range p = piece(received, chunk, i);
      written.push_back(reduces ? out.reduce(left, target + p.from, source + p.from, p.bytes(), step == size - 2)
                                : out.receive(left, target + p.from, p.bytes()));
    }
  }
  return out.finish();
}

// -- reduce and broadcast ----------------------------------------------------------------------------------------

Program reduce_tree(Place place, int root, std::byte* source, std::byte* target, std::uint64_t bytes) {
  Writer out(place);
  const int position = wrap(place.rank - root, place.size);
  Partial partial{source};
  int masks = 0;  // of the children
  while ((1 << masks) < place.size && (position & (1 << masks)) == 0) ++masks;
  for (int i = 0; i < masks; ++i) {
    const int child = position + (1 << i);
    if (child >= place.size) break;
    const bool last = position == 0 && (2 << i) >= place.size;  // the root's last child
    partial = {target,
               out.reduce(wrap(child + root, place.size), target, partial.data, bytes, last, {partial.after, kNone})};
  }
  if (position != 0) {
    out.send(wrap(position - (1 << masks) + root, place.size), partial.data, bytes, partial.after);
  }
  return out.finish();
}

/// The piece that a slot of temporary memory holds is sent before the slot is used again.
class Slots {
 public:
  Slots(Temporary memory, std::uint64_t slot_bytes)
      : memory_(memory), slot_bytes_(slot_bytes), sent_(memory.bytes / slot_bytes, kNone) {}
  /// The next slot, and the action to wait for before it is written.
  std::pair<std::byte*, std::uint32_t> next() {
    current_ = (current_ + 1) % sent_.size();
    return {memory_.data + current_ * slot_bytes_, sent_[current_]};
  }
  [[nodiscard]] std::size_t current() const { return current_; }
  void sent_by(std::size_t slot, std::uint32_t action) { sent_[slot] = action; }

 private:
  Temporary memory_;
  std::uint64_t slot_bytes_;
  std::vector<std::uint32_t> sent_;
  std::size_t current_ = 0;
};

/// Pieces travel towards the root, from the rank behind it round the ring.
Program reduce_chain(Place place, int root, std::byte* source, std::byte* target, std::uint64_t bytes,
                     std::uint64_t element, Temporary temporary, const Limits& limits) {
  Writer out(place);
  const int position = wrap(place.rank - root, place.size);
  const int towards = wrap(place.rank - 1, place.size);
  const int behind = wrap(place.rank + 1, place.size);
  const std::uint64_t chunk = chunk_of(bytes, element, limits);
  Slots slots(temporary, chunk);
  for (std::uint64_t i = 0; i < pieces(bytes, chunk); ++i) {
    const Range p = piece({0, bytes}, chunk, i);
    if (position == place.size - 1) {
      out.send(towards, source + p.from, p.bytes());
    } else if (position == 0) {
      out.reduce(behind, target + p.from, source + p.from, p.bytes(), true);
    } else {
      const auto [slot, free_after] = slots.next();
      const std::uint32_t reduced = out.reduce(behind, slot, source + p.from, p.bytes(), false, {free_after, kNone});
      slots.sent_by(slots.current(), out.send(towards, slot, p.bytes(), reduced));
    }
  }
  return out.finish();
}

Program broadcast_tree(Place place, int root, std::byte* data, std::uint64_t bytes) {
  Writer out(place);
  const int position = wrap(place.rank - root, place.size);
  int masks = 0;
  while ((1 << masks) < place.size && (position & (1 << masks)) == 0) ++masks;
  std::uint32_t received = kNone;
  if (position != 0) received = out.receive(wrap(position - (1 << masks) + root, place.size), data, bytes);
  for (int i = masks; i-- > 0;) {
    const int child = position + (1 << i);
    if (child < place.size) out.send(wrap(child + root, place.size), data, bytes, received);
  }
  return out.finish();
}

Program broadcast_chain(Place place, int root, std::byte* data, std::uint64_t bytes, const Limits& limits) {
  Writer out(place);
  const int position = wrap(place.rank - root, place.size);
  const std::uint64_t chunk = chunk_of(bytes, 1, limits);
  for (std::uint64_t i = 0; i < pieces(bytes, chunk); ++i) {
    const Range p = piece({0, bytes}, chunk, i);
    std::uint32_t received = kNone;
    if (position > 0) received = out.receive(wrap(place.rank - 1, place.size), data + p.from, p.bytes());
    if (position < place.size - 1) out.send(wrap(place.rank + 1, place.size), data + p.from, p.bytes(), received);
  }
  return out.finish();
}

// -- one block per rank ------------------------------------------------------------------------------------------

std::uint64_t largest(const Blocks& blocks) { return std::ranges::max(blocks, {}, &Block::bytes).bytes; }

const Block& block_of(const Blocks& blocks, int rank) { return blocks[static_cast<std::size_t>(rank)]; }

bool direct(Place place, const Blocks& blocks, const Limits& limits) {
  return largest(blocks) <= limits.short_bytes && static_cast<std::uint64_t>(place.size) <= limits.direct_ranks;
}

/// The other ranks, each once, beginning with the next one: so no rank is the first target of all.
template <typename Use>
void for_each_distance(Place place, Use use) {
  for (int distance = 1; distance < place.size; ++distance) {
    use(wrap(place.rank + distance, place.size), wrap(place.rank - distance, place.size));
  }
}

Program all_gather_ring(Place place, std::byte* source, const Blocks& target, const Limits& limits) {
  Writer out(place);
  const auto [rank, size] = place;
  const std::uint64_t chunk = chunk_of(largest(target), 1, limits);
  std::vector<std::uint32_t> written;
  for (int step = 0; step < size - 1; ++step) {
    const Block& sent = block_of(target, wrap(rank - step, size));
    const Block& received = block_of(target, wrap(rank - step - 1, size));
    std::byte* const from = step == 0 ? source : sent.data;
    for (std::uint64_t i = 0; i < pieces(sent.bytes, chunk); ++i) {
      const Range p = piece({0, sent.bytes}, chunk, i);
      out.send(wrap(rank + 1, size), from + p.from, p.bytes(), step == 0 ? kNone : written[i]);
    }
    written.clear();
    for (std::uint64_t i = 0; i < pieces(received.bytes, chunk); ++i) {
      const Range p = piece({0, received.bytes}, chunk, i);
      written.push_back(out.receive(wrap(rank - 1, size), received.data + p.from, p.bytes()));
    }
  }
  return out.finish();
}

/// Partial sums travel in segments, so that temporary memory holds the sums of a step until they are sent.
Program reduce_scatter_ring(Place place, const Blocks& source, std::byte* target, std::uint64_t element,
                            Temporary temporary, const Limits& limits) {
  Writer out(place);
  const auto [rank, size] = place;
  const std::uint64_t most = largest(source);
  const std::uint64_t chunk = std::min(chunk_of(most, element, limits), temporary.bytes / 2 / element * element);
  Slots slots(temporary, chunk);
  // Half of the slots: those of the step before are still being sent.
  const std::uint64_t segment = std::max<std::uint64_t>(1, temporary.bytes / chunk / 2) * chunk;
  struct Sum {
    std::byte* data;
    std::uint32_t written;
    std::size_t slot;
  };
  for (std::uint64_t start = 0; start < most; start += segment) {
    const auto within = [&](const Block& block) {
      return Range{std::min(start, block.bytes), std::min(start + segment, block.bytes)};
    };
    std::vector<Sum> sums;
    for (int step = 0; step < size - 1; ++step) {
      const Block& sent = block_of(source, wrap(rank - step - 1, size));
      const Block& received = block_of(source, wrap(rank - step - 2, size));
      for (std::uint64_t i = 0; i < pieces(within(sent).bytes(), chunk); ++i) {
        const Range p = piece(within(sent), chunk, i);
        if (step == 0) {
          out.send(wrap(rank + 1, size), sent.data + p.from, p.bytes());
        } else {
          slots.sent_by(sums[i].slot, out.send(wrap(rank + 1, size), sums[i].data, p.bytes(), sums[i].written));
        }
      }
      sums.clear();
      for (std::uint64_t i = 0; i < pieces(within(received).bytes(), chunk); ++i) {
        const Range p = piece(within(received), chunk, i);
        const bool last = step == size - 2;
        if (last) {
          out.reduce(wrap(rank - 1, size), target + p.from, received.data + p.from, p.bytes(), true);
          continue;
        }
        const auto [slot, free_after] = slots.next();
        const std::uint32_t written =
            out.reduce(wrap(rank - 1, size), slot, received.data + p.from, p.bytes(), false, {free_after, kNone});
        sums.push_back({slot, written, slots.current()});
      }
    }
  }
  return out.finish();
}

}  // namespace

Program all_reduce(Place place, std::byte* source, std::byte* target, std::uint64_t bytes, std::uint64_t element,
                   const Limits& limits) {
  if (place.size == 1) {
    Writer out(place);
    out.copy(target, source, bytes);
    return out.finish();
  }
  if (bytes == 0) return {};
  if (bytes <= limits.short_bytes) return all_reduce_doubling(place, source, target, bytes);
  // Two ranks exchange the same messages either way.
  if (bytes <= limits.medium_bytes && place.size > 2) {
    return all_reduce_halving(place, source, target, bytes, element, limits);
  }
  return all_reduce_ring(place, source, target, bytes, element, limits);
}

Program reduce(Place place, int root, std::byte* source, std::byte* target, std::uint64_t bytes, std::uint64_t element,
               Temporary temporary, const Limits& limits) {
  if (place.size == 1) {
    Writer out(place);
    out.copy(target, source, bytes);
    return out.finish();
  }
  if (bytes == 0) return {};
  if (bytes > limits.short_bytes || bytes > temporary.bytes) {
    return reduce_chain(place, root, source, target, bytes, element, temporary, limits);
  }
  return reduce_tree(place, root, source, place.rank == root ? target : temporary.data, bytes);
}

Program broadcast(Place place, int root, std::byte* data, std::uint64_t bytes, const Limits& limits) {
  if (place.size == 1 || bytes == 0) return {};
  if (bytes <= limits.tree_bytes) return broadcast_tree(place, root, data, bytes);
  return broadcast_chain(place, root, data, bytes, limits);
}

Program all_gather(Place place, std::byte* source, const Blocks& target, const Limits& limits) {
  Program program;
  if (place.size > 1) {
    if (direct(place, target, limits)) {
      Writer out(place);
      const Block& own = block_of(target, place.rank);
      for_each_distance(place, [&](int to, int from) {
        if (own.bytes > 0) out.send(to, source, own.bytes);
        const Block& block = block_of(target, from);
        if (block.bytes > 0) out.receive(from, block.data, block.bytes);
      });
      program = out.finish();
    } else {
      program = all_gather_ring(place, source, target, limits);
    }
  }
  Writer own(place);
  own.copy(block_of(target, place.rank).data, source, block_of(target, place.rank).bytes);
  for (const Action& copy : own.finish()) program.push_back(copy);
  return program;
}

Program reduce_scatter(Place place, const Blocks& source, std::byte* target, std::uint64_t element, Temporary temporary,
                       const Limits& limits) {
  const Block& own = block_of(source, place.rank);
  if (place.size == 1) {
    Writer out(place);
    out.copy(target, own.data, own.bytes);
    return out.finish();
  }
  if (!direct(place, source, limits)) return reduce_scatter_ring(place, source, target, element, temporary, limits);
  Writer out(place);
  std::byte* partial = own.data;
  std::uint32_t after = kNone;
  int left = place.size - 1;
  for_each_distance(place, [&](int to, int from) {
    const Block& block = block_of(source, to);
    if (block.bytes > 0) out.send(to, block.data, block.bytes);
    if (own.bytes == 0) return;
    after = out.reduce(from, target, partial, own.bytes, --left == 0, {after, kNone});
    partial = target;
  });
  return out.finish();
}

Program all_to_all(Place place, const Blocks& source, const Blocks& target) {
  Writer out(place);
  const Block& own = block_of(source, place.rank);
  for_each_distance(place, [&](int to, int from) {
    const Block& sent = block_of(source, to);
    const Block& received = block_of(target, from);
    if (sent.bytes > 0) out.send(to, sent.data, sent.bytes);
    if (received.bytes > 0) out.receive(from, received.data, received.bytes);
  });
  out.copy(block_of(target, place.rank).data, own.data, own.bytes);
  return out.finish();
}

Program gather(Place place, int root, Block source, const Blocks& target) {
  Writer out(place);
  if (place.rank != root) {
    if (source.bytes > 0) out.send(root, source.data, source.bytes);
    return out.finish();
  }
  for_each_distance(place, [&](int, int from) {
    const Block& block = block_of(target, from);
    if (block.bytes > 0) out.receive(from, block.data, block.bytes);
  });
  out.copy(block_of(target, root).data, source.data, source.bytes);
  return out.finish();
}

Program scatter(Place place, int root, const Blocks& source, Block target) {
  Writer out(place);
  if (place.rank != root) {
    if (target.bytes > 0) out.receive(root, target.data, target.bytes);
    return out.finish();
  }
  for_each_distance(place, [&](int to, int) {
    const Block& block = block_of(source, to);
    if (block.bytes > 0) out.send(to, block.data, block.bytes);
  });
  out.copy(target.data, block_of(source, root).data, target.bytes);
  return out.finish();
}

Program barrier(Place place) {
  Writer out(place);
  std::uint32_t received = kNone;
  for (int distance = 1; distance < place.size; distance *= 2) {
    out.send(wrap(place.rank + distance, place.size), nullptr, 0, received);
    received = out.join(received, out.receive(wrap(place.rank - distance, place.size), nullptr, 0));
  }
  return out.finish();
}

}  // namespace paralet::collectives
