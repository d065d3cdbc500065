// SPDX-License-Identifier: Apache-2.0
// The schedule of messages: which elements a rank sends to which peer at which step. Pure functions, the same on every
// rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace paralet::driver {

/// Sizes of a collective.
struct Extent {
  unsigned ranks = 2;
  std::uint64_t elements = 0;
  std::uint64_t slice_elements = 1;  ///< largest message
  unsigned steps = 8;                ///< slots of a connection; a chunk of a ring has at most this number of slices
};

/// Elements [first, first + count).
struct Range {
  std::uint64_t first;
  std::uint64_t count;
};

/// Cuts `range` into the smallest number of equal pieces of at most `most` elements. An empty range has no pieces.
std::vector<Range> cut(Range range, std::uint64_t most);

/// One message: its step in the schedule of the sending rank, and its elements.
struct Slice {
  unsigned step;
  Range range;
};

/// Rounds of a ring all-reduce, of 2 (n - 1) steps each. A round covers n chunks of at most `steps` slices. Longer
/// chunks could deadlock: every rank would wait to send while its own slots are full.
std::uint64_t ring_rounds(const Extent& extent);
/// The messages from `rank` to rank + 1, in order. Step s of a round sends chunk (rank - s) mod n.
std::vector<Slice> ring_sends(unsigned rank, const Extent& extent);

/// A rank's place in a tree.
struct TreePlace {
  std::optional<unsigned> parent;
  std::vector<unsigned> children;
  unsigned height;  ///< links down to the deepest leaf
  unsigned depth;   ///< links up to the root
};

/// NCCL's double binary tree (Sanders et al., 2009): a leaf of one tree is an inner node of the other, so with half of
/// the data on each tree every rank sends and receives about the same amount. The second tree is the first one
/// mirrored, or shifted by one rank for odd n.
std::array<TreePlace, 2> double_binary_tree(unsigned rank, unsigned ranks);
/// The messages of each tree, which carries half of the elements.
std::array<std::vector<Range>, 2> tree_slices(const Extent& extent);
/// The steps at which a rank sends to its parent, and to its children.
unsigned step_up(const TreePlace& place);
unsigned step_down(const TreePlace& place, unsigned ranks);
/// Steps of a tree all-reduce.
unsigned tree_steps(unsigned ranks);

}  // namespace paralet::driver
