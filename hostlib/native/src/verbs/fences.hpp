// SPDX-License-Identifier: Apache-2.0
// Fences of received data: Backend::post_fence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "base/log.hpp"
#include "verbs/memory.hpp"
#include "verbs/queue_pairs.hpp"
#include "verbs/slow_calls.hpp"

namespace paralet::verbs {

/// A fence is a READ of the region through the NIC. On its way to memory it does not overtake the writes that the NIC
/// made before it (PCI Express base specification, 2.4.1). All READs use one loopback queue pair.
class Fences {
 public:
  /// Everything given outlives the fences. Completions of fences without a queue pair are appended to `completions`.
  Fences(QueuePairs& qps, Memory& memory, SlowCalls& slow_calls, std::vector<Completion>& completions, Log log)
      : qps_(qps), memory_(memory), slow_calls_(slow_calls), completions_(completions), log_(std::move(log)) {}

  void post(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie);

 private:
  /// The loopback queue pair and the region that READs write to, or why there are none.
  struct Created {
    std::uint32_t qpn = 0;
    std::uint32_t region = 0;
    std::string error;  ///< empty: they exist
  };
  [[nodiscard]] Created create(std::uint32_t region);
  void take(const Created& created);
  void start();

  QueuePairs& qps_;
  Memory& memory_;
  SlowCalls& slow_calls_;
  std::vector<Completion>& completions_;
  const Log log_;
  std::byte read_{};          ///< where the READs go
  std::uint32_t region_ = 0;  ///< of `read_`, 0: not registered yet
  std::uint32_t qpn_ = 0;     ///< of the loopback queue pair, 0: none
  bool creating_ = false;
  std::vector<WorkRequest> waiting_;  ///< for the queue pair
};

}  // namespace paralet::verbs
