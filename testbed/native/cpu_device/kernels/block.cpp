// SPDX-License-Identifier: Apache-2.0
#include "block.hpp"

#include <atomic>

#include "backoff.hpp"

namespace paralet::cpu_device {
namespace {

// The connections of collectives and of sends and receives: NCCL has two to each peer in each direction.
constexpr unsigned collective_connection = 0;
constexpr unsigned peer_connection = 1;
constexpr std::size_t tree_children = 3;       // NCCL_MAX_TREE_ARITY
constexpr std::size_t tree_root_children = 2;  // NCCL_MAX_TREE_ARITY_TOP

std::string name_of(const Function& function) { return std::string(function.name); }

// Throws NotSupported for a protocol that the CPU device does not have.
void check_protocol(const Function& function) {
  if (function.protocol == Protocol::simple || function.protocol == Protocol::ll) return;
  throw NotSupported{"The CPU device has no protocol for " + name_of(function) +
                     "; set NCCL_PROTO=LL,Simple in the environment of every rank."};
}

}  // namespace

Block::Block(const Launch& launch, std::byte* communicator, unsigned channel)
    : launch_(launch),
      communicator_(communicator),
      channel_struct_(read_pointer(communicator, launch.library.layout.comm_channels) +
                      channel * launch.library.layout.channel.size()),
      channel_(channel) {}

int Block::rank() const { return static_cast<int>(read_signed(communicator_, layout().comm_rank)); }

bool Block::aborted() const {
  if (launch_.cancelled.load(std::memory_order_relaxed)) return true;
  auto* flag = reinterpret_cast<std::uint32_t*>(read_pointer(communicator_, layout().comm_abort_flag));
  return flag != nullptr && std::atomic_ref(*flag).load(std::memory_order_acquire) != 0;
}

bool Block::run(std::vector<Task>& tasks) const {
  struct Running {
    Task* task;
    std::size_t next;  // operation after the current one
  };
  std::vector<Running> running;
  for (Task& task : tasks) {
    if (task.plan.empty()) continue;
    task.transfer->begin(task.plan.front());
    running.push_back({&task, 1});
  }
  Backoff backoff;
  while (!running.empty()) {
    bool advanced = false;
    for (std::size_t i = 0; i < running.size();) {
      Task& task = *running[i].task;
      const Progress progress = task.transfer->advance();
      advanced |= progress != Progress::blocked;
      if (progress != Progress::finished) {
        ++i;
      } else if (running[i].next < task.plan.size()) {
        task.transfer->begin(task.plan[running[i].next++]);
        ++i;
      } else {
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (advanced) {
      backoff.reset();
    } else {
      if (aborted()) return false;
      backoff.wait();
    }
  }
  for (const Task& task : tasks) task.transfer->close();
  return true;
}

std::size_t Block::buffer_bytes(unsigned protocol) const {
  Field field = layout().comm_buffer_bytes;
  field.first_bit += protocol * field.bits;
  return read_unsigned(communicator_, field);
}

Connection Block::connection(Field direction, int peer, unsigned index) const {
  std::byte* peers = read_pointer(channel_struct_, layout().channel_peers);
  std::byte* of_peer = nullptr;
  std::memcpy(&of_peer, peers + static_cast<std::size_t>(peer) * sizeof(of_peer), sizeof(of_peer));
  return {layout(), of_peer + direction.offset() + index * layout().conn.size()};
}

std::unique_ptr<Transfer> Block::transfer(Protocol protocol, const Peers& peers, unsigned slices, unsigned steps,
                                          const Reducer& reducer) const {
  if (protocol == Protocol::ll) return ll_transfer(peers, buffer_bytes(ll_buffer) / slots, reducer);
  return simple_transfer(peers, {slices, steps, buffer_bytes(simple_buffer) / slots}, reducer);
}

Ring Block::ring() const {
  const auto* ranks = reinterpret_cast<const int*>(read_pointer(channel_struct_, layout().channel_ring_user_ranks));
  return {static_cast<unsigned>(read_unsigned(channel_struct_, layout().channel_ring_index)),
          {ranks, read_unsigned(communicator_, layout().comm_ranks)}};
}

Peers Block::ring_peers() const {
  const int previous = static_cast<int>(read_signed(channel_struct_, layout().channel_ring_prev));
  const int next = static_cast<int>(read_signed(channel_struct_, layout().channel_ring_next));
  return {{connection(layout().peer_recv, previous, collective_connection)},
          {connection(layout().peer_send, next, collective_connection)}};
}

std::vector<Task> Block::ring_tasks(const Function& function, const CollectiveWork& work,
                                    const Reducer& reducer) const {
  const Peers peers = ring_peers();
  const Ring here = ring();
  const std::size_t bytes = reducer.element_bytes();
  // Chunks of 4 steps in 2 slices, or of 1 step: ALLREDUCE_CHUNKSTEPS and the like in NCCL's collectives.h.
  unsigned slices = 2;
  unsigned steps = 2;
  Plan plan;
  switch (function.collective) {
    case Collective::all_reduce:
      plan = ring_all_reduce(work.part, here, bytes, work.buffers);
      break;
    case Collective::all_gather:
      plan = ring_all_gather(work.part, here, bytes, work.buffers);
      break;
    case Collective::reduce_scatter:
      plan = ring_reduce_scatter(work.part, here, bytes, work.buffers);
      break;
    case Collective::broadcast:
      slices = steps = 1;
      plan = ring_broadcast(work.part, here, work.root, bytes, work.buffers);
      break;
    case Collective::reduce:
      slices = steps = 1;
      plan = ring_reduce(work.part, here, work.root, bytes, work.buffers);
      break;
    default:
      throw NotSupported{name_of(function) + " is not a collective that the CPU device runs on a ring."};
  }
  std::vector<Task> tasks;
  tasks.push_back({transfer(function.protocol, peers, slices, steps, reducer), std::move(plan)});
  return tasks;
}

std::vector<Task> Block::tree_tasks(const Function& function, const CollectiveWork& work,
                                    const Reducer& reducer) const {
  if (function.collective != Collective::all_reduce) {
    throw NotSupported{name_of(function) + " is not a collective that the CPU device runs on a tree."};
  }
  const int up = static_cast<int>(read_signed(channel_struct_, layout().channel_tree_up));
  std::vector<int> children;
  for (std::size_t i = 0; i < (up < 0 ? tree_root_children : tree_children); ++i) {
    Field field = layout().channel_tree_down;
    field.first_bit += static_cast<std::uint32_t>(i) * field.bits;
    const int child = static_cast<int>(read_signed(channel_struct_, field));
    if (child < 0) break;
    children.push_back(child);
  }
  std::vector<Connection> from_children;
  std::vector<Connection> to_children;
  for (const int child : children) {
    from_children.push_back(connection(layout().peer_recv, child, collective_connection));
    to_children.push_back(connection(layout().peer_send, child, collective_connection));
  }
  const std::size_t bytes = reducer.element_bytes();
  const auto make = [&](std::vector<Connection> receive, std::vector<Connection> send) {
    return transfer(function.protocol, {std::move(receive), std::move(send)}, 1, 1, reducer);
  };
  std::vector<Task> tasks;
  if (up < 0) {
    tasks.push_back({make(from_children, to_children), tree_root(work.part, bytes, work.buffers)});
    return tasks;
  }
  const TreePlace place = children.empty() ? TreePlace::leaf : TreePlace::inner;
  tasks.push_back({make(from_children, {connection(layout().peer_send, up, collective_connection)}),
                   tree_up(work.part, place, bytes, work.buffers)});
  tasks.push_back({make({connection(layout().peer_recv, up, collective_connection)}, to_children),
                   tree_down(work.part, place, bytes, work.buffers)});
  return tasks;
}

bool Block::run_shares(const Function& function, const std::vector<Share>& shares) {
  check_protocol(function);
  const Reducer copy(1);
  std::vector<Task> tasks;
  tasks.push_back({transfer(function.protocol, ring_peers(), 1, 1, copy),
                   ring_shares(shares, static_cast<unsigned>(read_unsigned(communicator_, layout().comm_ranks)))});
  return run(tasks);
}

bool Block::run_collective(const Function& function, const CollectiveWork& work) {
  check_protocol(function);
  const bool reduces = function.reduction != Reduction::none;
  const std::size_t bytes = reduces ? element_bytes(function.element) : 1;
  if (bytes == 0) throw NotSupported{"The CPU device has no elements of the type of " + name_of(function) + "."};
  const auto encoding =
      layout().generation == Generation::elements ? DivisorEncoding::plain : DivisorEncoding::sign_in_bit_0;
  const Reducer reducer =
      reduces ? Reducer(function.reduction, function.element, work.argument, encoding) : Reducer(bytes);
  std::vector<Task> tasks;
  switch (function.algorithm) {
    case Algorithm::ring:
      tasks = ring_tasks(function, work, reducer);
      break;
    case Algorithm::tree:
      tasks = tree_tasks(function, work, reducer);
      break;
    default:
      throw NotSupported{"The CPU device has no algorithm for " + name_of(function) +
                         "; set NCCL_ALGO=Ring,Tree in the environment of every rank."};
  }
  return run(tasks);
}

bool Block::run_peers(const std::vector<PeerWork>& sends, const std::vector<PeerWork>& receives) {
  const Reducer copy(1);
  const std::size_t step_bytes = read_unsigned(communicator_, layout().comm_p2p_chunk);
  const auto make = [&](const PeerWork& work, const Peers& peers) {
    if (work.ll) return ll_transfer(peers, buffer_bytes(ll_buffer) / slots, copy);
    return simple_transfer(peers, {1, 1, step_bytes}, copy);
  };
  std::vector<Task> tasks;
  tasks.reserve(sends.size() + receives.size());
  for (const PeerWork& work : sends) {
    tasks.push_back({make(work, {{}, {connection(layout().peer_send, work.peer, peer_connection)}}),
                     send_plan(work.data, work.bytes, work.chunk_bytes)});
  }
  for (const PeerWork& work : receives) {
    tasks.push_back({make(work, {{connection(layout().peer_recv, work.peer, peer_connection)}, {}}),
                     receive_plan(work.data, work.bytes, work.chunk_bytes)});
  }
  return run(tasks);
}

}  // namespace paralet::cpu_device
