// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"

#include <atomic>

#include "channels.hpp"

namespace paralet::cpu_device {
namespace {

enum class ElementType : std::uint8_t { unused = 0, collective = 1, p2p = 2, registered_collective = 3 };

constexpr std::uint64_t unused_p2p = 0;   // ncclWorkP2pTypeUnused
constexpr std::uint64_t ll_protocol = 0;  // NCCL_PROTO_LL

constexpr const char* registered =
    "The CPU device does not run work on registered buffers; set NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0.";

// The kernel's arguments.
struct Arguments {
  std::byte* communicator;
  std::uint64_t channel_mask;
  std::byte* first_work;
};

std::uint64_t join(const std::byte* element, Field high, Field low) {
  return read_unsigned(element, high) << 32U | read_unsigned(element, low);
}

CollectiveWork decode(const Layout& layout, const Function& function, const std::byte* element) {
  CollectiveWork work;
  work.part = {.total = read_unsigned(element, layout.elem_count),
               .offset = read_unsigned(element, layout.elem_work_offset),
               .count = read_unsigned(element, layout.elem_work_count),
               .chunk = read_unsigned(element, layout.elem_chunk_count),
               .last_chunk = read_unsigned(element, layout.elem_last_chunk_count)};
  work.buffers = {read_pointer(element, layout.elem_send), read_pointer(element, layout.elem_recv)};
  work.root = static_cast<int>(read_signed(element, layout.elem_root));
  work.argument = read_unsigned(element, layout.elem_op_arg);
  if (read_unsigned(element, layout.elem_op_arg_is_pointer) != 0) {
    work.argument = load_argument(work.argument, element_bytes(function.element));
  }
  return work;
}

bool run_collectives(Block& block, const Function& function, const std::byte* work) {
  const Layout& layout = block.layout();
  const std::byte* end = work + layout.work.size();
  for (const std::byte* element = work + layout.work_elements.offset(); element + layout.elem.size() <= end;
       element += layout.elem.size()) {
    if (read_unsigned(element, layout.elem_is_used) == 0) break;
    if (read_unsigned(element, layout.elem_reg_used) != 0) throw NotSupported{registered};
    if (!block.run_collective(function, decode(layout, function, element))) return false;
  }
  return true;
}

PeerWork decode_peer(const Layout& layout, const std::byte* element) {
  if (read_unsigned(element, layout.elem_p2p_reg) != 0) throw NotSupported{registered};
  PeerWork work;
  work.peer = static_cast<int>(read_signed(element, layout.elem_p2p_peer));
  const std::uint64_t address = join(element, layout.elem_p2p_buffer_high, layout.elem_p2p_buffer_low);
  std::memcpy(&work.data, &address, sizeof(work.data));
  work.bytes = join(element, layout.elem_p2p_count_high, layout.elem_p2p_count_low);
  work.ll = read_unsigned(element, layout.elem_p2p_protocol) == ll_protocol;
  // Of protocol LL the chunk's size counts the flags too.
  work.chunk_bytes = read_unsigned(element, layout.elem_p2p_chunk_bytes) / (work.ll ? 2 : 1);
  return work;
}

// Elements are pairs: a receive, then a send. NCCL refuses a send to oneself without a receive.
bool run_pairs(Block& block, const std::byte* work) {
  const Layout& layout = block.layout();
  const std::byte* elements = work + layout.work_p2p_elements.offset();
  const std::size_t count = read_unsigned(elements, layout.elem_p2p_groups);
  std::vector<PeerWork> sends;
  std::vector<PeerWork> receives;
  PeerWork to_self;
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* element = elements + i * layout.elem_p2p.size();
    if (read_unsigned(element, layout.elem_p2p_type) == unused_p2p) continue;
    const PeerWork half = decode_peer(layout, element);
    if (half.peer < 0) continue;
    const bool is_send = i % 2 == 1;
    if (half.peer != block.rank()) {
      (is_send ? sends : receives).push_back(half);
    } else if (!is_send) {
      to_self = half;
    } else if (half.bytes != 0 && to_self.data != nullptr && half.data != to_self.data) {
      std::memcpy(to_self.data, half.data, half.bytes);
    }
  }
  return block.run_peers(sends, receives);
}

bool run_work(Block& block, const std::byte* work) {
  const Layout& layout = block.layout();
  const Function& function = function_of(block.launch().library.functions, read_unsigned(work, layout.work_function));
  switch (static_cast<ElementType>(read_unsigned(work, layout.work_type))) {
    case ElementType::unused:
      return true;
    case ElementType::collective:
      return run_collectives(block, function, work);
    case ElementType::p2p:
      return run_pairs(block, work);
    case ElementType::registered_collective:
      break;
  }
  throw NotSupported{registered};
}

}  // namespace

bool run_elements(const Launch& launch, unsigned block) {
  const Layout& layout = launch.library.layout;
  Arguments arguments{};
  std::memcpy(&arguments, launch.args.data(), sizeof(arguments));
  Block here(launch, arguments.communicator, channel_of_block(arguments.channel_mask, block));
  std::vector<std::byte> work(layout.work.size());
  for (std::int64_t index = block;;) {
    std::memcpy(work.data(), arguments.first_work + index * static_cast<std::int64_t>(work.size()), work.size());
    const bool is_last = read_unsigned(work.data(), layout.work_is_last) != 0;
    if (is_last && read_unsigned(work.data(), layout.work_in_fifo) != 0) {
      // The host may write over the works from now on.
      auto* done = reinterpret_cast<std::uint32_t*>(read_pointer(here.channel_struct(), layout.channel_work_fifo_done));
      std::atomic_ref(*done).store(static_cast<std::uint32_t>(read_unsigned(work.data(), layout.work_done_acks)),
                                   std::memory_order_release);
    }
    if (!run_work(here, work.data())) return false;
    if (is_last) return true;
    index = read_signed(work.data(), layout.work_next);
    if (here.aborted()) return false;
  }
}

}  // namespace paralet::cpu_device
