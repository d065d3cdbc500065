// SPDX-License-Identifier: Apache-2.0
// Carries out operations over connections, without ever waiting.
//
// A block of NCCL's has some transfers at the same time (up and down a tree, sends and receives of a group), each by
// warps of its own. Here one thread advances them in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "connection.hpp"
#include "operation.hpp"
#include "reduction.hpp"

namespace paralet::cpu_device {

enum class Progress : std::uint8_t {
  blocked,   // a peer has not sent yet, or has not taken what was sent
  advanced,  // a part is done; there is more
  finished,
};

// The connections of one transfer and the protocol over them.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Starts an operation; the one before is finished.
  virtual void begin(const Operation& operation) = 0;
  // Does the next part, if peers are ready for it.
  virtual Progress advance() = 0;
  // Keeps the connections' steps for the next transfer over them. Not called where the work is aborted.
  virtual void close() = 0;
};

struct Peers {
  std::vector<Connection> receive;
  std::vector<Connection> send;
};

// How protocol Simple cuts chunks. All ranks and NCCL's proxies use the same numbers.
struct Slicing {
  unsigned slices_per_chunk = 1;
  unsigned steps_per_slice = 1;
  std::size_t step_bytes = 0;
};

// Elements of the largest slice of a chunk of `count` elements.
std::size_t slice_elements(std::size_t count, const Slicing& slicing, std::size_t element_bytes);

// `reducer` outlives the transfer.
std::unique_ptr<Transfer> simple_transfer(const Peers& peers, const Slicing& slicing, const Reducer& reducer);

// Protocol LL: `slot_bytes` of the buffer per step, half of them data.
std::unique_ptr<Transfer> ll_transfer(const Peers& peers, std::size_t slot_bytes, const Reducer& reducer);

}  // namespace paralet::cpu_device
