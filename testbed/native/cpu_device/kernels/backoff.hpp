// SPDX-License-Identifier: Apache-2.0
// How a block waits for its peers.
#pragma once

namespace paralet::cpu_device {

// Waits a little longer each time, from some instructions to 50 microseconds. Ranks, their channels, NCCL's proxy
// threads and the network share few cores, so a block that waits must leave them to the others soon.
class Backoff {
 public:
  void wait();
  void reset() { rounds_ = 0; }

 private:
  unsigned rounds_ = 0;
};

}  // namespace paralet::cpu_device
