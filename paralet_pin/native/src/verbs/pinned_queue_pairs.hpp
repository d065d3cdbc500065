// SPDX-License-Identifier: Apache-2.0
// The queue pairs of a program: which source port each gets when it is connected, follows, and gives back.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/mutex.hpp"
#include "planned_ports.hpp"
#include "program_settings.hpp"

namespace paralet::pin {

/// Functions of the libraries that the program uses.
struct VerbsCalls {
  int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int) = nullptr;
  int (*destroy_qp)(ibv_qp*) = nullptr;
  /// ibv_query_gid_ex of a port and an index. nullptr before rdma-core 32.
  int (*query_gid)(ibv_context*, std::uint32_t, std::uint32_t, ibv_gid_entry*, std::uint32_t, std::size_t) = nullptr;
  /// mlx5dv_modify_qp_udp_sport. nullptr where libmlx5 is not loaded; an error for devices of other vendors.
  int (*set_port)(ibv_qp*, std::uint16_t) = nullptr;
};

/// A connected queue pair sends with the UDP source port that follows from the flow label of its address (wire/
/// flow_label.hpp), which is fixed once it is ready to receive. Any thread may call. A forked child only passes calls
/// on.
class PinnedQueuePairs {
 public:
  PinnedQueuePairs(PlannedPorts& ports, const VerbsCalls& calls, const ProgramSettings& settings);
  PinnedQueuePairs(const PinnedQueuePairs&) = delete;
  PinnedQueuePairs& operator=(const PinnedQueuePairs&) = delete;

  /// ibv_modify_qp of the program: its result is the library's. `given_label`: the flow label that rdma_init_qp_attr
  /// has given the program, 0: none; any other label is the program's own choice and stays.
  int modify(ibv_qp* qp, ibv_qp_attr* attributes, int mask, std::uint32_t given_label);
  /// ibv_destroy_qp of the program.
  int destroy(ibv_qp* qp);

 private:
  struct Pin {
    std::uint64_t id = 0;  ///< PlannedPorts'
    std::uint16_t port = 0;
    bool sends = false;  ///< ready to send, which mlx5's call needs
  };

  int connect(ibv_qp* qp, ibv_qp_attr* attributes, int mask, std::uint32_t given_label);
  /// What is to be pinned; nothing, and PlannedPorts knows why, if the queue pair has to connect as it is.
  [[nodiscard]] std::optional<Flow> flow_of(const ibv_qp& qp, const ibv_qp_attr& attributes, int mask,
                                            std::uint32_t given_label) const;
  std::optional<std::uint16_t> port_for(const ibv_qp* qp, const Flow& flow);
  void start(ibv_qp* qp);
  bool move(std::uint64_t id, std::uint16_t port);
  std::optional<Pin> take(const ibv_qp* qp);
  void give_back(const ibv_qp* qp);

  PlannedPorts& ports_;
  const VerbsCalls calls_;
  const ProgramSettings settings_;
  const pid_t process_;
  std::atomic<bool> follows_{false};  ///< the plan's moves
  Mutex mutex_;                       ///< not held while ports_ is called, which may wait for `move`
  std::unordered_map<const ibv_qp*, Pin> pins_ PARALET_GUARDED_BY(mutex_);
  /// Moves of flows whose `ask` has not returned yet, while there are any such.
  std::map<std::uint64_t, std::uint16_t> early_moves_ PARALET_GUARDED_BY(mutex_);
  unsigned asking_ PARALET_GUARDED_BY(mutex_) = 0;
};

}  // namespace paralet::pin
