// SPDX-License-Identifier: Apache-2.0
#include "batches.hpp"

#include <bit>
#include <string>

#include "channels.hpp"
#include "profile.hpp"

namespace paralet::cpu_device {
namespace {

enum class WorkType : std::uint8_t { p2p = 0, collective = 1, registered_collective = 2, broadcasts = 3 };

// Batches that extend one another, and the works of all of them, in order.
struct Group {
  WorkType type = WorkType::p2p;
  std::size_t function = 0;
  std::vector<std::byte*> works;
};

class Batches {
 public:
  explicit Batches(const Launch& launch) : layout_(launch.library.layout), args_(launch.args.data()) {}

  // Reads the group that starts at batch `index`. Returns the index of the next one, or none.
  std::size_t read(std::size_t index, Group& group) const {
    group.works.clear();
    for (;;) {
      const std::byte* batch = args_ + layout_.args.size() + index * layout_.batch.size();
      group.type = static_cast<WorkType>(read_unsigned(batch, layout_.batch_work_type));
      group.function = read_unsigned(batch, layout_.batch_function);
      const std::size_t first = read_unsigned(batch, layout_.batch_offset);
      for (std::uint64_t bits = read_unsigned(batch, layout_.batch_bits); bits != 0; bits &= bits - 1) {
        const auto place = static_cast<std::size_t>(std::countr_zero(bits));
        group.works.push_back(work_at(first + place * work_bytes(group.type)));
      }
      const std::size_t jump = read_unsigned(batch, layout_.batch_next_jump);
      if (read_unsigned(batch, layout_.batch_next_extends) == 0) return jump == 0 ? none : index + jump;
      index += jump;
    }
  }

  static constexpr std::size_t none = ~std::size_t{0};

 private:
  std::size_t work_bytes(WorkType type) const {
    switch (type) {
      case WorkType::p2p:
        return layout_.p2p.size();
      case WorkType::collective:
        return layout_.coll.size();
      case WorkType::registered_collective:
        return layout_.coll_reg.size();
      case WorkType::broadcasts:
        break;
    }
    return layout_.bcast.size();
  }

  // Works lie in the arguments, or in a ring buffer or a buffer of their own, both with a mask.
  std::byte* work_at(std::size_t offset) const {
    if (read_unsigned(args_, layout_.args_storage) == in_arguments) return const_cast<std::byte*>(args_) + offset;
    return read_pointer(args_, layout_.args_work) + (offset & read_unsigned(args_, layout_.args_work_mask));
  }

  static constexpr std::uint64_t in_arguments = 0;  // ncclDevWorkStorageTypeArgs

  const Layout& layout_;
  const std::byte* args_;
};

bool is_set(const std::byte* work, Field field) { return field.present() && read_unsigned(work, field) != 0; }

CollectiveWork decode(const Block& block, const Function& function, const std::byte* work) {
  const Layout& layout = block.layout();
  if (is_set(work, layout.coll_reg_used) || is_set(work, layout.coll_net_reg_used)) {
    throw NotSupported{
        "The CPU device does not run collectives on registered buffers; set NCCL_LOCAL_REGISTER=0 and "
        "NCCL_GRAPH_REGISTER=0."};
  }
  const std::size_t bytes = function.reduction == Reduction::none ? 1 : element_bytes(function.element);
  CollectiveWork result;
  const Distribution distribution{
      .channel_lo = static_cast<unsigned>(read_unsigned(work, layout.coll_channel_lo)),
      .channel_hi = static_cast<unsigned>(read_unsigned(work, layout.coll_channel_hi)),
      .count_lo = read_unsigned(work, layout.coll_count_lo),
      .count_mid = read_unsigned(work, layout.coll_count_mid),
      .count_hi = read_unsigned(work, layout.coll_count_hi),
      .grains_lo = read_unsigned(work, layout.coll_grains_lo),
      .grains_mid = read_unsigned(work, layout.coll_grains_mid),
      .grains_hi = read_unsigned(work, layout.coll_grains_hi),
  };
  if (bytes != 0) result.part = part_of_channel(distribution, block.channel(), function.protocol, bytes);
  result.buffers = {read_pointer(work, layout.coll_send), read_pointer(work, layout.coll_recv)};
  result.root = static_cast<int>(read_signed(work, layout.coll_root));
  result.argument = read_unsigned(work, layout.coll_op_arg);
  if (is_set(work, layout.coll_op_arg_is_pointer)) result.argument = load_argument(result.argument, bytes);
  return result;
}

// What this channel carries of the sends and receives of a group.
struct PeerWorks {
  std::vector<PeerWork> sends;
  std::vector<PeerWork> receives;
};

void decode_peers(const Block& block, const std::byte* work, PeerWorks& group) {
  const Layout& layout = block.layout();
  for (const Field field :
       {layout.p2p_send_net_reg, layout.p2p_recv_net_reg, layout.p2p_send_ipc_reg, layout.p2p_recv_ipc_reg}) {
    if (is_set(work, field)) {
      throw NotSupported{
          "The CPU device does not send from registered buffers; set NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0."};
    }
  }
  const auto channels = static_cast<unsigned>(read_unsigned(work, layout.p2p_channels));
  const auto base = static_cast<unsigned>(read_unsigned(work, layout.p2p_channel_base));
  const unsigned part = (block.channel() - base) & (channels - 1);  // ncclP2pChannelToPart

  const auto half = [&](Field parts, Field address, Field bytes, Field peer, Field chunk, Field ll) {
    PeerWork result;
    const auto count = static_cast<unsigned>(read_unsigned(work, parts));
    if (part >= count) return result;
    const Range range = part_of_transfer(read_unsigned(work, bytes), count, part);
    result.peer = static_cast<int>(read_signed(work, peer));
    result.data = read_pointer(work, address) + range.begin;
    result.bytes = range.end - range.begin;
    result.chunk_bytes = decode_chunk_bytes(static_cast<std::uint8_t>(read_unsigned(work, chunk)));
    result.ll = read_unsigned(work, ll) != 0;
    return result;
  };
  const PeerWork send = half(layout.p2p_send_channels, layout.p2p_send, layout.p2p_send_bytes, layout.p2p_send_rank,
                             layout.p2p_send_chunk_fp8, layout.p2p_send_ll);
  const PeerWork receive = half(layout.p2p_recv_channels, layout.p2p_recv, layout.p2p_recv_bytes, layout.p2p_recv_rank,
                                layout.p2p_recv_chunk_fp8, layout.p2p_recv_ll);
  if (send.peer == block.rank()) {
    if (send.bytes != 0 && send.data != receive.data) std::memcpy(receive.data, send.data, send.bytes);
    return;
  }
  if (send.peer >= 0) group.sends.push_back(send);
  if (receive.peer >= 0) group.receives.push_back(receive);
}

Share decode_share(const Layout& layout, const std::byte* work) {
  return {.depth = static_cast<unsigned>(read_unsigned(work, layout.bcast_ring_depth)),
          .buffers = {read_pointer(work, layout.bcast_send), read_pointer(work, layout.bcast_recv)},
          .bytes = read_unsigned(work, layout.bcast_bytes),
          .done = read_unsigned(work, layout.bcast_bytes_done),
          .chunk_bytes = read_unsigned(work, layout.bcast_chunk_bytes)};
}

// The flag of a work that asks for an entry in the profile; works of broadcasts have none.
Field enabled_field(const Layout& layout, WorkType type) {
  if (type == WorkType::broadcasts) return {};
  return type == WorkType::p2p ? layout.p2p_profiled : layout.coll_profiled;
}

bool run_group(Block& block, const Group& group) {
  if (group.type == WorkType::p2p) {
    PeerWorks works;
    for (const std::byte* work : group.works) decode_peers(block, work, works);
    return block.run_peers(works.sends, works.receives);
  }
  const auto& functions = block.launch().library.functions;
  const Function& function = function_of(functions, group.function);
  if (group.type == WorkType::broadcasts) {
    if (!block.layout().bcast_ring_depth.present()) {
      throw NotSupported{"The CPU device does not know how this NCCL describes the broadcasts of a group."};
    }
    std::vector<Share> shares;
    shares.reserve(group.works.size());
    for (const std::byte* work : group.works) shares.push_back(decode_share(block.layout(), work));
    return block.run_shares(function, shares);
  }
  for (const std::byte* work : group.works) {
    if (!block.run_collective(function, decode(block, function, work))) return false;
  }
  return true;
}

}  // namespace

bool run_batches(const Launch& launch, unsigned block) {
  const Layout& layout = launch.library.layout;
  const std::byte* args = launch.args.data();
  const unsigned channel = channel_of_block(read_unsigned(args, layout.args_channel_mask), block);
  Block here(launch, read_pointer(args, layout.args_comm), channel);
  const Batches batches(launch);
  Group group;
  for (std::size_t next = block; next != Batches::none;) {
    next = batches.read(next, group);
    Profile profile(here, group.works, enabled_field(layout, group.type));
    if (!run_group(here, group)) return false;
    profile.completed();
  }
  return true;
}

}  // namespace paralet::cpu_device
