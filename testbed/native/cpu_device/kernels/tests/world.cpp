// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <cstring>
#include <numeric>

#include "connection.hpp"

namespace paralet::cpu_device::test {
namespace {

template <typename Struct, typename Member>
Field field(Member Struct::*member) {
  alignas(Struct) std::byte storage[sizeof(Struct)] = {};
  auto* object = reinterpret_cast<Struct*>(storage);
  const auto offset = reinterpret_cast<std::byte*>(&(object->*member)) - storage;
  using Element = std::remove_extent_t<Member>;
  return {static_cast<std::uint32_t>(offset * 8),
          static_cast<std::uint32_t>(sizeof(Element) * 8)};  // NOLINT(bugprone-sizeof-expression): also of pointers
}

template <typename Struct>
Field whole() {
  return {0, static_cast<std::uint32_t>(sizeof(Struct) * 8)};
}

}  // namespace

Layout layout() {
  Layout layout;
  layout.generation = Generation::batches;
  layout.comm_rank = field(&Communicator::rank);
  layout.comm_ranks = field(&Communicator::ranks);
  layout.comm_buffer_bytes = field(&Communicator::buffer_bytes);
  layout.comm_p2p_chunk = field(&Communicator::p2p_chunk);
  layout.comm_abort_flag = field(&Communicator::abort_flag);
  layout.comm_channels = field(&Communicator::channels);
  layout.channel = whole<Channel>();
  layout.channel_peers = field(&Channel::peers);
  layout.channel_ring_prev = field(&Channel::previous);
  layout.channel_ring_next = field(&Channel::next);
  layout.channel_ring_user_ranks = field(&Channel::user_ranks);
  layout.channel_ring_index = field(&Channel::index);
  layout.channel_tree_up = field(&Channel::up);
  layout.channel_tree_down = field(&Channel::down);
  layout.channel_work_fifo_done = field(&Channel::fifo_done);
  layout.channel_work_counter = field(&Channel::work_counter);
  layout.peer_send = field(&Peer::send);
  layout.peer_recv = field(&Peer::receive);
  layout.conn = whole<Info>();
  layout.conn_buffers = field(&Info::buffers);
  layout.conn_tail = field(&Info::tail);
  layout.conn_head = field(&Info::head);
  layout.conn_flags = field(&Info::flags);
  layout.conn_shared = field(&Info::shared);
  layout.conn_step_bytes = field(&Info::step_bytes);
  layout.conn_fifo = field(&Info::fifo);
  layout.conn_step = field(&Info::step);
  layout.conn_ll_last_cleaning = field(&Info::last_cleaning);
  layout.fifo = whole<FifoEntry>();
  layout.fifo_mode = field(&FifoEntry::mode);
  layout.fifo_offset = field(&FifoEntry::offset);
  layout.fifo_bytes = field(&FifoEntry::bytes);
  layout.fifo_pointer = field(&FifoEntry::pointer);
  layout.args = whole<Arguments>();
  layout.args_comm = field(&Arguments::communicator);
  layout.args_channel_mask = field(&Arguments::channel_mask);
  layout.args_storage = field(&Arguments::storage);
  layout.args_work_mask = field(&Arguments::work_mask);
  layout.args_work = field(&Arguments::work);
  layout.batch = whole<Batch>();
  layout.batch_next_jump = field(&Batch::next_jump);
  layout.batch_next_extends = field(&Batch::next_extends);
  layout.batch_work_type = field(&Batch::type);
  layout.batch_function = field(&Batch::function);
  layout.batch_offset = field(&Batch::offset);
  layout.batch_bits = field(&Batch::bits);
  layout.coll = whole<Collective96>();
  layout.coll_reg = whole<Collective96>();
  layout.coll_channel_lo = field(&Collective96::channel_lo);
  layout.coll_channel_hi = field(&Collective96::channel_hi);
  layout.coll_op_arg_is_pointer = field(&Collective96::argument_is_pointer);
  layout.coll_reg_used = field(&Collective96::registered);
  layout.coll_root = field(&Collective96::root);
  layout.coll_send = field(&Collective96::send);
  layout.coll_recv = field(&Collective96::receive);
  layout.coll_count_lo = field(&Collective96::count_lo);
  layout.coll_count_mid = field(&Collective96::count_mid);
  layout.coll_count_hi = field(&Collective96::count_hi);
  layout.coll_grains_lo = field(&Collective96::grains_lo);
  layout.coll_grains_mid = field(&Collective96::grains_mid);
  layout.coll_grains_hi = field(&Collective96::grains_hi);
  layout.coll_op_arg = field(&Collective96::argument);
  layout.p2p = whole<PeerToPeer>();
  layout.p2p_send = field(&PeerToPeer::send);
  layout.p2p_recv = field(&PeerToPeer::receive);
  layout.p2p_send_bytes = field(&PeerToPeer::send_bytes);
  layout.p2p_recv_bytes = field(&PeerToPeer::receive_bytes);
  layout.p2p_send_rank = field(&PeerToPeer::send_rank);
  layout.p2p_recv_rank = field(&PeerToPeer::receive_rank);
  layout.p2p_channels = field(&PeerToPeer::channels);
  layout.p2p_channel_base = field(&PeerToPeer::base);
  layout.p2p_send_channels = field(&PeerToPeer::send_channels);
  layout.p2p_recv_channels = field(&PeerToPeer::receive_channels);
  layout.p2p_send_chunk_fp8 = field(&PeerToPeer::send_chunk);
  layout.p2p_recv_chunk_fp8 = field(&PeerToPeer::receive_chunk);
  layout.p2p_send_ll = field(&PeerToPeer::send_ll);
  layout.p2p_recv_ll = field(&PeerToPeer::receive_ll);
  return layout;
}

// The memory of a connection. A direct one uses one end for both sides.
struct World::Wire {
  struct End {
    alignas(64) std::uint64_t tail = 0;
    alignas(64) std::uint64_t head = 0;
    std::vector<std::uint64_t> simple;  // of 8 bytes, for alignment
    std::vector<std::uint64_t> ll;
    FifoEntry fifo[slots] = {};
  };
  End sender;
  End receiver;
  std::uint64_t posted = 0;  // steps of credit given to the sender
  std::uint64_t moved = 0;   // steps copied to the receiver
};

World::World(WorldOptions options)
    : options_(options),
      communicators_(options.ranks),
      channels_(options.ranks, std::vector<Channel>(options.channels)),
      abort_flags_(options.ranks, 0) {
  library_.layout = layout();
  const auto ranks = static_cast<std::int32_t>(options.ranks);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    Communicator& communicator = communicators_[rank];
    communicator = {.rank = rank,
                    .ranks = ranks,
                    .buffer_bytes = {static_cast<std::int32_t>(options.ll_bytes), 0,
                                     static_cast<std::int32_t>(options.simple_bytes)},
                    .p2p_chunk = static_cast<std::int32_t>(options.simple_bytes / slots),
                    .abort_flag = &abort_flags_[rank],
                    .channels = channels_[rank].data()};
    for (std::uint32_t c = 0; c < options.channels; ++c) {
      Channel& channel = channels_[rank][c];
      // Odd channels go around the other way.
      const std::int32_t step = c % 2 == 0 ? 1 : ranks - 1;
      channel.next = (rank + step) % ranks;
      channel.previous = (rank + ranks - step) % ranks;
      channel.index = c % 2 == 0 ? rank : (ranks - rank) % ranks;
      std::vector<std::int32_t>& order = user_ranks_.emplace_back(options.ranks);
      for (std::int32_t i = 0; i < ranks; ++i) order[i] = (rank + i * step) % ranks;
      channel.user_ranks = order.data();
      // A binary heap: the children of rank r are 2r + 1 and 2r + 2.
      channel.up = rank == 0 ? -1 : (rank - 1) / 2;
      for (std::int32_t i = 0; i < 3; ++i) {
        channel.down[i] = i < 2 && 2 * rank + 1 + i < ranks ? 2 * rank + 1 + i : -1;
      }
      auto table = std::make_unique<Peer*[]>(options.ranks);
      for (std::int32_t i = 0; i < ranks; ++i) {
        table[i] = peers_.emplace_back(std::make_unique<Peer>()).get();
      }
      channel.peers = table.get();
      peer_tables_.push_back(std::move(table));
    }
  }
  for (std::uint32_t c = 0; c < options.channels; ++c) {
    for (std::uint32_t from = 0; from < options.ranks; ++from) {
      for (std::uint32_t to = 0; to < options.ranks; ++to) {
        for (unsigned index = 0; index < 2; ++index) {
          connect(channels_[from][c].peers[to]->send[index], channels_[to][c].peers[from]->receive[index]);
        }
      }
    }
  }
  if (options.proxied) {
    carrier_ = std::thread([this] {
      while (!stop_.load()) carry();
    });
  }
}

World::~World() {
  stop_ = true;
  if (carrier_.joinable()) carrier_.join();
}

void World::connect(Info& from, Info& to) {
  Wire& wire = *wires_.emplace_back(std::make_unique<Wire>());
  const auto fill = [&](Info& info, Wire::End& end) {
    if (end.simple.empty()) {
      end.simple.resize(options_.simple_bytes / 8);
      end.ll.resize(options_.ll_bytes / 8);
    }
    info = {};
    info.buffers[ll_buffer] = reinterpret_cast<std::byte*>(end.ll.data());
    info.buffers[simple_buffer] = reinterpret_cast<std::byte*>(end.simple.data());
    info.tail = &end.tail;
    info.head = &end.head;
    info.step_bytes = static_cast<std::int32_t>(options_.simple_bytes / slots);
    if (options_.proxied) {
      for (FifoEntry& entry : end.fifo) entry = {.mode = 1, .offset = 0, .bytes = -1};
      info.fifo = end.fifo;
    }
  };
  fill(from, wire.sender);
  fill(to, options_.proxied ? wire.receiver : wire.sender);
  // No credit before the proxy has chosen where a step's data goes.
  if (options_.proxied) wire.sender.head = std::uint64_t{0} - slots;
}

// One turn of the proxy: for every wire, credit for the sender and the steps that it has filled. One step per slice.
void World::carry() {
  const std::size_t step_bytes = options_.simple_bytes / slots;
  // The places are not the ones of slot numbers.
  const auto place = [&](std::uint64_t step) { return static_cast<std::int32_t>((5 * step + 3) % slots * step_bytes); };
  for (const std::unique_ptr<Wire>& wire : wires_) {
    if (wire->posted < wire->moved + slots) {
      wire->sender.fifo[wire->posted % slots].offset = place(wire->posted);
      ++wire->posted;
      std::atomic_ref(wire->sender.head).store(wire->posted - slots, std::memory_order_release);
    }
    const std::uint64_t taken = std::atomic_ref(wire->receiver.head).load(std::memory_order_acquire);
    const std::uint64_t filled = std::atomic_ref(wire->sender.tail).load(std::memory_order_acquire);
    if (wire->moved >= filled || wire->moved >= taken + slots) continue;
    FifoEntry& from = wire->sender.fifo[wire->moved % slots];
    FifoEntry& to = wire->receiver.fifo[wire->moved % slots];
    to.offset = place(wire->moved + 1);
    const std::int64_t bytes = std::atomic_ref(from.bytes).load(std::memory_order_acquire);
    std::memcpy(reinterpret_cast<std::byte*>(wire->receiver.simple.data()) + to.offset,
                reinterpret_cast<std::byte*>(wire->sender.simple.data()) + from.offset,
                static_cast<std::size_t>(bytes));
    std::atomic_ref(from.bytes).store(-1, std::memory_order_relaxed);
    std::atomic_ref(wire->receiver.tail).store(++wire->moved, std::memory_order_release);
  }
  std::this_thread::yield();
}

std::vector<BlockResult> World::run(std::span<const Function> functions, const WriteWork& write_work) {
  library_.functions = functions;
  const std::atomic<bool> cancelled{false};
  std::vector<std::vector<std::byte>> works(options_.ranks);
  std::vector<std::vector<std::byte>> arguments(options_.ranks);
  std::vector<Launch> launches;
  std::vector<BlockResult> results(options_.ranks * options_.channels);
  launches.reserve(options_.ranks);
  for (unsigned rank = 0; rank < options_.ranks; ++rank) {
    works[rank].resize(std::size_t{1} << 16U);
    const std::vector<Batch> batches = write_work(rank, works[rank]);
    const Arguments header{.communicator = &communicators_[rank],
                           .channel_mask = (std::uint64_t{1} << options_.channels) - 1,
                           .storage = 1,
                           .work_mask = static_cast<std::uint32_t>(works[rank].size() - 1),
                           .work = works[rank].data()};
    std::vector<std::byte>& args = arguments[rank];
    args.resize(sizeof(header) + batches.size() * sizeof(Batch));
    std::memcpy(args.data(), &header, sizeof(header));
    std::memcpy(args.data() + sizeof(header), batches.data(), batches.size() * sizeof(Batch));
    launches.push_back({library_, "ncclDevKernel_Generic", args, options_.channels, cancelled});
  }
  std::vector<std::thread> blocks;
  for (unsigned rank = 0; rank < options_.ranks; ++rank) {
    for (unsigned block = 0; block < options_.channels; ++block) {
      blocks.emplace_back(
          [&, rank, block] { results[rank * options_.channels + block] = run_block(launches[rank], block); });
    }
  }
  for (std::thread& block : blocks) block.join();
  return results;
}

}  // namespace paralet::cpu_device::test
