// SPDX-License-Identifier: Apache-2.0
// The shared receive queue of a device (IBTA 10.2.9), and the memory that small messages arrive in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "backend/work.hpp"
#include "verbs/memory.hpp"
#include "verbs/verbs_library.hpp"

namespace paralet::verbs {

class SharedReceiveQueue {
 public:
  /// Posts up to `depth` receives at a time, fewer where the NIC grants less. Throws DeviceError.
  SharedReceiveQueue(ibv_pd* pd, const Memory& memory, std::uint32_t depth);

  [[nodiscard]] ibv_srq* get() const { return queue_.get(); }
  /// Receives that the NIC holds at most.
  [[nodiscard]] std::size_t depth() const { return receives_.size(); }

  /// Posts a buffer, or keeps it until the NIC has room.
  void post(const ReceiveBuffer& buffer);
  /// Posts the buffers that are kept.
  void post_waiting();
  /// Whether a completion is that of a receive.
  static bool owns(const ibv_wc& wc) { return (wc.wr_id & kMark) != 0; }
  /// A receive has ended. Nothing when it failed: its buffer is posted again.
  std::optional<Completion> finish(const ibv_wc& wc);

 private:
  static constexpr std::uint64_t kMark = 1ULL << 63;  ///< in the wr_id of a receive
  struct Receive {
    ReceiveBuffer buffer;
    MrHandle temporary;
  };
  [[nodiscard]] std::byte* small_buffer(std::uint64_t slot);

  const Memory& memory_;
  SrqHandle queue_;
  std::vector<std::byte> small_;  ///< a buffer per slot
  MrHandle small_mr_;
  std::vector<Receive> receives_;    ///< by slot
  std::vector<std::uint64_t> free_;  ///< slots
  std::deque<ReceiveBuffer> waiting_;
};

}  // namespace paralet::verbs
