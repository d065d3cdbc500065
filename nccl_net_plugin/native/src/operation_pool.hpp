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

/// A request of NCCL: one send or up to eight grouped receives. Each part is a request of the engine.
struct Operation {
  struct Part {
    std::shared_ptr<Request> request;  ///< reused
    const Memory* memory = nullptr;    ///< nullptr: not registered by the caller
  };
  DataComm* comm = nullptr;
  unsigned count = 0;  ///< parts in progress; 0: the operation is free
  std::vector<Part> parts;
};

/// The operations of one comm. The pool grows to the largest number that was ever in use at once, up to its capacity;
/// after that it does not allocate.
class OperationPool {
 public:
  OperationPool(DataComm* comm, std::size_t capacity) : comm_(comm), capacity_(capacity) {}

  /// Takes a free operation with one engine request per element of `memories`, to be filled in. nullptr when all are in
  /// use.
  Operation* take(std::span<const Memory* const> memories);
  void give_back(Operation& operation);

  /// Whether any part with an unfinished engine request satisfies `predicate`.
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
  std::deque<Operation> operations_;  ///< a deque keeps their addresses
  std::vector<Operation*> free_;      ///< last in, first out: the most recent one is in the cache
};

}  // namespace paralet::plugin
