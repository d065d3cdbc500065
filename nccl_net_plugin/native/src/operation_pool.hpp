// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/request.hpp"

namespace paralet::plugin {

class DataComm;
struct Memory;

/// What NCCL calls a request: one send, or up to eight grouped receives, each a request of the engine.
struct Operation {
  struct Part {
    std::shared_ptr<Request> request;  ///< reused
    const Memory* memory = nullptr;    ///< nullptr: not registered by the caller
  };
  DataComm* comm = nullptr;
  unsigned count = 0;  ///< parts under way; 0: free
  std::vector<Part> parts;
};

/// The operations of one comm. Grows to the number that were ever in flight at once, up to its capacity, and then
/// allocates no more.
class OperationPool {
 public:
  OperationPool(DataComm* comm, std::size_t capacity) : comm_(comm), capacity_(capacity) {}

  /// One with an engine request, to be filled in, for each of `memories`; nullptr when all are in use.
  Operation* take(std::span<const Memory* const> memories);
  void give_back(Operation& operation);

  /// Whether any engine request that is not finished satisfies `predicate`(part).
  template <typename Predicate>
  [[nodiscard]] bool any_pending(Predicate predicate) {
    const std::lock_guard lock(mutex_);
    for (const Operation& operation : operations_) {
      for (unsigned i = 0; i < operation.count; ++i) {
        const Operation::Part& part = operation.parts[i];
        if (part.request->state.load(std::memory_order_acquire) == Request::State::kPending && predicate(part)) {
          return true;
        }
      }
    }
    return false;
  }

 private:
  // NCCL posts and tests on one thread, but deregisters and closes on another.
  std::mutex mutex_;
  DataComm* comm_;
  std::size_t capacity_;
  std::deque<Operation> operations_;  ///< their addresses stay
  std::vector<Operation*> free_;      ///< the last one given back is taken first, while it is warm
};

}  // namespace paralet::plugin
