// SPDX-License-Identifier: Apache-2.0
#include "schedule.hpp"

#include <algorithm>

namespace paralet::driver {
namespace {

std::uint64_t round_up_division(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

/// Piece `index` of `pieces` equal ones.
Range piece(Range range, std::uint64_t index, std::uint64_t pieces) {
  const std::uint64_t first = range.first + index * range.count / pieces;
  return {first, range.first + (index + 1) * range.count / pieces - first};
}

/// The parent in a binary tree that alternates leaves and inner nodes, rooted at 0 (NCCL's ncclGetBtree). A rank's
/// height is the position of its lowest set bit. Its parent is the neighbour at the next height, or an ancestor of that
/// one when it is beyond the last rank.
std::optional<unsigned> parent_of(unsigned rank, unsigned ranks) {
  if (rank == 0) return std::nullopt;
  const unsigned bit = rank & (~rank + 1);
  const unsigned without = rank ^ bit;
  const unsigned near = without | (bit << 1);
  return near < ranks ? near : without;
}

std::vector<unsigned> children_of(unsigned rank, unsigned ranks) {
  std::vector<unsigned> children;
  for (unsigned other = 1; other < ranks; ++other) {
    if (parent_of(other, ranks) == rank) children.push_back(other);
  }
  return children;
}

unsigned height_of(unsigned rank, unsigned ranks) {
  unsigned height = 0;
  for (const unsigned child : children_of(rank, ranks)) height = std::max(height, height_of(child, ranks) + 1);
  return height;
}

TreePlace place_of(unsigned rank, unsigned ranks) {
  TreePlace place{parent_of(rank, ranks), children_of(rank, ranks), height_of(rank, ranks), 0};
  for (auto up = place.parent; up; up = parent_of(*up, ranks)) ++place.depth;
  return place;
}

}  // namespace

std::vector<Range> cut(Range range, std::uint64_t most) {
  const std::uint64_t pieces = round_up_division(range.count, most);
  std::vector<Range> ranges;
  ranges.reserve(pieces);
  for (std::uint64_t i = 0; i < pieces; ++i) ranges.push_back(piece(range, i, pieces));
  return ranges;
}

std::uint64_t ring_rounds(const Extent& extent) {
  return std::max<std::uint64_t>(
      1, round_up_division(extent.elements, extent.ranks * extent.slice_elements * extent.steps));
}

std::vector<Slice> ring_sends(unsigned rank, const Extent& extent) {
  const unsigned n = extent.ranks;
  const std::uint64_t rounds = ring_rounds(extent);
  std::vector<Slice> sends;
  unsigned step = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const Range all = piece({0, extent.elements}, round, rounds);
    for (unsigned s = 0; s < 2 * (n - 1); ++s, ++step) {
      const unsigned chunk = (rank + 2 * n - s) % n;
      for (const Range& range : cut(piece(all, chunk, n), extent.slice_elements)) sends.push_back({step, range});
    }
  }
  return sends;
}

std::array<TreePlace, 2> double_binary_tree(unsigned rank, unsigned ranks) {
  const bool mirrored = ranks % 2 == 0;
  const unsigned alias = mirrored ? ranks - 1 - rank : (rank + ranks - 1) % ranks;
  const auto real = [&](unsigned other) { return mirrored ? ranks - 1 - other : (other + 1) % ranks; };
  TreePlace second = place_of(alias, ranks);
  if (second.parent) second.parent = real(*second.parent);
  for (unsigned& child : second.children) child = real(child);
  return {place_of(rank, ranks), second};
}

std::array<std::vector<Range>, 2> tree_slices(const Extent& extent) {
  const Range all{0, extent.elements};
  return {cut(piece(all, 0, 2), extent.slice_elements), cut(piece(all, 1, 2), extent.slice_elements)};
}

unsigned step_up(const TreePlace& place) { return place.height; }

unsigned step_down(const TreePlace& place, unsigned ranks) { return height_of(0, ranks) + place.depth; }

unsigned tree_steps(unsigned ranks) { return 2 * height_of(0, ranks); }

}  // namespace paralet::driver
