// SPDX-License-Identifier: Apache-2.0
// What the CUDA runtime asks of the kernels: run one block of a launch of NCCL's.
//
// NCCL launches a kernel with one block per channel. The runtime calls run_block once per block, each call on a host
// thread of its own, all of a launch at the same time, and waits for all before the stream goes on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "layout.hpp"

namespace paralet::cpu_device {

enum class Collective : std::uint8_t {
  send_recv,
  broadcast,
  reduce,
  all_gather,
  all_gather_v,
  reduce_scatter,
  all_reduce
};
enum class Reduction : std::uint8_t { none, sum, prod, min_max, pre_mul_sum, sum_post_div };
enum class Element : std::uint8_t { none, i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16, f8e4m3, f8e5m2 };
enum class Algorithm : std::uint8_t { none, tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, pat };
enum class Protocol : std::uint8_t { none, ll, ll128, simple };

// A device function of NCCL, by its name such as ncclDevFunc_AllReduce_Sum_f32_RING_SIMPLE. NCCL folds functions that
// do the same: the sum of i32 is the function of u32.
struct Function {
  bool known = false;  // false: a gap in NCCL's table, or a name that is not understood
  Collective collective = Collective::send_recv;
  Reduction reduction = Reduction::none;
  Element element = Element::none;
  Algorithm algorithm = Algorithm::none;
  Protocol protocol = Protocol::none;
  std::string_view name;  // without the prefix: "AllReduce_Sum_f32_RING_SIMPLE"; lives as long as the library
};

// The library whose kernels run.
struct Library {
  Layout layout;
  std::span<const Function> functions;  // by function number, as batches and work headers name it
  int version = 0;                      // as ncclGetVersion counts: 23203 is 2.32.3
};

struct Launch {
  const Library& library;
  std::string_view kernel;  // the launched kernel's name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
  // Generation::batches: a copy of ncclDevKernelArgs with the batches behind it and, where workStorageType says so, the
  // work structs. Generation::elements: the kernel's three arguments, 8 bytes each: ncclDevComm*, channel mask,
  // ncclWork* of the first work of block 0.
  std::span<const std::byte> args;
  unsigned blocks = 0;                 // blocks of the launch: as many as bits in the channel mask
  const std::atomic<bool>& cancelled;  // the device is going away (cudaDeviceReset, end of the process)
};

enum class Outcome : std::uint8_t {
  done,
  aborted,        // the communicator's abort flag is set, or the launch was cancelled: the block left its work undone
  not_supported,  // this work cannot run; the stream fails with cudaErrorNotSupported
};

struct BlockResult {
  Outcome outcome = Outcome::done;
  std::string reason;  // one sentence where not_supported
};

// Runs the work of block `block` (0 <= block < launch.blocks), to its end or until the communicator is aborted or the
// launch cancelled. Blocks of one launch, and launches of several streams, run at the same time.
BlockResult run_block(const Launch& launch, unsigned block);

}  // namespace paralet::cpu_device
