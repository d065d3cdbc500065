// SPDX-License-Identifier: Apache-2.0
// A rank's end of a group: collectives and messages over a device.
//
// Threads. Any thread may issue and wait. One thread at a time is the executor: it runs the operations and moves the
// device's packets. A thread that waits takes that part if it is free, so that no other thread has to be woken; the
// group's own thread takes it when nobody waits, and hands it over to the next thread that does.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/owner_process.hpp"
#include "base/signal.hpp"
#include "collectives/execution.hpp"
#include "collectives/links.hpp"
#include "collectives/operation.hpp"
#include "collectives/point_to_point.hpp"
#include "collectives/reduction.hpp"
#include "collectives/schedule.hpp"
#include "engine/device.hpp"

namespace paralet::collectives {

struct IssueOptions {
  std::optional<Nanos> timeout;  ///< from now on; nullopt: none
  bool awaited = false;          ///< the caller waits at once: the group's thread need not start it
  bool notify = false;           ///< take_finished returns it
};

class Group {
 public:
  /// Throws std::invalid_argument when rank or size is impossible, DeviceError.
  Group(std::shared_ptr<Device> device, int rank, int size);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();

  [[nodiscard]] int rank() const { return place_.rank; }
  [[nodiscard]] int size() const { return place_.size; }
  /// What the other ranks need to connect.
  [[nodiscard]] const std::array<std::byte, handshake::kHandleBytes>& handle() const { return handle_; }
  /// The handles of all ranks in their order; before the first operation. Throws std::invalid_argument.
  void set_handles(std::vector<std::array<std::byte, handshake::kHandleBytes>> handles);

  // Operations. Sizes are in bytes where not said otherwise. The memory must stay until the operation is done. They
  // throw std::invalid_argument for arguments that no group could execute.
  using Handle = std::shared_ptr<Operation>;
  Handle all_reduce(std::byte* source, std::byte* target, std::uint64_t count, DataType type, ReduceOp op,
                    const IssueOptions& options);
  Handle reduce(std::byte* source, std::byte* target, std::uint64_t count, DataType type, ReduceOp op, int root,
                const IssueOptions& options);
  Handle broadcast(std::byte* data, std::uint64_t bytes, int root, const IssueOptions& options);
  Handle all_gather(std::byte* source, const Blocks& target, const IssueOptions& options);
  /// The sizes of `source` are whole elements.
  Handle reduce_scatter(const Blocks& source, std::byte* target, DataType type, ReduceOp op,
                        const IssueOptions& options);
  Handle all_to_all(const Blocks& source, const Blocks& target, const IssueOptions& options);
  Handle gather(Block source, const Blocks& target, int root, const IssueOptions& options);
  Handle scatter(const Blocks& source, Block target, int root, const IssueOptions& options);
  Handle barrier(const IssueOptions& options);
  Handle send(std::byte* data, std::uint64_t bytes, int peer, std::uint32_t tag, const IssueOptions& options);
  /// Without a peer: from any rank.
  Handle receive(std::byte* data, std::uint64_t bytes, std::optional<int> peer, std::uint32_t tag,
                 const IssueOptions& options);

  /// Waits for the end of an operation. False: `timeout` has passed.
  bool wait(const Operation& operation, Nanos timeout);
  /// Waits until operations with `notify` have ended, and returns those; none when the time has passed or the group is
  /// closed.
  std::vector<Handle> take_finished(Nanos timeout);

  /// Whether this process is a forked child of the one that made the group: all calls but close throw DeviceError.
  [[nodiscard]] bool inherited() const { return owner_.inherited(); }
  /// Throws DeviceError in a forked child.
  void check_owner() const;

  /// Why the group failed, empty while it works.
  [[nodiscard]] std::string error() const;
  [[nodiscard]] bool closed() const { return closed_.load(); }
  /// Fails the group and its operations.
  void abort(const std::string& reason);
  /// Ends operations under way with an error, closes the connections and stops the thread. Returns when the engine uses
  /// no memory of the callers any more.
  void close();

 private:
  struct Job {
    Handle operation;
    std::unique_ptr<Execution> execution;  ///< of a collective
    std::optional<Message> message;        ///< of a send or receive
    Nanos deadline = kNever;
    bool notify = false;
  };

  Handle collective(Kind kind, int root, DataType type, ReduceOp op, Elements elements, Program program,
                    const IssueOptions& options);
  Handle message(Kind kind, const Message& message, const IssueOptions& options);
  Handle issue(Kind kind, Job job, const IssueOptions& options);
  void check_rank(int rank, const char* what) const;
  [[nodiscard]] Temporary temporary();

  // Who is the executor.
  template <typename Ready>
  bool wait_until(Ready ready, Nanos until);
  template <typename Stop>
  void drive(Stop stop, Nanos until) PARALET_REQUIRES(executor_);
  void release() PARALET_RELEASE(executor_);
  void hand_over();
  void run();

  // What it does.
  bool advance() PARALET_REQUIRES(executor_);
  void take_submitted() PARALET_REQUIRES(executor_);
  bool advance_messages() PARALET_REQUIRES(executor_);
  bool finish_message(Job& job);
  void check_deadlines(Nanos t) PARALET_REQUIRES(executor_);
  void close_links() PARALET_REQUIRES(executor_);
  void fail(Failure failure, const std::string& error);
  void complete(Job& job, Operation::State state);

  const std::shared_ptr<Device> device_;
  const Place place_;
  const Limits limits_;
  const OwnerProcess owner_;
  std::array<std::byte, handshake::kHandleBytes> handle_{};

  Mutex executor_;
  std::atomic<bool> driving_{false};  ///< there is an executor
  std::atomic<unsigned> waiting_{0};  ///< threads that would be the executor: the group's thread leaves it to them
  std::unique_ptr<Links> links_ PARALET_GUARDED_BY(executor_);
  Scratch scratch_ PARALET_GUARDED_BY(executor_);
  std::deque<Job> collectives_ PARALET_GUARDED_BY(executor_);  ///< the first one is being executed
  std::vector<Job> messages_ PARALET_GUARDED_BY(executor_);
  PointToPoint point_to_point_ PARALET_GUARDED_BY(executor_);
  Nanos next_deadline_ PARALET_GUARDED_BY(executor_) = kNever;
  Nanos crowded_until_ PARALET_GUARDED_BY(executor_) = 0;  ///< other programs want the processor

  mutable Mutex state_;
  std::deque<Job> submitted_ PARALET_GUARDED_BY(state_);
  std::deque<Handle> ended_ PARALET_GUARDED_BY(state_);  ///< with `notify`, for take_finished
  std::uint32_t next_sequence_ PARALET_GUARDED_BY(state_) = 0;
  Failure failure_ PARALET_GUARDED_BY(state_) = Failure::kNone;
  std::string error_ PARALET_GUARDED_BY(state_);
  std::unique_ptr<std::byte[]> temporary_ PARALET_GUARDED_BY(state_);  // NOLINT(modernize-avoid-c-arrays)

  // Any thread.
  std::atomic<bool> news_{false};           ///< submitted_ is not empty
  std::atomic<bool> failed_{false};         ///< error_ is set
  std::atomic<bool> links_closed_{false};   ///< nothing runs any more
  std::atomic<bool> ended_any_{false};      ///< ended_ is not empty
  std::atomic<std::size_t> unfinished_{0};  ///< operations
  std::atomic<bool> handed_{false};         ///< there is work, and no executor
  std::atomic<unsigned> takers_{0};         ///< threads in take_finished: they do the work of the group's thread
  std::atomic<bool> closed_{false};
  std::atomic<bool> stop_{false};
  Signal work_;         ///< wakes the group's thread
  Signal takers_work_;  ///< wakes takers
  std::thread thread_;
};

}  // namespace paralet::collectives
