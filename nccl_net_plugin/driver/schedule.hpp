// SPDX-License-Identifier: Apache-2.0
// Who sends which elements to whom at which step: pure functions, the same on every rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace paralet::driver {

/// What is cut into what.
struct Extent {
  unsigned ranks = 2;
  std::uint64_t elements = 0;
  std::uint64_t slice_elements = 1;  ///< of a message at most
  unsigned steps = 8;                ///< slots of a connection; in a ring a chunk is at most so many slices
};

/// Elements [first, first + count).
struct Range {
  std::uint64_t first;
  std::uint64_t count;
};

/// `range` in equal pieces, as few as make none longer than `most`. None when it is empty.
std::vector<Range> cut(Range range, std::uint64_t most);

/// One message, as the rank that sends it and the rank that receives it number it.
struct Slice {
  unsigned step;
  Range range;
};

/// Steps of a ring all-reduce: 2 (n - 1) for each round. A round is what n chunks of `steps` slices hold: if a chunk
/// were longer, every rank could be waiting to send while its slots are full of what it cannot take in.
std::uint64_t ring_rounds(const Extent& extent);
/// What `rank` sends to rank + 1, in order. At step s of a round it is chunk (rank - s) mod n.
std::vector<Slice> ring_sends(unsigned rank, const Extent& extent);

/// A rank's place in a tree.
struct TreePlace {
  std::optional<unsigned> parent;
  std::vector<unsigned> children;
  unsigned height;  ///< links down to the deepest leaf below
  unsigned depth;   ///< links up to the root
};

/// NCCL's double binary tree: a leaf of one tree is an inner node of the other, so that with half of the data on each
/// tree every rank sends and receives about the same. The second is the first mirrored, or, for odd n, shifted by one.
std::array<TreePlace, 2> double_binary_tree(unsigned rank, unsigned ranks);
/// The half of the elements that goes over each tree, cut into messages.
std::array<std::vector<Range>, 2> tree_slices(const Extent& extent);
/// The steps at which a rank sends to its parent, and to its children.
unsigned step_up(const TreePlace& place);
unsigned step_down(const TreePlace& place, unsigned ranks);
/// Steps of a tree all-reduce.
unsigned tree_steps(unsigned ranks);

}  // namespace paralet::driver
