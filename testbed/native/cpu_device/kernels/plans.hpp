// SPDX-License-Identifier: Apache-2.0
// The operations that one rank does on one channel for each collective. Pure: no connection is touched.
//
// The ranks' plans fit together: what one sends, the next receives, in the same order and with the same counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "operation.hpp"
#include "parts.hpp"

namespace paralet::cpu_device {

// Where this rank is in a ring. The user's rank of the i-th rank after this one is user_ranks[i]; user_ranks[0] is
// this.
struct Ring {
  unsigned index = 0;
  std::span<const int> user_ranks;

  unsigned size() const { return static_cast<unsigned>(user_ranks.size()); }
};

struct Buffers {
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
};

Plan ring_all_reduce(const Part& part, const Ring& ring, std::size_t element_bytes, Buffers buffers);
Plan ring_all_gather(const Part& part, const Ring& ring, std::size_t element_bytes, Buffers buffers);
Plan ring_reduce_scatter(const Part& part, const Ring& ring, std::size_t element_bytes, Buffers buffers);
Plan ring_broadcast(const Part& part, const Ring& ring, int root, std::size_t element_bytes, Buffers buffers);
Plan ring_reduce(const Part& part, const Ring& ring, int root, std::size_t element_bytes, Buffers buffers);

// One of the broadcasts of a group, of which every rank may be the root of one: an all-gather of unequal shares.
struct Share {
  unsigned depth = 0;  // ranks between the root and this one along the ring; 0: the root
  Buffers buffers;
  std::size_t bytes = 0;
  std::size_t done = 0;  // bytes at the start that other work has carried
  std::size_t chunk_bytes = 0;
};

// Broadcasts of a group over one ring: a chunk of each in turn.
Plan ring_shares(std::span<const Share> shares, unsigned ranks);

// An all-reduce over a tree: up() and down() at the same time on every rank but the root, which does root().
enum class TreePlace : std::uint8_t { leaf, inner };
Plan tree_root(const Part& part, std::size_t element_bytes, Buffers buffers);
Plan tree_up(const Part& part, TreePlace place, std::size_t element_bytes, Buffers buffers);
Plan tree_down(const Part& part, TreePlace place, std::size_t element_bytes, Buffers buffers);

// Point to point; at least one chunk, also of 0 bytes.
Plan send_plan(const std::byte* data, std::size_t bytes, std::size_t chunk_bytes);
Plan receive_plan(std::byte* data, std::size_t bytes, std::size_t chunk_bytes);

}  // namespace paralet::cpu_device
