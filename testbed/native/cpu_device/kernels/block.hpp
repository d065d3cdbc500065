// SPDX-License-Identifier: Apache-2.0
// One block of a kernel: the channel that it works on, and how it works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernel.hpp"
#include "not_supported.hpp"
#include "parts.hpp"
#include "plans.hpp"
#include "transfer.hpp"

namespace paralet::cpu_device {

// A transfer with what it has to do.
struct Task {
  std::unique_ptr<Transfer> transfer;
  Plan plan;
};

// A collective, in the terms of either generation of work descriptors.
struct CollectiveWork {
  Part part;
  Buffers buffers;
  int root = 0;
  std::uint64_t argument = 0;  // of the reduction
};

// Half of a point-to-point work: what this channel sends or receives.
struct PeerWork {
  int peer = -1;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t chunk_bytes = 0;  // of data
  bool ll = false;
};

class Block {
 public:
  // `communicator` is NCCL's ncclKernelComm (ncclDevComm in older versions).
  Block(const Launch& launch, std::byte* communicator, unsigned channel);

  const Launch& launch() const { return launch_; }
  const Layout& layout() const { return launch_.library.layout; }
  std::byte* communicator() const { return communicator_; }
  std::byte* channel_struct() const { return channel_struct_; }
  unsigned channel() const { return channel_; }
  int rank() const;
  bool aborted() const;

  // Runs a collective to its end. Returns false where it was aborted. Throws NotSupported.
  bool run_collective(const Function& function, const CollectiveWork& work);

  // Runs the broadcasts of a group. Throws NotSupported.
  bool run_shares(const Function& function, const std::vector<Share>& shares);

  // Runs sends and receives of a group at the same time.
  bool run_peers(const std::vector<PeerWork>& sends, const std::vector<PeerWork>& receives);

 private:
  // Advances all tasks until they are finished. Returns false where the communicator was aborted.
  bool run(std::vector<Task>& tasks) const;

  std::unique_ptr<Transfer> transfer(Protocol protocol, const Peers& peers, unsigned slices, unsigned steps,
                                     const Reducer& reducer) const;
  Connection connection(Field direction, int peer, unsigned index) const;
  std::size_t buffer_bytes(unsigned protocol) const;
  Ring ring() const;
  Peers ring_peers() const;
  std::vector<Task> ring_tasks(const Function& function, const CollectiveWork& work, const Reducer& reducer) const;
  std::vector<Task> tree_tasks(const Function& function, const CollectiveWork& work, const Reducer& reducer) const;

  const Launch& launch_;
  std::byte* communicator_;
  std::byte* channel_struct_;
  unsigned channel_;
};

}  // namespace paralet::cpu_device
