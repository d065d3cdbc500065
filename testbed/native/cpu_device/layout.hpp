// SPDX-License-Identifier: Apache-2.0
// Where NCCL keeps what its kernels read: one table of fields per library, read from the library's debug information.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace paralet::cpu_device {

// A member of one of NCCL's structs. `bits` is 0 where this NCCL has no such member.
struct Field {
  std::uint32_t first_bit = 0;  // from the start of the outermost struct
  std::uint32_t bits = 0;       // width; of an array, of one element; of a struct, of the whole

  bool present() const { return bits != 0; }
  std::size_t offset() const { return first_bit / 8; }
  std::size_t size() const { return bits / 8; }
};

// How a launch describes its work.
enum class Generation : std::uint32_t {
  elements = 1,  // NCCL 2.18 to 2.22: a chain of ncclWork, each with elements for a channel
  batches = 2,   // NCCL 2.23 and later: ncclDevKernelArgs, then batches, which point at work structs
};

// The fields. FIELD(generation, name, path): `generation` is `all`, `elements`, `batches` or `optional`; a library that
// lacks a field of `all` or of its generation is refused. `path` names a struct and the way to a member; a struct name
// alone gives its size. Alternatives are separated by '|': the first that the library has is taken. Python finds the
// paths in the debug information (testbed/nccl/cpu_device/layout.py), and asks this library for the list.
// clang-format off
#define PARALET_LAYOUT(FIELD)                                                                    \
  /* communicator */                                                                             \
  FIELD(all, comm_rank, "ncclKernelComm.rank|ncclDevComm.rank")                                  \
  FIELD(all, comm_ranks, "ncclKernelComm.nRanks|ncclDevComm.nRanks")                             \
  FIELD(all, comm_buffer_bytes, "ncclKernelComm.buffSizes|ncclDevComm.buffSizes")                \
  FIELD(all, comm_p2p_chunk, "ncclKernelComm.p2pChunkSize|ncclDevComm.p2pChunkSize")             \
  FIELD(all, comm_abort_flag, "ncclKernelComm.abortFlag|ncclDevComm.abortFlag")                  \
  FIELD(all, comm_channels, "ncclKernelComm.channels|ncclDevComm.channels")                      \
  FIELD(optional, comm_work_started, "ncclKernelComm.workStarted|ncclDevComm.workStarted")       \
  FIELD(optional, comm_work_completed, "ncclKernelComm.workCompleted|ncclDevComm.workCompleted") \
  /* channel */                                                                                  \
  FIELD(all, channel, "ncclDevChannel")                                                          \
  FIELD(all, channel_peers, "ncclDevChannel.peers")                                              \
  FIELD(all, channel_ring_prev, "ncclDevChannel.ring.prev")                                      \
  FIELD(all, channel_ring_next, "ncclDevChannel.ring.next")                                      \
  FIELD(all, channel_ring_user_ranks, "ncclDevChannel.ring.userRanks")                           \
  FIELD(optional, channel_ring_rank_to_index, "ncclDevChannel.ring.rankToIndex")                 \
  FIELD(all, channel_ring_index, "ncclDevChannel.ring.index")                                    \
  FIELD(all, channel_tree_up, "ncclDevChannel.tree.up")                                          \
  FIELD(all, channel_tree_down, "ncclDevChannel.tree.down")                                      \
  FIELD(all, channel_work_fifo_done, "ncclDevChannel.workFifoDone")                              \
  FIELD(optional, channel_work_counter, "ncclDevChannel.workCounter")                            \
  /* connections of a channel to a peer: two for sending, two for receiving */                   \
  FIELD(all, peer_send, "ncclDevChannelPeer.send")                                               \
  FIELD(all, peer_recv, "ncclDevChannelPeer.recv")                                               \
  FIELD(all, conn, "ncclConnInfo")                                                               \
  FIELD(all, conn_buffers, "ncclConnInfo.buffs")                                                 \
  FIELD(all, conn_tail, "ncclConnInfo.tail")                                                     \
  FIELD(all, conn_head, "ncclConnInfo.head")                                                     \
  FIELD(all, conn_flags, "ncclConnInfo.flags")                                                   \
  FIELD(all, conn_shared, "ncclConnInfo.shared")                                                 \
  FIELD(all, conn_step_bytes, "ncclConnInfo.stepSize")                                           \
  FIELD(all, conn_fifo, "ncclConnInfo.connFifo")                                                 \
  FIELD(all, conn_step, "ncclConnInfo.step")                                                     \
  FIELD(all, conn_ll_last_cleaning, "ncclConnInfo.llLastCleaning")                               \
  FIELD(all, fifo, "ncclConnFifo")                                                               \
  FIELD(all, fifo_mode, "ncclConnFifo.mode")                                                     \
  FIELD(all, fifo_offset, "ncclConnFifo.offset")                                                 \
  FIELD(all, fifo_bytes, "ncclConnFifo.size")                                                    \
  FIELD(all, fifo_pointer, "ncclConnFifo.ptr")                                                   \
  /* arguments of a kernel, and batches of work */                                               \
  FIELD(batches, args, "ncclDevKernelArgs")                                                      \
  FIELD(batches, args_comm, "ncclDevKernelArgs.comm")                                            \
  FIELD(batches, args_channel_mask, "ncclDevKernelArgs.channelMask")                             \
  FIELD(batches, args_storage, "ncclDevKernelArgs.workStorageType")                              \
  FIELD(batches, args_work_mask, "ncclDevKernelArgs.workMask")                                   \
  FIELD(batches, args_work, "ncclDevKernelArgs.workBuf")                                         \
  FIELD(batches, batch, "ncclDevWorkBatch")                                                      \
  FIELD(batches, batch_next_jump, "ncclDevWorkBatch.nextJump")                                   \
  FIELD(batches, batch_next_extends, "ncclDevWorkBatch.nextExtends")                             \
  FIELD(batches, batch_work_type, "ncclDevWorkBatch.workType")                                   \
  FIELD(batches, batch_function, "ncclDevWorkBatch.funcId")                                      \
  FIELD(batches, batch_offset, "ncclDevWorkBatch.offsetBase")                                    \
  FIELD(batches, batch_bits, "ncclDevWorkBatch.offsetBitset")                                    \
  /* a collective */                                                                             \
  FIELD(batches, coll, "ncclDevWorkColl")                                                        \
  FIELD(batches, coll_reg, "ncclDevWorkCollReg")                                                 \
  FIELD(batches, coll_channel_lo, "ncclDevWorkColl.channelLo")                                   \
  FIELD(batches, coll_channel_hi, "ncclDevWorkColl.channelHi")                                   \
  FIELD(batches, coll_op_arg_is_pointer, "ncclDevWorkColl.redOpArgIsPtr")                        \
  FIELD(batches, coll_reg_used, "ncclDevWorkColl.regUsed")                                       \
  FIELD(optional, coll_net_reg_used, "ncclDevWorkColl.netRegUsed")                               \
  FIELD(batches, coll_root, "ncclDevWorkColl.root")                                              \
  FIELD(batches, coll_recv, "ncclDevWorkColl.recvbuff")                                          \
  FIELD(batches, coll_send, "ncclDevWorkColl.sendbuff")                                          \
  FIELD(batches, coll_count_lo, "ncclDevWorkColl.cbd.countLo")                                   \
  FIELD(batches, coll_count_mid, "ncclDevWorkColl.cbd.countMid")                                 \
  FIELD(batches, coll_count_hi, "ncclDevWorkColl.cbd.countHi")                                   \
  FIELD(batches, coll_grains_lo, "ncclDevWorkColl.cbd.chunkGrainsLo")                            \
  FIELD(batches, coll_grains_mid, "ncclDevWorkColl.cbd.chunkGrainsMid")                          \
  FIELD(batches, coll_grains_hi, "ncclDevWorkColl.cbd.chunkGrainsHi")                            \
  FIELD(batches, coll_op_arg, "ncclDevWorkColl.redOpArg")                                        \
  FIELD(optional, coll_profiled, "ncclDevWorkColl.profilerEnabled")                              \
  /* a send and a receive */                                                                     \
  FIELD(batches, p2p, "ncclDevWorkP2p")                                                          \
  FIELD(batches, p2p_send, "ncclDevWorkP2p.sendAddr")                                            \
  FIELD(batches, p2p_recv, "ncclDevWorkP2p.recvAddr")                                            \
  FIELD(batches, p2p_send_bytes, "ncclDevWorkP2p.sendBytes")                                     \
  FIELD(batches, p2p_recv_bytes, "ncclDevWorkP2p.recvBytes")                                     \
  FIELD(batches, p2p_send_rank, "ncclDevWorkP2p.sendRank")                                       \
  FIELD(batches, p2p_recv_rank, "ncclDevWorkP2p.recvRank")                                       \
  FIELD(batches, p2p_channels, "ncclDevWorkP2p.nP2pChannels")                                    \
  FIELD(batches, p2p_channel_base, "ncclDevWorkP2p.channelBase")                                 \
  FIELD(batches, p2p_send_channels, "ncclDevWorkP2p.nSendChannels")                              \
  FIELD(batches, p2p_recv_channels, "ncclDevWorkP2p.nRecvChannels")                              \
  FIELD(batches, p2p_send_chunk_fp8, "ncclDevWorkP2p.sendChunkSize_u32fp8")                      \
  FIELD(batches, p2p_recv_chunk_fp8, "ncclDevWorkP2p.recvChunkSize_u32fp8")                      \
  FIELD(batches, p2p_send_ll, "ncclDevWorkP2p.sendProtoLL")                                      \
  FIELD(batches, p2p_recv_ll, "ncclDevWorkP2p.recvProtoLL")                                      \
  FIELD(optional, p2p_send_net_reg, "ncclDevWorkP2p.sendNetReg")                                 \
  FIELD(optional, p2p_recv_net_reg, "ncclDevWorkP2p.recvNetReg")                                 \
  FIELD(optional, p2p_send_ipc_reg, "ncclDevWorkP2p.sendIpcReg")                                 \
  FIELD(optional, p2p_recv_ipc_reg, "ncclDevWorkP2p.recvIpcReg")                                 \
  FIELD(optional, p2p_profiled, "ncclDevWorkP2p.profilerEnabled")                                \
  /* broadcasts of one group (NCCL 2.29 and later) */                          \
  FIELD(optional, bcast, "ncclDevWorkBcast")                                                     \
  FIELD(optional, bcast_ring_depth, "ncclDevWorkBcast.ringDepth")                                \
  FIELD(optional, bcast_chunk_bytes, "ncclDevWorkBcast.chunkSize")                               \
  FIELD(optional, bcast_send, "ncclDevWorkBcast.sendbuff")                                       \
  FIELD(optional, bcast_recv, "ncclDevWorkBcast.recvbuff")                                       \
  FIELD(optional, bcast_bytes, "ncclDevWorkBcast.bytes")                                         \
  FIELD(optional, bcast_bytes_done, "ncclDevWorkBcast.bytes_done")                               \
  /* work of the older generation */                                                             \
  FIELD(elements, comm_work_fifo_depth, "ncclDevComm.workFifoDepth")                             \
  FIELD(elements, comm_work_fifo, "ncclDevComm.workFifoHeap")                                    \
  FIELD(elements, work, "ncclWork")                                                              \
  FIELD(elements, work_elements, "ncclWork.elems")                                               \
  FIELD(elements, work_p2p_elements, "ncclWork.p2pElems")                                        \
  FIELD(elements, work_reg_elements, "ncclWork.regElems")                                        \
  FIELD(elements, work_next, "ncclWork.header.workNext")                                         \
  FIELD(elements, work_done_acks, "ncclWork.header.doneAcks")                                    \
  FIELD(elements, work_function, "ncclWork.header.funcIndex")                                    \
  FIELD(elements, work_is_last, "ncclWork.header.isLast")                                        \
  FIELD(elements, work_in_fifo, "ncclWork.header.inFifo")                                        \
  FIELD(elements, work_type, "ncclWork.header.type")                                             \
  FIELD(elements, elem, "ncclWorkElem")                                                          \
  FIELD(elements, elem_is_used, "ncclWorkElem.isUsed")                                           \
  FIELD(elements, elem_op_arg_is_pointer, "ncclWorkElem.redOpArgIsPtr")                          \
  FIELD(elements, elem_reg_used, "ncclWorkElem.regUsed")                                         \
  FIELD(elements, elem_warps, "ncclWorkElem.nWarps")                                             \
  FIELD(elements, elem_root, "ncclWorkElem.root")                                                \
  FIELD(elements, elem_send, "ncclWorkElem.sendbuff")                                            \
  FIELD(elements, elem_recv, "ncclWorkElem.recvbuff")                                            \
  FIELD(elements, elem_count, "ncclWorkElem.count")                                              \
  FIELD(elements, elem_op_arg, "ncclWorkElem.redOpArg")                                          \
  FIELD(elements, elem_chunk_count, "ncclWorkElem.chunkCount")                                   \
  FIELD(elements, elem_work_count, "ncclWorkElem.workCount")                                     \
  FIELD(elements, elem_last_chunk_count, "ncclWorkElem.lastChunkCount")                          \
  FIELD(elements, elem_work_offset, "ncclWorkElem.workOffset")                                   \
  FIELD(elements, elem_p2p, "ncclWorkElemP2p")                                                   \
  FIELD(elements, elem_p2p_peer, "ncclWorkElemP2p.peer")                                         \
  FIELD(elements, elem_p2p_protocol, "ncclWorkElemP2p.proto")                                    \
  FIELD(elements, elem_p2p_type, "ncclWorkElemP2p.p2pType")                                      \
  FIELD(elements, elem_p2p_reg, "ncclWorkElemP2p.reg")                                           \
  FIELD(elements, elem_p2p_warps, "ncclWorkElemP2p.nWarps")                                      \
  FIELD(elements, elem_p2p_warp_start, "ncclWorkElemP2p.warpStart")                              \
  FIELD(elements, elem_p2p_groups, "ncclWorkElemP2p.ngroups")                                    \
  FIELD(elements, elem_p2p_buffer_high, "ncclWorkElemP2p.buffHi32")                              \
  FIELD(elements, elem_p2p_buffer_low, "ncclWorkElemP2p.buffLo32")                               \
  FIELD(elements, elem_p2p_count_high, "ncclWorkElemP2p.countHi32")                              \
  FIELD(elements, elem_p2p_count_low, "ncclWorkElemP2p.countLo32")                               \
  FIELD(elements, elem_p2p_chunk_bytes, "ncclWorkElemP2p.chunkSize")
// clang-format on

struct Layout {
  Generation generation = Generation::batches;
#define PARALET_LAYOUT_MEMBER(generation, name, path) Field name;
  PARALET_LAYOUT(PARALET_LAYOUT_MEMBER)
#undef PARALET_LAYOUT_MEMBER
};

// The unsigned value of an integer member of up to 64 bits, a bit field included. `object` is the start of the struct,
// which the field was named by; it may not straddle eight bytes.
inline std::uint64_t read_unsigned(const void* object, Field field) {
  const auto* at = static_cast<const std::byte*>(object) + field.first_bit / 8;
  std::uint64_t value = 0;
  std::memcpy(&value, at, (field.first_bit % 8 + field.bits + 7) / 8);
  value >>= field.first_bit % 8;
  return field.bits == 64 ? value : value & ((std::uint64_t{1} << field.bits) - 1);
}

// The same of a signed member.
inline std::int64_t read_signed(const void* object, Field field) {
  const unsigned unused = 64 - field.bits;
  return static_cast<std::int64_t>(read_unsigned(object, field) << unused) >> unused;
}

// The value of a pointer member.
inline std::byte* read_pointer(const void* object, Field field) {
  std::byte* pointer = nullptr;
  std::memcpy(&pointer, static_cast<const std::byte*>(object) + field.offset(), sizeof(pointer));
  return pointer;
}

// The address of a member that begins at a byte.
inline std::byte* member(void* object, Field field) { return static_cast<std::byte*>(object) + field.offset(); }

// PARALET_LAYOUT as text: a line "generation name path" per field.
const char* layout_fields();

// What Python hands over (paralet_cpu_device_attach): two integers per field in the order of PARALET_LAYOUT. Returns
// false where the number of integers is not that.
bool decode_layout(std::uint32_t generation, std::span<const std::uint32_t> values, Layout& layout);

}  // namespace paralet::cpu_device
