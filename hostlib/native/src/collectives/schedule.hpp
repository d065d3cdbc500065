// SPDX-License-Identifier: Apache-2.0
// Who sends what to whom: every collective as a program of actions for one rank. Pure functions; execution.hpp runs the
// programs.
//
// The k-th message that a program sends to a peer is the k-th message that the peer's program receives from this rank,
// and both have the same length. The algorithms, with n ranks and messages of S bytes (Thakur, Rabenseifner and Gropp,
// Optimization of Collective Communication Operations in MPICH, 2005):
//
//   all_reduce      short: recursive doubling; medium: recursive halving and doubling; long: ring
//   reduce          short: binomial tree; long: chain that ends at the root, in pieces
//   broadcast       short: binomial tree; long: chain from the root, in pieces
//   all_gather, reduce_scatter  short: directly among all ranks; long: ring
//   all_to_all, gather, scatter  directly
//   barrier         dissemination: ceil(log2(n)) rounds
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paralet::collectives {

/// One step of a program. It may begin when the actions `after` are done. Actions of one kind and peer begin in the
/// order of the program.
struct Action {
  enum class Kind : std::uint8_t {
    kSend,     ///< `data` to `peer`. Done when `data` may change
    kReceive,  ///< from `peer` into `data`
    kReduce,   ///< a message from `peer`, combined with `local`, into `data`
    kCopy,     ///< `local` to `data`
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  Kind kind = Kind::kSend;
  /// kReduce: the received operand is the left one. All ranks then compute the same bits, also of signed zeros and NaN.
  bool received_first = false;
  bool last = false;  ///< kReduce: the result is final, and is divided where the operator is an average
  int peer = -1;
  std::byte* data = nullptr;
  const std::byte* local = nullptr;
  std::uint64_t bytes = 0;
  std::array<std::uint32_t, 2> after{kNone, kNone};  ///< indices of earlier actions
};
using Program = std::vector<Action>;

/// A rank's part of a buffer.
struct Block {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};
using Blocks = std::vector<Block>;

struct Place {
  int rank = 0;
  int size = 1;
};

/// Limits of the algorithms, in bytes.
struct Limits {
  std::uint64_t short_bytes = 8192;         ///< messages up to this size are short
  std::uint64_t medium_bytes = 256 * 1024;  ///< all_reduce up to this size halves and doubles
  std::uint64_t tree_bytes = 64 * 1024;     ///< broadcast up to this size uses the tree
  std::uint64_t least_chunk = 256 * 1024;   ///< pieces of long messages: at least this,
  std::uint64_t most_chunk = 512 * 1024;    ///< and at most this. No reduction receives more at once
  std::uint64_t direct_ranks = 64;          ///< larger groups never send directly among all ranks
};

/// Memory for partial results, of `bytes` >= 4 * most_chunk. Its content does not outlive an operation.
using Temporary = Block;

// `source` may be `target`. `bytes` and the blocks are multiples of `element`, the size of an element. Nothing is sent
// for empty messages.
Program all_reduce(Place place, std::byte* source, std::byte* target, std::uint64_t bytes, std::uint64_t element,
                   const Limits& limits);
/// `target` is used by the root only.
Program reduce(Place place, int root, std::byte* source, std::byte* target, std::uint64_t bytes, std::uint64_t element,
               Temporary temporary, const Limits& limits);
Program broadcast(Place place, int root, std::byte* data, std::uint64_t bytes, const Limits& limits);
Program all_gather(Place place, std::byte* source, const Blocks& target, const Limits& limits);
/// The result is block `rank` of the sum over ranks.
Program reduce_scatter(Place place, const Blocks& source, std::byte* target, std::uint64_t element, Temporary temporary,
                       const Limits& limits);
/// Block r of `source` goes to rank r, block r of `target` comes from rank r.
Program all_to_all(Place place, const Blocks& source, const Blocks& target);
/// `target` is used by the root only.
Program gather(Place place, int root, Block source, const Blocks& target);
/// `source` is used by the root only.
Program scatter(Place place, int root, const Blocks& source, Block target);
/// Its messages are empty.
Program barrier(Place place);

}  // namespace paralet::collectives
