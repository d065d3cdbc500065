// SPDX-License-Identifier: Apache-2.0
// A world of N ranks in one process: communicators, channels and connections as NCCL sets them up, in plain memory.
//
// The structs are the tests' own, and so is the layout that describes them. Connections lead straight from the sender's
// slots to the receiver, as NCCL's transports within a host do; with `proxied`, through a thread that copies between
// two sets of slots at places of its own choice, as its network transport does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernel.hpp"

namespace paralet::cpu_device::test {

struct FifoEntry {
  std::int32_t mode;
  std::int32_t offset;
  std::int64_t bytes;
  void* pointer;
};

struct Info {
  std::byte* buffers[3];
  std::uint64_t* tail;
  std::uint64_t* head;
  std::int32_t flags;
  std::int32_t shared;
  std::int32_t step_bytes;
  FifoEntry* fifo;
  std::uint64_t step;
  std::uint64_t last_cleaning;
};

struct Peer {
  Info send[2];
  Info receive[2];
};

struct Channel {
  Peer** peers;
  std::int32_t previous;
  std::int32_t next;
  std::int32_t* user_ranks;
  std::int32_t index;
  std::int32_t up;
  std::int32_t down[3];
  std::uint32_t* fifo_done;
  std::uint64_t work_counter;
};

struct Communicator {
  std::int32_t rank;
  std::int32_t ranks;
  std::int32_t buffer_bytes[3];
  std::int32_t p2p_chunk;
  std::uint32_t* abort_flag;
  Channel* channels;
};

struct Arguments {
  Communicator* communicator;
  std::uint64_t channel_mask;
  std::uint32_t storage;
  std::uint32_t work_mask;
  std::byte* work;
};

struct Batch {
  std::uint32_t next_jump;
  std::uint32_t next_extends;
  std::uint32_t type;
  std::uint32_t function;
  std::uint32_t offset;
  std::uint32_t unused;
  std::uint64_t bits;
};

struct Collective96 {
  std::uint32_t channel_lo;
  std::uint32_t channel_hi;
  std::uint32_t argument_is_pointer;
  std::uint32_t registered;
  std::uint32_t root;
  const void* send;
  void* receive;
  std::uint64_t count_lo;
  std::uint64_t count_mid;
  std::uint64_t count_hi;
  std::uint32_t grains_lo;
  std::uint32_t grains_mid;
  std::uint32_t grains_hi;
  std::uint64_t argument;
};

struct PeerToPeer {
  const void* send;
  void* receive;
  std::uint64_t send_bytes;
  std::uint64_t receive_bytes;
  std::int32_t send_rank;
  std::int32_t receive_rank;
  std::uint8_t channels;
  std::uint8_t base;
  std::uint8_t send_channels;
  std::uint8_t receive_channels;
  std::uint8_t send_chunk;
  std::uint8_t receive_chunk;
  std::uint8_t send_ll;
  std::uint8_t receive_ll;
};

Layout layout();

struct WorldOptions {
  unsigned ranks = 2;
  unsigned channels = 1;
  std::size_t simple_bytes = 8 * 4096;  // of all slots
  std::size_t ll_bytes = 8 * 1024;
  bool proxied = false;
};

class World {
 public:
  explicit World(WorldOptions options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Runs one kernel on every rank, a thread per block, and returns the blocks' results. `write_work` writes a rank's
  // work structs (storage 1, in a ring buffer of `work_bytes`) and returns the batches of all blocks: the first of
  // block i is batch i. All channels take part.
  using WriteWork = std::function<std::vector<Batch>(unsigned rank, std::vector<std::byte>& work)>;
  std::vector<BlockResult> run(std::span<const Function> functions, const WriteWork& write_work);

  Communicator& communicator(unsigned rank) { return communicators_[rank]; }
  void abort(unsigned rank) { std::atomic_ref(abort_flags_[rank]).store(1); }
  const WorldOptions& options() const { return options_; }

 private:
  struct Wire;

  void connect(Info& from, Info& to);
  void carry();

  WorldOptions options_;
  Library library_;
  std::vector<Communicator> communicators_;
  std::vector<std::vector<Channel>> channels_;
  std::vector<std::uint32_t> abort_flags_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Peer*[]>> peer_tables_;
  std::vector<std::vector<std::int32_t>> user_ranks_;
  std::vector<std::unique_ptr<Wire>> wires_;
  std::atomic<bool> stop_{false};
  std::thread carrier_;
};

}  // namespace paralet::cpu_device::test
